"""Reads untrusted JSON files. Every defect becomes a CheckpointError with the file and the position."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..runtime.errors import CheckpointError, reason_of

GIT_LFS_HEAD = b"version https://git-lfs"


def read_json_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file. Raises CheckpointError if it is missing, unreadable, not JSON, or not an object."""
    return parse_json_object(_read(path), str(path))


def read_json(path: Path) -> Any:
    """The value in a JSON file. Raises CheckpointError if it is missing, unreadable or not JSON."""
    return _parse(_read(path), str(path))


def parse_json_object(content: bytes, where: str) -> dict[str, Any]:
    """The JSON object in UTF-8 bytes. A repeated key is an error, because readers differ in which value they use."""
    parsed = _parse(content, where)
    if not isinstance(parsed, dict):
        raise CheckpointError(
            f"{where}: contains a JSON {json_kind(parsed)}, but an object is expected; download it again", file=where
        )
    return parsed


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise CheckpointError(
            f"{path}: cannot be read: {reason_of(error)}; download it again", file=str(path)
        ) from error


def _parse(content: bytes, where: str) -> Any:
    reject_git_lfs_pointer(content, where)
    try:
        parsed = json.loads(content.decode("utf-8"), object_pairs_hook=_unique_keys)
    except UnicodeDecodeError as error:
        raise CheckpointError(
            f"{where}: byte {error.start} is not UTF-8; the file is corrupt, download it again", file=where
        ) from error
    except json.JSONDecodeError as error:
        raise CheckpointError(
            f"{where}: line {error.lineno} column {error.colno}: not valid JSON ({error.msg}); "
            "the file is corrupt, download it again",
            file=where,
            line=error.lineno,
            column=error.colno,
        ) from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{where}: not usable JSON ({error}); the file is corrupt, download it again", file=where
        ) from error
    if b"\\u" in content:
        _require_unicode(parsed, where)
    return parsed


def _require_unicode(parsed: Any, where: str) -> None:
    """Raise CheckpointError for half of a surrogate pair, which JSON can spell but neither a bundle nor a tokenizer can
    hold.
    """
    try:
        json.dumps(parsed, ensure_ascii=False).encode()
    except (UnicodeEncodeError, RecursionError) as error:
        raise CheckpointError(
            f"{where}: not usable JSON ({error}); the file is corrupt, download it again", file=where
        ) from error


def reject_git_lfs_pointer(head: bytes, where: str) -> None:
    """Raise CheckpointError if a file is the pointer that Git LFS stores in place of a large file."""
    if head.startswith(GIT_LFS_HEAD):
        raise CheckpointError(
            f"{where}: is a Git LFS pointer, not the file itself; run 'git lfs pull' in its folder", file=where
        )


def json_kind(value: object) -> str:
    """The JSON type of a parsed value: "string", "number", "null"..."""
    if value is None:
        return "null"
    kinds = {bool: "boolean", int: "number", float: "number", str: "string", list: "array", dict: "object"}
    return kinds.get(type(value), type(value).__name__)


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    merged = dict(pairs)
    if len(merged) != len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"key {repeated!r} occurs twice")
    return merged
