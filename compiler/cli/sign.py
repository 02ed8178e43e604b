"""nearfar sign: sign a bundle, so that others can verify who made it."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from ..bundle.folder import open_any
from ..bundle.manifest import MANIFEST_FILE
from ..bundle.signature import SIGNATURE_FILE, TrustedKey, new_key, read_trusted_keys, sign
from ..errors import RequestError
from .output import add_command, print_json


def add_parser(commands: Any) -> None:
    parser = add_command(
        commands,
        "sign",
        run,
        example="nearfar sign --new-key me.pem && nearfar sign qwen3-cpu --key me.pem && "
        "nearfar run qwen3-cpu hello --trust me.pem.pub",
    )
    parser.add_argument("bundle", metavar="BUNDLE", type=Path, nargs="?")
    parser.add_argument("--key", type=Path, metavar="FILE", help="the private key: Ed25519 in PEM, without a password")
    parser.add_argument(
        "--new-key", type=Path, metavar="FILE", help="create a private key; FILE.pub is the public key for --trust"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(options: argparse.Namespace) -> None:
    """Compare every file with its hash, then sign the bundle. Raises RequestError and all errors of reading the
    bundle.
    """
    if (options.bundle is None) == (options.new_key is None) or (options.bundle is None) != (options.key is None):
        raise RequestError("nearfar sign needs a bundle and --key FILE, or only --new-key FILE")
    if options.new_key is not None:
        key = new_key(options.new_key)
        done = f"key {key}: sign with {options.new_key}, and give {options.new_key}.pub to others for --trust"
    else:
        bundle = open_any(options.bundle)
        bundle.verify()
        key = sign(bundle.path, (bundle.path / MANIFEST_FILE).read_bytes(), options.key)
        done = f"{bundle.path / SIGNATURE_FILE}: signed with key {key}"
    if options.json:
        print_json({"key": key})
    else:
        Console().print(escape(done), soft_wrap=True)


def add_trust(parser: Any) -> None:
    """The option that `trusted_keys` reads."""
    parser.add_argument(
        "--trust",
        type=Path,
        action="append",
        default=[],
        metavar="KEY",
        help="load only bundles that this public key has signed; may be repeated. A CPU or CUDA bundle is native code "
        "and runs with your permissions, so load only bundles that you trust (default: any bundle)",
    )


def trusted_keys(options: argparse.Namespace) -> Sequence[TrustedKey]:
    return read_trusted_keys(options.trust) if options.trust else ()
