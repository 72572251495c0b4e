"""JSON objects in the allocation's directory, with a schema number, and fields that are read by type."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from monarch_hpc.core.errors import ConfigError
from monarch_hpc.core.storage.files import read_json, write_json

__all__ = ["SCHEMA", "Document", "read_document", "write_document"]

SCHEMA = 1


class Document:
    """A JSON object. Its methods raise `ConfigError` if a field is missing or of another type.

    Args:
        value: the parsed JSON.
        source: its file or sender, for errors.
    """

    def __init__(self, value: object, source: str) -> None:
        self.source = source
        if not isinstance(value, dict):
            raise self.unreadable("")
        self.fields: dict[str, object] = value

    def unreadable(self, key: str) -> ConfigError:
        """Make the error for a field that this version does not write."""
        return ConfigError(key, "", self.source, "is not what this version of monarch-hpc writes")

    def whole(self, key: str) -> int:
        """Return a whole number."""
        value = self.fields.get(key)
        if type(value) is not int:
            raise self.unreadable(key)
        return value

    def text(self, key: str) -> str:
        """Return a text."""
        value = self.fields.get(key)
        if not isinstance(value, str):
            raise self.unreadable(key)
        return value

    def texts(self, key: str) -> list[str]:
        """Return a list of texts."""
        values = self._list(key)
        if not all(isinstance(value, str) for value in values):
            raise self.unreadable(key)
        return [str(value) for value in values]

    def document(self, key: str) -> Document:
        """Return an object."""
        return Document(self.fields.get(key), self.source)

    def documents(self, key: str) -> list[Document]:
        """Return a list of objects."""
        return [Document(value, self.source) for value in self._list(key)]

    def _list(self, key: str) -> list[object]:
        value = self.fields.get(key)
        if not isinstance(value, list):
            raise self.unreadable(key)
        return value


def read_document(path: Path) -> Document:
    """Read a file that `write_document` or the batch script wrote.

    Raises:
        FileNotFoundError: there is no such file.
        ConfigError: the file is another user's, or was not written by this version.
    """
    document = Document(read_json(path), str(path))
    if document.whole("schema") != SCHEMA:
        raise document.unreadable("schema")
    return document


def write_document(path: Path, fields: Mapping[str, object], *, durable: bool = False) -> None:
    """Write *fields* with the schema number.

    Args:
        durable: see `core.storage.files.write_private`; what agents say of themselves ends with a crash, too.
    """
    write_json(path, {"schema": SCHEMA, **fields}, durable=durable)
