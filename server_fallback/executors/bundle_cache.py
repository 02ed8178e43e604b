"""The cache of compiled models: finds the folder of a bundle from the checkpoint's folder and the compile options.

The cache is in the platform's cache folder, or in NEARFAR_CACHE. A bundle is found again as long as nothing that it was
made from has changed: the contents of the checkpoint's small files; the names, sizes, times and headers of its weight
files (reading gigabytes to be sure would take longer than compiling); the options; and the compiler's own files.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path

from nearfar.compiler.formats.tokenizer_files import VOCABULARIES
from nearfar.compiler.pipeline.kernel_cache import cache_folder
from nearfar.compiler.pipeline.options import CompileOptions

ROOT = Path(__file__).parents[2]
KEY_DIGITS = 16


def bundle_path(checkpoint: Path, options: CompileOptions) -> Path:
    """The folder that the bundle of a checkpoint's folder has in the cache, compiled or not."""
    digest = sha256(json.dumps([version("nearfar"), asdict(options)], default=str, sort_keys=True).encode())
    for part in (*checkpoint_parts(checkpoint), *compiler_parts(options.target)):
        digest.update(part)
    name = f"{checkpoint.resolve().name}-{options.target}-{options.quantization or 'default'}"
    return cache_folder() / f"{name}-{digest.hexdigest()[:KEY_DIGITS]}"


def checkpoint_parts(checkpoint: Path) -> Iterator[bytes]:
    """The bytes that distinguish one checkpoint from another: a folder, or a GGUF file. A folder's subfolders are those
    of sentence-transformers, which are small.
    """
    if checkpoint.is_file():
        status = checkpoint.stat()
        yield b"%d %d" % (status.st_size, status.st_mtime_ns)
    for path in sorted([*checkpoint.glob("*"), *checkpoint.glob("*/*.json")]):
        name = path.relative_to(checkpoint).as_posix().encode()
        if path.suffix in (".safetensors", ".bin"):
            status = path.stat()
            yield b"%b %d %d " % (name, status.st_size, status.st_mtime_ns)
            if path.suffix == ".safetensors":
                yield safetensors_header(path)
        elif path.suffix in (".json", ".jinja") or path.name in VOCABULARIES:
            yield name + b" " + sha256(path.read_bytes()).digest()


def safetensors_header(path: Path) -> bytes:
    """The hash of a safetensors header. The format: eight bytes with the header's length, little-endian, then the
    header.
    """
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        # An invalid length is reported when the file is opened.
        return sha256(file.read(min(length, 100 << 20))).digest()


def compiler_parts(target: str) -> Iterator[bytes]:
    shared = (ROOT / "targets").glob("*")
    for paths in (shared, *(folder.rglob("*") for folder in (ROOT / "compiler", ROOT / "targets" / target))):
        for path in sorted(path for path in paths if path.suffix in (".py", ".c", ".cuh")):
            status = path.stat()
            yield f"{path.relative_to(ROOT).as_posix()} {status.st_size} {status.st_mtime_ns}".encode()
