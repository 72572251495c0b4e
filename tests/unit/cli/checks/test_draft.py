"""A draft of a profile loads as it is, whatever Slurm says."""

from __future__ import annotations

import datetime
from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from monarch_hpc.cli.checks.draft import SlurmAnswers, draft_profile
from monarch_hpc.config.document import parse_document
from monarch_hpc.config.site import Profile, parse_profile

NONE = dict.fromkeys(("config", "partitions", "nodes", "associations", "qos"), "")
CONFIG = "ClusterName             = Big One\nSLURM_VERSION           = 23.11.4\nSwitchType = switch/hpe_slingshot\n"
PARTITIONS = "PartitionName=gpu Default=NO MaxTime=1-00:00:00 TotalNodes=8\nPartitionName=cpu Default=NO\n"


def draft(texts: Mapping[str, str], cluster: str = "login1") -> tuple[str, Profile]:
    text = draft_profile(SlurmAnswers({**NONE, **texts}, {"eth0": "10.0.0.1"}, cluster, datetime.date(2026, 11, 22)))
    return text, parse_profile(parse_document(text, "draft.yaml"), "draft.yaml")


def test_slurms_answers_become_settings_and_comments() -> None:
    text, profile = draft(
        {
            "config": CONFIG,
            "partitions": PARTITIONS,
            "nodes": "gpu|8|64|500000|gpu:a100:4(S:0-1)|a100\n",
            "associations": "phys|gpu|normal\n",
            "qos": "normal|2-00:00:00||\ndebug|00:30:00|1|2\n",
        }
    )
    assert (profile.name, profile.clusters) == ("big-one", ["Big One"])
    settings = {setting.key: setting.value for setting in profile.settings}
    assert settings["slurm.required"] == ("partition",)
    assert settings["limits.running.debug"] == 1 and settings["limits.submitted.debug"] == 2
    for words in ("partition gpu: MaxTime=1-00:00:00", "TYPE:N: a100", "phys|gpu|normal", "Slingshot", "10.0.0.1"):
        assert words in text


def test_without_any_answer_there_is_still_a_profile() -> None:
    text, profile = draft({})
    assert (profile.name, profile.clusters) == ("login1", ["login1"])
    assert "Slurm knows no GPUs here" in text


@given(st.dictionaries(st.sampled_from(list(NONE)), st.text()), st.text(min_size=1))
def test_no_text_of_slurm_breaks_the_draft(texts: dict[str, str], cluster: str) -> None:
    draft({**texts, "config": f"ClusterName = {cluster}\n" + texts.get("config", "")})
