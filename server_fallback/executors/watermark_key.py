"""The secret file of a watermark, and what marking answers needs."""

from __future__ import annotations

from pathlib import Path

from nearfar.compiler.bundle.manifest import Description, Manifest
from nearfar.compiler.given_file import read_given
from nearfar.compiler.ir.watermark import WATERMARK, Watermark
from nearfar.compiler.names import WATERMARK_SHARE, WATERMARK_STRENGTH
from nearfar.compiler.runtime.errors import RequestError, reason_of

from .local_options import LocalOptions

FLAG = "--watermark-key"
MIN_BYTES, MAX_BYTES = 16, 1 << 16


def read_watermark(
    file: Path, flag: str, share: float = WATERMARK_SHARE, strength: float = WATERMARK_STRENGTH
) -> Watermark:
    """The watermark of the secret in a file, without the white space around it. No message quotes the secret. Raises
    RequestError.
    """
    try:
        content = read_given(file)
    except OSError as error:
        raise RequestError(f"{flag} {file}: cannot be read: {reason_of(error)}") from error
    secret = content.strip()
    if len(secret) < MIN_BYTES or len(content) > MAX_BYTES:
        raise RequestError(
            f"{flag} {file}: must hold a secret of {MIN_BYTES} to {MAX_BYTES:,} bytes; make one with: "
            "openssl rand -hex 32"
        )
    return Watermark.of(secret, share, strength)


def watermark_of(options: LocalOptions) -> Watermark | None:
    """The watermark of a server's answers; None if it marks none. Raises RequestError."""
    if options.watermark_key is None:
        if options.watermark == "all":
            raise RequestError(f"--watermark all: needs the secret by which answers are marked; add {FLAG} FILE")
        return None
    if options.receipt_key is not None:
        raise RequestError(
            f"{FLAG} excludes --receipt-key: who checks a receipt computes the answer again, and cannot without the "
            "secret; leave one of them out"
        )
    return read_watermark(options.watermark_key, FLAG, options.watermark_share, options.watermark_strength)


def require_marks(manifest: Description) -> None:
    """Raises RequestError for a bundle that cannot mark answers. The frameworks' runners choose tokens on the host, and
    mark those of every bundle.
    """
    if isinstance(manifest, Manifest) and WATERMARK not in manifest.states:
        raise RequestError(
            f"{FLAG}: {manifest.model} was compiled without --watermark; compile it with this option, or serve its "
            "checkpoint"
        )
