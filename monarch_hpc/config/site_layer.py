"""The layers below a user's own: the profile of the site, and the administrators' folder.

Files of that folder with a `match` are profiles, and replace ours of the same name; the others hold settings for every
user of this machine, and override the profile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from monarch_hpc.config.schema import SITE_ONLY
from monarch_hpc.config.setting import Setting
from monarch_hpc.config.shipped import read_shipped
from monarch_hpc.config.site import Profile, choose_profile, head_of, parse_profile
from monarch_hpc.config.trusted_file import read_trusted
from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.errors import ConfigError
from monarch_hpc.core.storage.assets import asset

__all__ = ["ADMIN_FOLDER", "SiteLayer", "own_settings", "read_site_layer"]

ADMIN_FOLDER = Path("/etc/monarch-hpc.d")


@dataclass(frozen=True)
class SiteLayer:
    """The settings of the site; *profile* is None if no profile matches."""

    profile: Profile | None
    settings: Sequence[Setting]


def read_site_layer(
    wanted: Setting | None, environ: Mapping[str, str], hostname: str, cluster_name: str | None, admin: Path
) -> SiteLayer:
    """Read the site's profile and the administrators' settings.

    Args:
        wanted: the user's setting of key `site`; None to take the administrators', or recognise the site.
        admin: the administrators' folder; it need not exist.

    Raises:
        ConfigError: a file is wrong, several profiles match, or there is no such profile.
    """
    texts: dict[str, str] = {}
    sources: dict[str, str] = {}
    profiles: dict[str, Profile] = {}
    settings: list[Setting] = []
    for path in sorted(asset("configs", "sites").glob("*.yaml")):
        source = f"configs/sites/{path.name}"
        profile = parse_profile(read_shipped(f"sites/{path.name}", head=True), source)
        profiles[profile.name], sources[profile.name] = profile, source
    for path in sorted(admin.glob("*.yaml")):
        text = read_trusted(path) or ""
        head = _parse(head_of(text), str(path))
        if any(setting.key == "match" for setting in head):
            profile = parse_profile(head, str(path))
            profiles[profile.name], sources[profile.name], texts[profile.name] = profile, str(path), text
        else:
            settings += own_settings(text, path)
    wanted = wanted or next((setting for setting in reversed(settings) if setting.key == "site"), None)
    chosen = _choose([*profiles.values()], wanted, environ, hostname, cluster_name)
    if chosen is None:
        return SiteLayer(None, settings)
    source = sources[chosen.name]
    whole: Sequence[Setting]
    if chosen.name in texts:
        whole = _parse(texts[chosen.name], source)
    else:
        whole = read_shipped(source.removeprefix("configs/"), head=False)
    profile = parse_profile(whole, source)
    return SiteLayer(profile, [*profile.settings, *settings])


def own_settings(text: str, path: Path) -> list[Setting]:
    """Parse a file that holds settings, not a profile."""
    settings = _parse(text, str(path))
    for setting in settings:
        if setting.key in SITE_ONLY:
            problem = "only a profile in configs/sites or /etc/monarch-hpc.d has this key, in its head"
            raise ConfigError(setting.key, "...", setting.origin, problem)
    return settings


def _parse(text: str, name: str) -> list[Setting]:
    from monarch_hpc.config.document import parse_document  # late: it loads PyYAML

    return parse_document(text, name)


def _choose(
    profiles: Sequence[Profile],
    wanted: Setting | None,
    environ: Mapping[str, str],
    hostname: str,
    cluster_name: str | None,
) -> Profile | None:
    if wanted is None:
        return choose_profile(profiles, environ, hostname, cluster_name)
    if wanted.value == "generic":
        return None
    found = next((profile for profile in profiles if profile.name == wanted.value), None)
    if found is None:
        known = ", ".join(["generic", *sorted(profile.name for profile in profiles)])
        raise ConfigError("site", str(wanted.value), wanted.origin, f"no such profile; known: {known}")
    return found
