"""Signs receipts, and checks whose signature one has: Ed25519 (RFC 8032) with keys of `nearfar sign`, or ECDSA on P-256
(FIPS 186-5) with keys of browsers.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from nearfar.compiler.bundle.signature import read_key, read_private_key, require_library
from nearfar.compiler.runtime.errors import RequestError
from nearfar.compiler.shared.script import SharedScript

from ..schema.receipt import ReceiptSignature

# Bytes at the end of a public key in DER: an Ed25519 key, and an uncompressed point of P-256.
KEY_BYTES = {"ed25519": 32, "ecdsa-p256": 65}
HALF_BYTES = 32


class ReceiptKey:
    """A private key, which the front ends of a server get too. Raises RequestError for a file that is not an Ed25519
    key, ToolError without the library.
    """

    def __init__(self, file: Path) -> None:
        # The library's own object cannot be sent to another process.
        self._seed = read_private_key(file, "--receipt-key").private_bytes_raw()

    def sign(self, receipt: dict[str, Any]) -> ReceiptSignature:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

        key = Ed25519PrivateKey.from_private_bytes(self._seed)
        public = key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        value = key.sign(signed_bytes(receipt))
        return ReceiptSignature(algorithm="ed25519", public_key=in_base64(public), value=in_base64(value))


def signed_bytes(receipt: dict[str, Any]) -> bytes:
    """What is signed. Raises RequestError for a receipt that is not JSON."""
    text: str = SharedScript.of_thread().ask("signedText", receipt)
    return text.encode()


def is_signed(receipt: dict[str, Any], signature: ReceiptSignature) -> bool:
    """Whether the signature is one of this receipt by its own ``public_key``. Raises ToolError without the library."""
    require_library("nearfar verify")
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
    from cryptography.hazmat.primitives.serialization import load_der_public_key

    message = signed_bytes(receipt)
    try:
        key = load_der_public_key(base64.b64decode(signature.public_key, validate=True))
        value = base64.b64decode(signature.value, validate=True)
        if len(value) != 2 * HALF_BYTES:
            return False
        if signature.algorithm == "ed25519" and isinstance(key, Ed25519PublicKey):
            key.verify(value, message)
            return True
        if signature.algorithm == "ecdsa-p256" and isinstance(key, ec.EllipticCurvePublicKey):
            if not isinstance(key.curve, ec.SECP256R1):
                return False
            r, s = (int.from_bytes(part, "big") for part in (value[:HALF_BYTES], value[HALF_BYTES:]))
            key.verify(encode_dss_signature(r, s), message, ec.ECDSA(hashes.SHA256()))
            return True
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        return False
    return False


def key_id_of(signature: ReceiptSignature) -> str:
    """The first 16 hexadecimal digits of the SHA-256 of the key itself: for Ed25519, the id that `nearfar sign`
    prints. Raises RequestError for a key that is not in base64.
    """
    try:
        public = base64.b64decode(signature.public_key, validate=True)
    except ValueError as error:
        raise RequestError(f"the receipt is not one of this version: signature.public_key: {error}") from error
    return sha256(public[-KEY_BYTES[signature.algorithm] :]).hexdigest()[:16]


def read_receipt_keys(files: Sequence[Path]) -> frozenset[str]:
    """The public keys in PEM files, as receipts have them. Raises RequestError and ToolError."""
    if not files:
        return frozenset()
    require_library("--signed-by")
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key

    keys = set()
    for file in files:
        try:
            key = load_pem_public_key(read_key(file, "--signed-by"))
            if not isinstance(key, Ed25519PublicKey | ec.EllipticCurvePublicKey):
                raise ValueError("another kind of key")
            keys.add(in_base64(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)))
        except ValueError as error:
            raise RequestError(
                f"--signed-by {file}: is not a public key in PEM for Ed25519 or P-256; pass the NAME.pub file of "
                "'nearfar sign --new-key', or the key that the page exports"
            ) from error
    return frozenset(keys)


def in_base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
