"""Files that have a text which no reader here finds, by their first bytes and their names:
`web/src/shared/file_kinds.ts` lists them.
"""

from __future__ import annotations

from nearfar.compiler.shared.script import SharedScript

from .text_encoding import maybe_utf16

# Files of these names are named among those that cannot be read; others, such as images, are left out.
SUFFIXES = (".doc", ".rtf", ".xls", ".xlsx", ".xlsm", ".xlsb", ".ods", ".numbers", ".ppt", ".pptx", ".ppsx", ".odp",
            ".key", ".odt", ".pages", ".epub")  # fmt: skip
START_BYTES = 16
# Names of Word documents, and of files that programs other than Word save under these names.
WORD_NAME = r"\.do[ct][xm]?$"


def unreadable_kind(name: str, data: bytes) -> str | None:
    """The rest of a sentence about the file: what it is, and what to do; None if it may be a text."""
    start = data[:START_BYTES].decode("latin-1")
    kind: str | None = SharedScript.of_thread().ask("unreadableKind", name, start)
    return kind


def not_text(data: bytes) -> str:
    """The same for bytes that are not text in an encoding that we know."""
    reason: str = SharedScript.of_thread().ask("notText", b"\0" in data and not maybe_utf16(data))
    return reason
