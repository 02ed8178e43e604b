"""`make gpu-wheels`: packs everything that `gpu-check` needs on a machine without a network, at most 60 MB.

Writes into FOLDER the wheels for CPython 3.12 on Linux x86-64 in the versions of this machine's environment, Node.js of
this machine with Dawn and the tools that run in it, and the libraries of Vulkan. Compressed with LZMA instead of
deflate and without symbols for debuggers, the wheels are a third smaller; pip reads them all the same.
"""

from __future__ import annotations

import argparse
import ctypes
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from importlib.metadata import requires, version
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import NormalizedName, canonicalize_name

from .packages import NODE_ARCHIVE, pack
from .vulkan import GLVND, LOADER

ROOT = Path(__file__).resolve().parents[3]
WEB = ROOT / "web"
MAX_BYTES = 60_000_000
PYTHON_VERSION = "3.12"
# pip requires an exact match of each of these.
MANYLINUX = ("2_39", "2_35", "2_34", "2_31", "2_28", "2_27", "2_26", "2_24", "2_17", "2014", "2010", "1")
# Our own requirements, with those of these extras; pip is for machines whose Python lacks it.
EXTRAS = ("", "serve", "cuda")
PACKAGES = ("ml-dtypes", "pip", "xgrammar")
# Requirements that no part imports: kernels are compiled and linked before, we call xgrammar's library ourselves,
# nothing is loaded from the hub or published, and rich prints neither source code nor Markdown.
NOT_IMPORTED = frozenset(
    ("apache-tvm", "apache-tvm-ffi", "huggingface-hub", "markdown-it-py", "nvidia-cuda-nvrtc", "pygments", "pyyaml",
     "torch", "transformers", "triton", "uvloop", "ziglang")
)  # fmt: skip
# Some builds of libraries are mostly symbols. Others are left as they are, because `strip` may damage those that
# patchelf has changed.
MOSTLY_SYMBOLS = 0.9
ELF = b"\x7fELF"
MARKERS = {"python_version": PYTHON_VERSION, "python_full_version": f"{PYTHON_VERSION}.0"}
# The files that run in Node.js, by their paths in web/.
NODE_FILES = (
    "dist/onnx.js",
    *(f"dist/tools/{tool}.js" for tool in ("adapter", "bench_gpu", "run_bundle")),
    *(f"node_modules/webgpu/{name}" for name in ("index.js", "package.json", "dist/linux-x64", "LICENSE.md")),
    *(f"node_modules/@huggingface/tokenizers/{name}" for name in ("package.json", "dist/tokenizers.mjs", "LICENSE")),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--without",
        default="",
        help="packages that the machine has, separated by commas, such as numpy,cuda-bindings; node for Node.js",
    )
    options = parser.parse_args()
    without = {name.strip() for name in options.without.split(",") if name.strip()}
    packages = with_dependencies([*required_by("nearfar", EXTRAS), *PACKAGES])
    unknown = without - {*packages, "node"}
    if unknown:
        parser.error(f"--without {', '.join(sorted(unknown))}: is not packed; packed are {', '.join(packages)}, node")
    shutil.rmtree(options.folder, ignore_errors=True)
    options.folder.mkdir(parents=True)
    download([name for name in packages if name not in without], options.folder)
    if "node" not in without:
        pack_node(options.folder / NODE_ARCHIVE)
    pack_libraries(options.folder)
    sizes = {file.name: file.stat().st_size for file in options.folder.iterdir()}
    for name, size in sorted(sizes.items(), key=lambda item: -item[1]):
        print(f"{size / 1e6:8.2f} MB  {name}")
    total = sum(sizes.values())
    print(f"{total / 1e6:8.2f} MB  in {options.folder}")
    if total > MAX_BYTES:
        sys.exit(f"more than {MAX_BYTES / 1e6:.0f} MB; leave packages out that the machine has, with --without")


def with_dependencies(names: Sequence[str]) -> list[str]:
    """The packages and their requirements, as declared by the packages that are installed here."""
    found: set[str] = set()
    waiting = [canonicalize_name(name) for name in names]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += required_by(name)
    return sorted(found)


def required_by(name: str, extras: Sequence[str] = ("",)) -> set[NormalizedName]:
    """The packages that an installed one requires for the other Python, without those that no part imports."""
    required = [Requirement(text) for text in requires(name) or ()]
    needed = (
        each for each in required
        if each.marker is None or any(each.marker.evaluate({**MARKERS, "extra": extra}) for extra in extras)
    )  # fmt: skip
    return {canonicalize_name(each.name) for each in needed} - NOT_IMPORTED


def download(names: list[str], folder: Path) -> None:
    """The wheels in the versions that are installed here, for the other Python."""
    platforms = [f"--platform=manylinux{'' if tag.isdigit() else '_'}{tag}_x86_64" for tag in MANYLINUX]
    with tempfile.TemporaryDirectory() as downloads:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        command += ["--only-binary=:all:", "--implementation=cp", f"--python-version={PYTHON_VERSION}", *platforms]
        requirements = [f"{name}=={version(name)}" for name in names]
        subprocess.run([*command, "--dest", downloads, *requirements], check=True)
        for wheel in sorted(Path(downloads).glob("*.whl")):
            # Python runs pip from its wheel, and Python's importer of zip files reads deflate only.
            if wheel.name.startswith("pip-"):
                shutil.copy(wheel, folder)
            else:
                repack(wheel, folder / wheel.name)


def repack(wheel: Path, smaller: Path) -> None:
    """The same files in the same order, compressed with LZMA, and libraries without symbols."""
    with zipfile.ZipFile(wheel) as source, zipfile.ZipFile(smaller, "w", zipfile.ZIP_LZMA) as target:
        for info in source.infolist():
            copy = zipfile.ZipInfo(info.filename, info.date_time)
            copy.external_attr, copy.compress_type = info.external_attr, zipfile.ZIP_LZMA
            data = source.read(info)
            target.writestr(copy, stripped(data) if data.startswith(ELF) else data)


def stripped(library: bytes) -> bytes:
    """The library without symbols, if these are much of it."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(library)
        file.flush()
        strip(Path(file.name))
        smaller = Path(file.name).read_bytes()
    return smaller if len(smaller) < MOSTLY_SYMBOLS * len(library) else library


def strip(program: Path) -> None:
    """Remove symbols from a program or a library, if this machine has binutils."""
    if shutil.which("strip"):
        subprocess.run(["strip", str(program)], check=True)


def pack_node(archive: Path) -> None:
    """Node.js of this machine without its symbols, Dawn and the tools."""
    node = shutil.which("node")
    missing = [name for name in NODE_FILES if not (WEB / name).exists()]
    if node is None or missing:
        sys.exit(f"{missing[0] if missing else 'Node.js'} is missing; run make web, or use --without node")
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "node"
        shutil.copy(node, program)
        strip(program)
        pack(archive, {"node": program, **{f"web/{name}": WEB / name for name in NODE_FILES}})


def pack_libraries(folder: Path) -> None:
    """The Vulkan loader and GLVND of this machine, for machines that have only NVIDIA's driver."""
    for name in (LOADER, *GLVND):
        try:
            ctypes.CDLL(name)
        except OSError:
            print(f"{name} is not installed here and is not packed")
            continue
        maps = Path("/proc/self/maps").read_text()
        path = next(line.split()[-1] for line in maps.splitlines() if f"/{name}" in line)
        shutil.copyfile(path, folder / name)


if __name__ == "__main__":
    main()
