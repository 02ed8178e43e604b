"""nearfar sign: sign a bundle, so that others can verify who made it."""

from __future__ import annotations

from rich.markup import escape

from ..bundle.folder import open_any
from ..bundle.manifest import MANIFEST_FILE
from ..bundle.signature import SIGNATURE_FILE, new_key, sign
from ..runtime.errors import RequestError
from .options import Sign
from .output import new_console, print_json


def run(options: Sign) -> None:
    """Compare every file with its hash, then sign the bundle. Raises RequestError and all errors of reading the
    bundle.
    """
    if options.new_key is not None and options.bundle is None and options.key is None:
        key = new_key(options.new_key)
        done = f"key {key}: sign with {options.new_key}, and give {options.new_key}.pub to others for --trust"
    elif options.bundle is not None and options.key is not None and options.new_key is None:
        bundle = open_any(options.bundle)
        bundle.verify()
        key = sign(bundle.path, (bundle.path / MANIFEST_FILE).read_bytes(), options.key)
        done = f"{bundle.path / SIGNATURE_FILE}: signed with key {key}"
    else:
        raise RequestError("nearfar sign needs a bundle and --key FILE, or only --new-key FILE")
    if options.json:
        print_json({"key": key})
    else:
        new_console().print(escape(done), soft_wrap=True)
