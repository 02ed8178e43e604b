"""The tables of API keys in a file, as pydantic checks them. They are apart from `keys.py`, because help texts import
nothing slow.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from nearfar.compiler.given_file import read_given_text
from nearfar.compiler.nearest import did_you_mean
from nearfar.compiler.runtime.errors import RequestError, reason_of

from .keys import MIN_KEY_LENGTH, ApiKey, digest_of

PerMinute = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class KeyRow(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    name: Annotated[str, Field(min_length=1, max_length=64)]
    key: Annotated[str, Field(min_length=MIN_KEY_LENGTH)] | None = None
    sha256: Annotated[str, Field(pattern="^[0-9a-fA-F]{64}$")] | None = None
    requests_per_minute: PerMinute | None = None
    tokens_per_minute: PerMinute | None = None
    max_concurrent: Annotated[int, Field(ge=1)] | None = None
    priority: int = 0
    admin: bool = False


class KeyFile(BaseModel):
    model_config = ConfigDict(extra="forbid")

    keys: Annotated[list[KeyRow], Field(min_length=1)]


def read_key_file(file: Path) -> tuple[ApiKey, ...]:
    """Raises RequestError, which never quotes a key."""
    try:
        return _keys_of(tomllib.loads(read_given_text(file)))
    except OSError as error:
        raise RequestError(
            f"--api-keys {file}: cannot be read: {reason_of(error)}; give a TOML file with [[keys]]"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        # The parser's own message may quote the line, and with it the key.
        where = re.search(r"\(at .*\)", str(error))
        raise RequestError(f"{file}: not TOML {where.group() if where else ''}".rstrip()) from None
    except ValueError as error:
        raise RequestError(f"{file}: {error}") from None


def keys_of(tables: Any) -> tuple[ApiKey, ...]:
    """The keys of the tables [[keys]]. Raises ValueError, which never quotes a key."""
    return _keys_of({"keys": tables})


def _keys_of(table: dict[str, Any]) -> tuple[ApiKey, ...]:
    try:
        rows = KeyFile.model_validate(table).keys
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        place, reason = ".".join(map(str, first["loc"])), first["msg"]
        if first["type"] == "extra_forbidden":
            known = KeyFile.model_fields if len(first["loc"]) == 1 else KeyRow.model_fields
            reason = f"unknown key{did_you_mean(str(first['loc'][-1]), known)}"
        raise ValueError(f"{place}: {reason}") from None
    return tuple(map(_key_of, rows))


def _key_of(row: KeyRow) -> ApiKey:
    if (row.key is None) == (row.sha256 is None):
        raise ValueError(f"key {row.name!r} needs exactly one of 'key' and 'sha256'")
    return ApiKey(
        row.name,
        digest_of(row.key) if row.key is not None else bytes.fromhex(row.sha256 or ""),
        row.requests_per_minute,
        row.tokens_per_minute,
        row.max_concurrent,
        row.priority,
        row.admin,
    )
