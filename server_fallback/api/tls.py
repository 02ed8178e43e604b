"""The certificate of a server's TLS connections, which can be read again while it serves."""

from __future__ import annotations

import hashlib
import ssl
from pathlib import Path

from nearfar.compiler.given_file import read_given
from nearfar.compiler.runtime.errors import RequestError, reason_of

from .config import ApiConfig


def tls_context(config: ApiConfig) -> ssl.SSLContext | None:
    """The context for new connections, of TLS 1.2 and 1.3; None for a server without TLS. Raises RequestError if the
    files cannot be read, or do not belong together.
    """
    if config.tls_cert is None:
        if config.tls_key is not None:
            raise RequestError(f"--tls-key {config.tls_key}: needs its certificate, too: --tls-cert FILE")
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    _load(context, config.tls_cert, config.tls_key)
    return context


def reload_tls(context: ssl.SSLContext, config: ApiConfig) -> None:
    """Connections from now on have the certificate that the files hold now; those that exist keep theirs. Raises
    RequestError as `tls_context`, and then changes nothing.
    """
    assert config.tls_cert is not None, "a reload does not switch TLS off"
    # OpenSSL replaces the certificate before it compares the key.
    tls_context(config)
    _load(context, config.tls_cert, config.tls_key)


def certificate_digest(config: ApiConfig) -> bytes:
    """Another one if the files of the certificate hold something else. Raises RequestError."""
    files = (file for file in (config.tls_cert, config.tls_key) if file is not None)
    return hashlib.sha256(b"".join(map(read_pem, files))).digest()


def read_pem(path: Path) -> bytes:
    """Raises RequestError."""
    try:
        return read_given(path)
    except OSError as error:
        raise RequestError(f"{path}: cannot be read: {reason_of(error)}") from error


def _load(context: ssl.SSLContext, cert: Path, key: Path | None) -> None:
    def password() -> str:
        # Otherwise OpenSSL asks for it on the terminal, and the server hangs.
        raise RequestError(f"--tls-key {key or cert}: the key is encrypted; decrypt it: openssl pkey -in FILE")

    for path in (cert, *([] if key is None else [key])):
        read_pem(path)
    try:
        context.load_cert_chain(cert, key, password)
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or reason_of(error) if isinstance(error, OSError) else str(error)
        where = f"--tls-cert {cert}" + ("" if key is None else f" --tls-key {key}")
        advice = "give a certificate with its chain and its own private key, in PEM"
        raise RequestError(f"{where}: {reason}; {advice}") from error
