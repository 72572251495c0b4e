"""Parses YAML into settings that know their line.

It reads nodes, not objects: every key needs its mark, and strings must stay as written. YAML 1.1 would turn an account
``0123`` into 83 and a time ``1:30`` into 90.

Imported late, where there is a text to parse: PyYAML takes a tenth of the time in which a program loads its modules.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path

import yaml

from monarch_hpc.config.schema import SITE_ONLY, convert, known_keys
from monarch_hpc.config.setting import Setting, unknown_key
from monarch_hpc.core.errors import ConfigError

__all__ = ["parse_document", "parse_value"]

# The C parser is ten times as fast, but missing from a PyYAML that was built without libyaml.
_Loader: type[yaml.SafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_NULL = "tag:yaml.org,2002:null"
_ALIAS_REFUSED = "an alias (*name) is not supported; write the value itself, in quotes if it begins with *"


def parse_document(text: str, name: str) -> list[Setting]:
    """Parse all settings of a configuration file.

    `match`, `checked` and `source`, which only profiles have, are returned as plain values under their own names.

    Args:
        text: the file's text.
        name: the file's name in errors and origins.

    Raises:
        ConfigError: the text is not YAML, a key is unknown, or a value has a wrong type; names file and line.
    """
    try:
        if line := _find_alias(text):
            raise ConfigError("", "", f"{name}:{line}", _ALIAS_REFUSED)
        loader = _Loader(text)
        root = loader.get_single_node()
        return [] if root is None else list(_settings(loader, root, name))
    except yaml.YAMLError as error:
        raise _syntax_error(error, name) from error
    except (ValueError, RecursionError) as error:
        # PyYAML does not wrap these, e.g. for the date 2026-13-45.
        raise ConfigError("", "", name, f"a value that cannot be read: {error}") from error


def parse_value(key: str, text: str, source: str) -> object:
    """Parse the value of *key* from the text of an environment variable.

    Strings are taken verbatim, and an empty one unsets a key that may be null; all other types are YAML.
    """
    kind = known_keys()[key]
    if _is_text(kind):
        return convert(key, text or (None if isinstance(kind, types.UnionType) else text), kind, source)
    try:
        if _find_alias(text):
            raise ConfigError(key, repr(text), source, _ALIAS_REFUSED)
        loader = _Loader(text)
        root = loader.get_single_node()
        value = None if root is None else _leaf(loader, root, kind)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(key, repr(text), source, "is not a YAML value") from error
    return convert(key, value, kind, source)


def _find_alias(text: str) -> int:
    """Return the first line with an alias, 0 if there is none: a few dozen nested ones expand to any size."""
    if "*" not in text:
        return 0
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.AliasEvent) and event.start_mark is not None:
            return event.start_mark.line + 1
    return 0


def _settings(loader: yaml.SafeLoader, root: yaml.Node, name: str) -> Iterator[Setting]:
    for top, node in _pairs(root, name, "the file"):
        if top in SITE_ONLY:
            yield Setting(top, loader.construct_object(node, deep=True), _at(name, node))
        else:
            yield from _section(loader, top, node, name)


def _section(loader: yaml.SafeLoader, key: str, node: yaml.Node, name: str) -> Iterator[Setting]:
    """Parse a key, or all keys of a section and its subsections."""
    keys = known_keys()
    if key in keys:
        yield from _setting(loader, key, node, keys[key], name)
    elif not any(known.startswith(f"{key}.") for known in keys):
        raise unknown_key(key, _at(name, node))
    elif node.tag != _NULL:  # a section whose keys are all commented out
        for part, part_node in _pairs(node, name, key):
            yield from _section(loader, f"{key}.{part}", part_node, name)


def _setting(loader: yaml.SafeLoader, key: str, node: yaml.Node, kind: object, name: str) -> Iterator[Setting]:
    if typing.get_origin(kind) is Mapping and isinstance(node, yaml.MappingNode):
        # An empty mapping is a setting, too: its key has a default and an origin.
        if not node.value:
            yield Setting(key, {}, _at(name, node))
        for flag, flag_node in _pairs(node, name, key):
            source = _at(name, flag_node)
            value = convert(key, {flag: _leaf(loader, flag_node, _part_kind(kind))}, kind, source)
            yield Setting(f"{key}.{flag}", typing.cast("dict[str, object]", value)[flag], source)
        return
    source = _at(name, node)
    yield Setting(key, convert(key, _leaf(loader, node, kind), kind, source), source)


def _leaf(loader: yaml.SafeLoader, node: yaml.Node, kind: object) -> object:
    """Construct a value; one that may be a string stays as written."""
    if isinstance(node, yaml.SequenceNode):
        return [_leaf(loader, part, str) for part in node.value]
    if isinstance(node, yaml.MappingNode):
        return {key: _leaf(loader, part, _part_kind(kind)) for key, part in _pairs(node, "", "")}
    value: object = loader.construct_object(node)
    keeps_bool = not _is_text(kind) and isinstance(value, bool)
    wants_number = kind in (int, float, int | None)
    if value is None or keeps_bool or wants_number:
        return value
    return str(node.value)


def _part_kind(kind: object) -> object:
    """Return the type of a mapping's values; *kind* itself if it is no mapping."""
    return typing.get_args(kind)[1] if typing.get_origin(kind) is Mapping else kind


def _pairs(node: yaml.Node, name: str, what: str) -> Iterator[tuple[str, yaml.Node]]:
    if not isinstance(node, yaml.MappingNode):
        raise ConfigError("", "", _at(name, node), f"{what} must be a mapping of 'key: value' lines")
    seen: set[str] = set()
    for key_node, value_node in node.value:
        key = str(key_node.value)
        if key in seen:
            raise ConfigError("", "", _at(name, key_node), f"key {key!r} is repeated")
        seen.add(key)
        yield key, value_node


def _is_text(kind: object) -> bool:
    return kind in (str, Path) or kind in (str | None, Path | None) or typing.get_origin(kind) is typing.Literal


def _at(name: str, node: yaml.Node) -> str:
    return f"{name}:{node.start_mark.line + 1}"


def _syntax_error(error: yaml.YAMLError, name: str) -> ConfigError:
    mark = error.problem_mark if isinstance(error, yaml.MarkedYAMLError) else None
    problem = error.problem if isinstance(error, yaml.MarkedYAMLError) else str(error)
    return ConfigError("", "", f"{name}:{mark.line + 1}" if mark else name, f"not valid YAML: {problem}")
