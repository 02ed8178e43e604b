"""API keys: the clients that may send requests, with their limits and priorities. The server stores only the SHA-256
hashes of the keys.

The file of keys is TOML with one table for each key::

    [[keys]]
    name = "web"                  # what logs call it
    key = "sk-..."                # or sha256 = "..." of it, in hex
    requests_per_minute = 120     # these five may be left out; each answer of a request counts (n, prompts)
    tokens_per_minute = 20000     # of prompts and answers
    max_concurrent = 8            # answers
    priority = 0
    admin = false

The environment variable NEARFAR_API_KEYS holds ``name=key`` pairs with commas between them, without limits; the key
named ``admin`` is the admin's.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nearfar.compiler.runtime.errors import RequestError

# Of characters.
MIN_KEY_LENGTH = 8
ENVIRONMENT = "NEARFAR_API_KEYS"


@dataclass(frozen=True, slots=True)
class ApiKey:
    """``digest`` is the key's SHA-256. Its requests have at most ``priority``. None means no limit."""

    name: str
    digest: bytes
    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None
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
        digest = digest_of(presented)
        found = None
        for key in self.keys:
            if hmac.compare_digest(key.digest, digest):
                found = key
        return found


def read_keys(file: Path | None, environment: Mapping[str, str], own: Sequence[ApiKey] = ()) -> Keys:
    """The keys of a file, of the environment, and the ``own`` ones of a server's configuration together. Raises
    RequestError, which never quotes a key.
    """
    keys = [*own]
    if file is not None:
        from .key_file import read_key_file

        keys += read_key_file(file)
    keys += _of_environment(environment.get(ENVIRONMENT, ""))
    for part in ("name", "digest"):
        values = [getattr(key, part) for key in keys]
        if len(set(values)) != len(values):
            raise RequestError(
                f"two API keys have the same {'name' if part == 'name' else 'text'}; give each key its own"
            )
    return Keys(tuple(keys))


def _of_environment(text: str) -> list[ApiKey]:
    keys = []
    for number, pair in enumerate(filter(None, (part.strip() for part in text.split(","))), 1):
        name, equals, key = pair.partition("=")
        if not equals or not name or len(key) < MIN_KEY_LENGTH:
            raise RequestError(
                f"{ENVIRONMENT}: entry {number} is not name=key with a key of at least {MIN_KEY_LENGTH} characters"
            )
        keys.append(ApiKey(name, digest_of(key), admin=name == "admin"))
    return keys


def digest_of(key: str) -> bytes:
    """What the server stores of a key."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
