"""API keys: the clients that may send requests, with their limits and priorities. The server stores only the SHA-256
hashes of the keys.

The file of keys is TOML with one table for each key::

    [[keys]]
    name = "web"                  # what logs call it
    key = "sk-..."                # or sha256 = "..." of it, in hex
    requests_per_minute = 120     # these four may be left out; each answer of a request counts (n, prompts)
    max_concurrent = 8            # answers
    priority = 0
    admin = false

The environment variable NEARFAR_API_KEYS holds ``name=key`` pairs with commas between them, without limits; the key
named ``admin`` is the admin's.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from nearfar.compiler.runtime.errors import RequestError, reason_of

# Of characters.
MIN_KEY_LENGTH = 8
ENVIRONMENT = "NEARFAR_API_KEYS"


@dataclass(frozen=True, slots=True)
class ApiKey:
    """``digest`` is the key's SHA-256. Its requests have at most ``priority``. None means no limit."""

    name: str
    digest: bytes
    requests_per_minute: float | None = None
    max_concurrent: int | None = None
    priority: int = 0
    admin: bool = False


@dataclass(frozen=True, slots=True)
class Keys:
    """All keys. Without any, the API is open."""

    keys: tuple[ApiKey, ...] = ()

    def find(self, presented: str) -> ApiKey | None:
        """The key with this text. It compares the text with every key in constant time, so that the time reveals
        nothing.
        """
        digest = _digest(presented)
        found = None
        for key in self.keys:
            if hmac.compare_digest(key.digest, digest):
                found = key
        return found


def read_keys(file: Path | None, environment: Mapping[str, str]) -> Keys:
    """The keys of a file and of the environment together. Raises RequestError, which never quotes a key."""
    keys = [*(_of_file(file) if file is not None else ()), *_of_environment(environment.get(ENVIRONMENT, ""))]
    for part in ("name", "digest"):
        values = [getattr(key, part) for key in keys]
        if len(set(values)) != len(values):
            raise RequestError(
                f"two API keys have the same {'name' if part == 'name' else 'text'}; give each key its own"
            )
    return Keys(tuple(keys))


def _of_file(file: Path) -> list[ApiKey]:
    from .key_file import KeyFile, ValidationError

    try:
        rows = KeyFile.model_validate(tomllib.loads(file.read_text(encoding="utf-8"))).keys
    except OSError as error:
        raise RequestError(
            f"--api-keys {file}: cannot be read: {reason_of(error)}; give a TOML file with [[keys]]"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        # The parser's own message may quote the line, and with it the key.
        where = re.search(r"\(at .*\)", str(error))
        raise RequestError(f"{file}: not TOML {where.group() if where else ''}".rstrip()) from None
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        raise RequestError(f"{file}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    keys = []
    for row in rows:
        if (row.key is None) == (row.sha256 is None):
            raise RequestError(f"{file}: key {row.name!r} needs exactly one of 'key' and 'sha256'")
        digest = _digest(row.key) if row.key is not None else bytes.fromhex(row.sha256 or "")
        keys.append(ApiKey(row.name, digest, row.requests_per_minute, row.max_concurrent, row.priority, row.admin))
    return keys


def _of_environment(text: str) -> list[ApiKey]:
    keys = []
    for number, pair in enumerate(filter(None, (part.strip() for part in text.split(","))), 1):
        name, equals, key = pair.partition("=")
        if not equals or not name or len(key) < MIN_KEY_LENGTH:
            raise RequestError(
                f"{ENVIRONMENT}: entry {number} is not name=key with a key of at least {MIN_KEY_LENGTH} characters"
            )
        keys.append(ApiKey(name, _digest(key), admin=name == "admin"))
    return keys


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
