from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from monarch_hpc.core.errors import ConfigError
from monarch_hpc.core.text.hostlist import compress, expand

words = st.text("abz.-_", max_size=3)
digits = st.text("0129", min_size=1, max_size=4) | st.integers(0, 300).map(str)
names = st.builds(
    lambda first, rest: first + "".join(rest), st.sampled_from("nr0"), st.lists(words | digits, max_size=4)
)


@given(st.lists(names, max_size=40))
def test_expand_undoes_compress(hosts: list[str]) -> None:
    assert expand(compress(hosts)) == hosts


@given(st.integers(0, 2000), st.integers(0, 60), st.integers(1, 5))
def test_a_run_of_numbers_becomes_one_range(low: int, more: int, width: int) -> None:
    hosts = [f"n{number:0{width}d}" for number in range(low, low + more + 1)]
    assert compress(hosts) == (hosts[0] if more == 0 else f"n[{hosts[0][1:]}-{hosts[-1][1:]}]")


@given(st.text("n1-9[],0 ", max_size=24) | st.text(max_size=12))
def test_any_text_is_a_list_or_an_error(text: str) -> None:
    try:
        hosts = expand(text, max_hosts=1000)
    except ConfigError:
        return
    assert len(hosts) <= 1000
    assert expand(compress(hosts)) == hosts
