"""Signatures, which prove who made a bundle.

manifest.json holds the SHA-256 of every other file, so a signature of its bytes covers the complete bundle.
manifest.json.sig contains an Ed25519 signature (RFC 8032), 64 bytes in base64, and the id of the key. Keys are PEM
files, as `openssl genpkey -algorithm ed25519` writes them. A change of the manifest, such as compiling again with other
tuning records, invalidates the signature: sign again.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..given_file import read_given
from ..runtime.errors import BundleError, OutputError, RequestError, ToolError, reason_of

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

SIGNATURE_FILE = "manifest.json.sig"
ALGORITHM = "ed25519"
# A signature file has only about 150 bytes.
MAX_SIGNATURE_BYTES = 4096


@dataclass(frozen=True, slots=True)
class TrustedKey:
    """A public key, and its id: the first 16 hexadecimal digits of the SHA-256 of its 32 bytes."""

    id: str
    key: Ed25519PublicKey


def read_trusted_keys(files: Sequence[Path]) -> tuple[TrustedKey, ...]:
    """Raises RequestError for a file that is not an Ed25519 public key in PEM, ToolError if the library is not
    installed.
    """
    if not files:
        return ()
    require_library()
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    keys = []
    for file in files:
        try:
            key = load_pem_public_key(read_key(file, "--trust"))
        except Exception as error:
            raise RequestError(
                f"--trust {file}: is not a public key in PEM; pass the NAME.pub file of 'nearfar sign --new-key'"
            ) from error
        if not isinstance(key, Ed25519PublicKey):
            raise RequestError(f"--trust {file}: is not an Ed25519 key; create one with 'nearfar sign --new-key NAME'")
        keys.append(TrustedKey(key_id(key), key))
    return tuple(keys)


def verify_signature(folder: Path, manifest: bytes, keys: Sequence[TrustedKey]) -> None:
    """Raises BundleError unless one of the keys signed these bytes of the manifest."""
    from cryptography.exceptions import InvalidSignature

    path = folder / SIGNATURE_FILE
    if not path.is_file():
        raise BundleError(
            f"{folder}: is not signed (no {SIGNATURE_FILE}), but --trust accepts only signed bundles; "
            "ask its author to sign it"
        )
    try:
        with path.open("rb") as file:
            entry = json.loads(file.read(MAX_SIGNATURE_BYTES))
        algorithm, key, signature = (
            entry["algorithm"],
            entry["key"],
            base64.b64decode(entry["signature"], validate=True),
        )
    except (OSError, ValueError, TypeError, KeyError, RecursionError, binascii.Error) as error:
        raise BundleError(
            f"{path}: is not a signature; sign the bundle again with 'nearfar sign {folder} --key FILE'"
        ) from error
    if algorithm != ALGORITHM:
        raise BundleError(f"{path}: has algorithm {str(algorithm)[:20]!r}, not {ALGORITHM}; use a newer nearfar")
    for trusted in keys:
        if trusted.id != key:
            continue
        try:
            trusted.key.verify(signature, manifest)
        except InvalidSignature:
            break
        return
    else:
        known = ", ".join(trusted.id for trusted in keys)
        raise BundleError(
            f"{folder}: is signed with key {str(key)[:20]!r}, which --trust does not list; trusted: {known}",
            key=str(key)[:20],
        )
    raise BundleError(
        f"{folder}: its manifest was changed after it was signed; download the bundle again, or sign it again",
        key=key,
    )


def sign(folder: Path, manifest: bytes, key_file: Path) -> str:
    """Write the signature of a bundle's manifest. Returns the id of the key.

    Raises RequestError for a file that is not a key, and OutputError.
    """
    key = read_private_key(key_file, "--key")
    public_id = key_id(key.public_key())
    signature = base64.b64encode(key.sign(manifest)).decode()
    _write(
        folder / SIGNATURE_FILE,
        json.dumps({"algorithm": ALGORITHM, "key": public_id, "signature": signature}).encode() + b"\n",
    )
    return public_id


def new_key(file: Path) -> str:
    """Write a new private key, which only its owner can read, and the public key in FILE.pub. Returns the key's id.

    Raises OutputError.
    """
    require_library()
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )  # fmt: skip
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    public_file = file.with_name(f"{file.name}.pub")
    for path in (file, public_file):
        if path.exists():
            raise OutputError(f"{path}: exists already; choose another name for the key")
    _write(file, private, mode=0o600)
    _write(public_file, public)
    return key_id(key.public_key())


def key_id(key: Ed25519PublicKey) -> str:
    return hashlib.sha256(key.public_bytes_raw()).hexdigest()[:16]


def read_private_key(file: Path, option: str) -> Ed25519PrivateKey:
    """The key that an option names. Raises RequestError, and ToolError if the library is not installed."""
    require_library(option)
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(read_key(file, option), None)
    except Exception as error:
        raise RequestError(
            f"{option} {file}: is not a private key in PEM without a password; "
            "create one with 'nearfar sign --new-key NAME'"
        ) from error
    if not isinstance(key, Ed25519PrivateKey):
        raise RequestError(f"{option} {file}: is not an Ed25519 key; create one with 'nearfar sign --new-key NAME'")
    return key


def read_key(file: Path, option: str) -> bytes:
    """Raises RequestError."""
    try:
        return read_given(file)
    except OSError as error:
        raise RequestError(f"{option} {file}: cannot be read: {reason_of(error)}") from error


def _write(path: Path, data: bytes, mode: int = 0o644) -> None:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
    except OSError as error:
        raise OutputError(f"{path}: cannot be written: {reason_of(error)}") from error


def require_library(what: str = "signing bundles and --trust") -> None:
    """Raises ToolError if the library of signatures is not installed. ``what`` needs it."""
    try:
        import cryptography  # noqa: F401
    except ImportError as error:
        raise ToolError(f"{what}: needs cryptography: pip install 'nearfar[sign]'") from error
