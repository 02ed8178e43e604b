"""Sealed files: a page's bytes so that a reader notices when they are damaged, or are those of another name.

A plain file is a magic number, the SHA-256 of the name and the data, and the data. An encrypted one is a magic number,
a nonce, and what AES-GCM makes of the data with the name (NIST SP 800-38D).
"""

from __future__ import annotations

import hmac
import os
from hashlib import sha256
from pathlib import Path

from nearfar.compiler.given_file import read_given
from nearfar.compiler.runtime.errors import RequestError, ToolError, reason_of

# The last character is the version.
PLAIN, ENCRYPTED = b"nearfar kv    \0\1", b"nearfar kv aes\0\1"
DIGEST_BYTES, NONCE_BYTES, KEY_BYTES, TAG_BYTES = 32, 12, 32, 16


class PlainSeal:
    """Everybody who may read the files can read the pages. ``fingerprint`` names the seal."""

    fingerprint = "plain"
    extra_bytes = len(PLAIN) + DIGEST_BYTES

    def file_name(self, name: bytes) -> str:
        return name.hex()

    def seal(self, name: bytes, data: bytes) -> bytes:
        return b"".join((PLAIN, sealed_digest(name, data), data))

    def open(self, name: bytes, sealed: bytes) -> bytes | None:
        """The data, None if they are damaged."""
        view = memoryview(sealed)
        digest, data = view[len(PLAIN) : self.extra_bytes], view[self.extra_bytes :]
        if view[: len(PLAIN)] != PLAIN or digest != sealed_digest(name, data):
            return None
        return bytes(data)


class EncryptedSeal:
    """Without the key, nobody can read the pages or tell which prompts they are of."""

    extra_bytes = len(ENCRYPTED) + NONCE_BYTES + TAG_BYTES

    def __init__(self, key: bytes) -> None:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        self._names = hmac.digest(key, b"nearfar kv names", "sha256")
        self._aes = AESGCM(hmac.digest(key, b"nearfar kv pages", "sha256"))
        self.fingerprint = hmac.digest(key, b"nearfar kv folder", "sha256").hex()[:16]

    def file_name(self, name: bytes) -> str:
        return hmac.digest(self._names, name, "sha256").hex()

    def seal(self, name: bytes, data: bytes) -> bytes:
        nonce = os.urandom(NONCE_BYTES)
        return b"".join((ENCRYPTED, nonce, self._aes.encrypt(nonce, data, ENCRYPTED + name)))

    def open(self, name: bytes, sealed: bytes) -> bytes | None:
        """The data, None if they are damaged."""
        from cryptography.exceptions import InvalidTag

        start = len(ENCRYPTED) + NONCE_BYTES
        if sealed[: len(ENCRYPTED)] != ENCRYPTED or len(sealed) < self.extra_bytes:
            return None
        try:
            data: bytes = self._aes.decrypt(sealed[len(ENCRYPTED) : start], sealed[start:], ENCRYPTED + name)
        except InvalidTag:
            return None
        return data


def sealed_digest(name: bytes, data: bytes | memoryview) -> bytes:
    digest = sha256(name)
    digest.update(data)
    return digest.digest()


def open_seal(key_file: Path | None) -> PlainSeal | EncryptedSeal:
    """Raises RequestError for a file that is not a key, ToolError without the library of ciphers."""
    if key_file is None:
        return PlainSeal()
    try:
        content = read_given(key_file)
    except OSError as error:
        raise RequestError(f"--kv-key-file {key_file}: cannot be read: {reason_of(error)}") from error
    key = content
    if len(content) != KEY_BYTES:
        try:
            key = bytes.fromhex(content.decode("ascii").strip())
        except ValueError:
            key = b""
    if len(key) != KEY_BYTES:
        raise RequestError(
            f"--kv-key-file {key_file}: is not a key of {KEY_BYTES} bytes, or of {2 * KEY_BYTES} hexadecimal digits; "
            f"make one with: openssl rand -hex {KEY_BYTES}"
        )
    try:
        return EncryptedSeal(key)
    except ImportError as error:
        raise ToolError(
            "--kv-key-file needs the library cryptography, which is not installed; pip install 'nearfar[sign]'"
        ) from error
