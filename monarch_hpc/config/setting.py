"""One value of the configuration and its origin, and the error for a key that there is not."""

from __future__ import annotations

from monarch_hpc.config.schema import known_keys
from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.errors import ConfigError

__all__ = ["Setting", "unknown_key"]


@dataclass(frozen=True)
class Setting:
    """One value for one key.

    Args:
        key: dotted; each flag of a mapping of flags has its own key, ``slurm.job_flags.no-kill``.
        value: converted to the key's type.
        origin: ``file:line``, ``$VARIABLE`` or ``command line``.
    """

    key: str
    value: object
    origin: str


def unknown_key(key: str, source: str) -> ConfigError:
    """Return the error for an unknown key, which suggests similar ones."""
    # Imported here, since it is only needed for this error.
    import difflib

    known = list(known_keys())
    sections = {name.split(".")[0] for name in known}
    near = difflib.get_close_matches(key, known, n=3, cutoff=0.75)
    section = key.split(".")[0]
    if near:
        advice = "did you mean " + " or ".join(near) + "?"
    elif section in sections:
        names = [k.removeprefix(f"{section}.") for k in known if k.startswith(f"{section}.")]
        advice = f"known keys of {section}: " + ", ".join(names)
    else:
        advice = "known: " + ", ".join(sorted(sections))
    return ConfigError("", "", source, f"unknown key {key!r}; {advice}")
