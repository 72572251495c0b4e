"""The draft of a site's profile, from Slurm's own answers.

Only what Slurm says becomes a setting; what a person must decide stands beside it, as a comment.
"""

from __future__ import annotations

import datetime
import os
import pwd
import re
import time
from collections.abc import Iterator, Mapping, Sequence

from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.machine.interfaces import read_interfaces
from monarch_hpc.slurm.commands.client import SlurmClient

__all__ = ["SlurmAnswers", "ask_slurm", "draft_profile"]

# All questions together; one that is late is left out.
_ALL_S = 30.0
_QUESTIONS: Mapping[str, Sequence[str]] = {
    "config": ("scontrol", "show", "config"),
    "partitions": ("scontrol", "--oneliner", "show", "partition"),
    "nodes": ("sinfo", "--noheader", "--format=%R|%D|%c|%m|%G|%f"),
    # Without a name, sacctmgr lists the associations of all users that this one may see.
    "associations": ("sacctmgr", "-nP", "show", "assoc", "user={user}", "format=account,partition,qos"),
    "qos": ("sacctmgr", "-nP", "show", "qos", "format=name,maxwall,maxjobspu,maxsubmitjobspu"),
}
_MAX_ASSOCIATIONS = 20
_SHOWN = (
    *("MaxTime", "DefaultTime", "MaxNodes", "TotalNodes", "OverSubscribe"),
    *("AllowGroups", "AllowAccounts", "AllowQos"),
)
_FIELD = re.compile(r"(?:^|\s)([A-Z][A-Za-z0-9]*)=(\S*)")


@dataclass(frozen=True, slots=True)
class SlurmAnswers:
    """Slurm's answers, by question; an answer that did not come is empty.

    Args:
        interfaces: this machine's, name -> IPv4 address.
        hostname: this machine's name.
    """

    texts: Mapping[str, str]
    interfaces: Mapping[str, str]
    hostname: str
    today: datetime.date


def ask_slurm(slurm: SlurmClient) -> SlurmAnswers:
    """Ask Slurm what a profile needs: five requests, and at most half a minute."""
    end_s = time.monotonic() + _ALL_S
    user = pwd.getpwuid(os.geteuid()).pw_name
    texts = {}
    for name, words in _QUESTIONS.items():
        argv = [word.format(user=user) if word.startswith("user=") else word for word in words]
        left_s = end_s - time.monotonic()
        texts[name] = slurm.probe(argv, left_s) if left_s > 0 else ""
    return SlurmAnswers(texts, read_interfaces(), os.uname().nodename, datetime.date.today())


def draft_profile(answers: SlurmAnswers) -> str:
    """Return the text of a profile, which loads as it is."""
    return "\n".join(_lines(answers)) + "\n"


def _lines(answers: SlurmAnswers) -> Iterator[str]:
    settings = dict(_settings(answers.texts["config"]))
    cluster = settings.get("ClusterName", "") or answers.hostname
    version = settings.get("SLURM_VERSION", "unknown")
    yield f"# Draft of the profile of {_plain(cluster)}, Slurm {_plain(version)}."
    yield "# Read each line, and compare it with the site's documentation."
    yield f"site: {_name(cluster)}"
    yield f"checked: {answers.today}"
    yield f"source: doctor --write-profile on {_plain(answers.hostname)}"
    yield "match:"
    yield f'  cluster: ["{_plain(cluster)}"]'
    yield ""
    yield "slurm:"
    lines = [line for line in answers.texts["partitions"].splitlines() if line.startswith("PartitionName=")]
    partitions = [dict(_FIELD.findall(line)) for line in lines]
    default = [found["PartitionName"] for found in partitions if found.get("Default") == "YES"]
    yield from (f"  # {_partition(found)}" for found in partitions)
    if partitions and not default:
        yield "  # No partition is the default."
        yield "  required: [partition]"
    elif default:
        yield f"  # Jobs without -p go to {_plain(default[0])}."
    if "associations" in settings.get("AccountingStorageEnforce", "").lower():
        yield "  # Jobs need an account that you have; without -A, Slurm takes your default account."
    associations = answers.texts["associations"].splitlines()
    yield from (f"  # account|partition|qos: {_plain(line)}" for line in associations[:_MAX_ASSOCIATIONS])
    typed = sorted(set(re.findall(r"gpu:([A-Za-z][\w.-]*):\d+", answers.texts["nodes"])))
    if typed:
        yield f"  # GPUs are of these types, for --gpus-per-node TYPE:N: {', '.join(typed)}"
    elif "gpu" not in answers.texts["nodes"]:
        yield "  # Slurm knows no GPUs here. If nodes have some, a partition implies them:"
        yield "  # gpus_form: none"
    yield "  # Least time between two requests that the site permits; many ask for 60 s."
    yield "  poll_min_s: 5"
    yield from _limits(answers.texts["qos"])
    yield ""
    yield "paths:"
    yield "  # 'monarch-hpc doctor NAME' shows whether hosts can write paths.shared."
    yield "  home_on_compute: rw"
    names = ", ".join(f"{name} {address}" for name, address in answers.interfaces.items())
    yield ""
    yield f"# Interfaces here: {names}. All that route are used, unless fabric.interfaces names some."
    if "slingshot" in settings.get("SwitchType", ""):
        yield "# The network is Slingshot: see slurm.network, and NCCL's variables in agent.env."


def _limits(text: str) -> Iterator[str]:
    rows = [line.split("|") for line in text.splitlines() if line.count("|") == 3]
    kinds = (("running", 2), ("submitted", 3))
    found = {
        kind: {row[0]: row[column] for row in rows if row[column].isdecimal() and _is_name(row[0])}
        for kind, column in kinds
    }
    if any(found.values()):
        yield ""
        yield "limits:"
        for kind, numbers in found.items():
            if numbers:
                yield f"  {kind}: {{{', '.join(f'{name}: {number}' for name, number in numbers.items())}}}"


def _settings(text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        key, equals, value = line.partition("=")
        if equals:
            yield key.strip(), value.strip()


def _partition(fields: Mapping[str, str]) -> str:
    words = [f"{name}={fields[name]}" for name in _SHOWN if name in fields]
    return _plain(f"partition {fields['PartitionName']}: {' '.join(words)}")


def _plain(text: str) -> str:
    """Return *text* without what would end a comment or a quoted word."""
    return "".join(character for character in text if character.isprintable() and character not in '"\\')[:200]


def _name(text: str) -> str:
    return re.sub(r"[^a-z0-9_-]", "-", text.lower()).strip("-") or "site"


def _is_name(text: str) -> bool:
    return re.fullmatch(r"[A-Za-z0-9_.-]+", text) is not None
