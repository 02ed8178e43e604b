"""Link object files and `launch.c` into a shared library, for any architecture on any machine, with the compiler in
PyPI's ziglang.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from nearfar.compiler.runtime.errors import ToolError

LAUNCH = Path(__file__).with_name("launch.c")
# What kernels call of TVM's runtime is in `launch.c`. Their C library is the process's.
FLAGS = (
    "-shared",
    "-fPIC",
    "-O2",
    "-g0",
    "-nostdlib",
    "-Wl,--strip-debug",
    "-Wl,--hash-style=gnu",
    "-Wl,--build-id=none",
)


def link(objects: Sequence[bytes], triple: str) -> bytes:
    """The shared library of object files. Raises ToolError if ziglang is not installed."""
    if find_spec("ziglang") is None:
        raise ToolError("linking a cpu bundle needs ziglang; install it with 'pip install ziglang'")
    with tempfile.TemporaryDirectory(prefix="nearfar-") as name:
        folder = Path(name)
        files = [folder / f"{number}.o" for number in range(len(objects))]
        for file, data in zip(files, objects, strict=True):
            file.write_bytes(data)
        library = folder / "kernels.so"
        command = [
            sys.executable,
            "-m",
            "ziglang",
            "cc",
            "-target",
            triple,
            *FLAGS,
            str(LAUNCH),
            *map(str, files),
            "-o",
            str(library),
        ]
        # ziglang's default caches need a writable home folder. An empty cache costs 0.2 s.
        caches = {name: str(folder / "cache") for name in ("ZIG_GLOBAL_CACHE_DIR", "ZIG_LOCAL_CACHE_DIR")}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **caches})
        if done.returncode:
            raise ToolError(f"ziglang could not link the kernels: {done.stderr.strip()}")
        return library.read_bytes()
