"""`make gpu-rehearse`: `make gpu-check` from end to end without a GPU, as on a bare machine.

In a clean copy of the tree, without a network and with an empty environment, the command unpacks the wheels and Node.js
that `make gpu-wheels` packed, and runs every script, and then the parts of none, on small models. CUDA is the tests'
emulated driver behind NVIDIA's own bindings, and Vulkan is lavapipe (wgpu) and SwiftShader (Dawn). So the rehearsal
tests the command, not the GPU. The ONNX part for CUDA needs the package onnxruntime, which is not packed; there it runs
on the CPU provider. The comparison needs torch, which is not packed either, and runs PyTorch on the CPU.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from emulated import libcuda, library_of

from .packages import WHEELS
from .parts import PARTS
from .scripts import read_scripts

ROOT = Path(__file__).resolve().parents[3]
# Debian's lavapipe, and the SwiftShader of Debian's Chromium.
VULKAN_DRIVERS = ("/usr/share/vulkan/icd.d/lvp_icd.x86_64.json", "/usr/lib/chromium/vk_swiftshader_icd.json")
# The commands of a bare machine besides Python. Node.js is not among them.
COMMANDS = ("make", "sh", "find", "uname")
# What parts need from the tree that was set up, if there are no wheels.
SET_UP = ("web/node_modules", "web/dist")
# The package that the ONNX part for WebGPU needs, which is too large for the wheels, so a machine has it or not.
ONNX_RUNTIME = "web/node_modules/onnxruntime-node"
PYTHON_3_12 = "python3.12"
# For each run, on a machine that computes everything on few cores.
MINUTES = 60


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="a folder for the copy and the results")
    parser.add_argument("--python", default=PYTHON_3_12, help="the bare machine's Python (default: %(default)s)")
    options = parser.parse_args()
    found = shutil.which(options.python)
    if found is None:
        parser.error(f"{options.python} was not found; install it, or name another one for which wheels were packed")
    # A version manager's python3.12 is a shell script, and a bare machine has no bash.
    asked = subprocess.run(
        [found, "-c", "import sys; print(sys.executable)"], capture_output=True, text=True, check=False
    )
    if asked.returncode:
        parser.error(f"{found} does not start: {asked.stderr.strip()}")
    python = asked.stdout.strip()
    wheels = ROOT / WHEELS
    if not wheels.exists():
        parser.error(f"{wheels} is missing; run make gpu-wheels first")
    folder = options.folder.resolve()
    shutil.rmtree(folder, ignore_errors=True)
    sys.exit(max(code for code, _ in rehearse(folder, python, wheels).values()))


def rehearse(folder: Path, python: str, wheels: Path | None) -> dict[str, tuple[int, dict[str, Any]]]:
    """The command's exit code and results for each script, and as "others" those of the parts of none. ``folder`` is
    absolute and must not exist. ``wheels`` None: ``python`` has the packages, and Node.js is this machine's. In both
    cases, the machine has onnxruntime-node.
    """
    copy = folder / "copy"
    copy_tree(copy)
    prepared, emulator = copy / "build/gpu-prepared", folder / "emulator"
    command = [sys.executable, "-m", "gpu_check.prepare", str(prepared), "--rehearse"]
    subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    libraries = emulate(prepared, emulator)
    # The archive is copied to the machine.
    shutil.rmtree(prepared)
    environment = {
        "PATH": str(bare_commands(folder / "bin", with_node=wheels is None)),
        "HOME": str(folder),
        "XDG_RUNTIME_DIR": str(folder),
        "LD_LIBRARY_PATH": str(libcuda(emulator)),
        "NEARFAR_EMULATED": os.pathsep.join(map(str, libraries)),
        "VK_ICD_FILENAMES": os.pathsep.join(VULKAN_DRIVERS),
    }
    for place in SET_UP if wheels is None else (ONNX_RUNTIME,):
        (copy / place).parent.mkdir(exist_ok=True)
        (copy / place).symlink_to(ROOT / place)
    if wheels is not None:
        shutil.copytree(wheels, copy / WHEELS)
    offline = ["unshare", "--map-root-user", "--net", sys.executable, str(Path(__file__).with_name("offline.py"))]
    make = ["make", "gpu-check", "REHEARSE=1", f"GPU_PYTHON={python}", f"MINUTES={MINUTES}"]
    unshare = shutil.which(offline[0])
    assert unshare is not None, "unshare is not installed (util-linux)"
    found = {}
    for name, selected in selections().items():
        out = folder / "results" / name
        command = [unshare, *offline[1:], *make, selected, f"OUT={out}"]
        done = subprocess.run(command, cwd=copy, env=environment, check=False)
        results = out / "gpu-check.json"
        if not results.exists():
            sys.exit(f"{make[0]} {make[1]} {selected} wrote no results; its exit code is {done.returncode}")
        found[name] = done.returncode, json.loads(results.read_text())
    return found


def selections() -> dict[str, str]:
    """The option of each run."""
    scripts = read_scripts()
    scripted = {part for script in scripts.values() for part in script.parts}
    others = [part.name for part in PARTS if part.name not in scripted]
    return {**{name: f"SCRIPT={name}" for name in scripts}, "others": f"ONLY={','.join(others)}"}


def copy_tree(copy: Path) -> None:
    """The copied files: tracked files, and new ones that git does not ignore."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    for name in filter(None, listed.split("\0")):
        source, target = ROOT / name, copy / name
        if source.is_symlink() or source.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target, follow_symlinks=False)


def emulate(prepared: Path, folder: Path) -> list[Path]:
    """Every prepared CUDA kernel, compiled for this machine's processor."""
    folder.mkdir()
    sources = [*prepared.glob("*.cu"), *sorted(prepared.glob("*/*.cu")), *sorted(prepared.glob("*/kernels/*.cu"))]
    return [library_of(source.read_text(), folder, "-O1") for source in sources]


def bare_commands(folder: Path, *, with_node: bool) -> Path:
    """A folder for PATH with few commands."""
    folder.mkdir()
    for name in (*COMMANDS, *(("node",) if with_node else ())):
        found = shutil.which(name)
        assert found is not None, f"{name} is not installed"
        (folder / name).symlink_to(found)
    return folder


if __name__ == "__main__":
    main()
