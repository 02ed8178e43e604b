"""The shim that stands in for Intel's GPUs, which Debian does not package. A C compiler builds it from a few files of
Mesa's source in five seconds, without Mesa's own build.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

from nearfar.compiler.runtime.errors import ToolError, Unavailable

NAME = "libintel_noop_drm_shim.so"
# The parts of the source that the files below include.
FOLDERS = ("include", "src/c11", "src/compiler", "src/drm-shim", "src/intel", "src/util")
INCLUDES = ("include", "src", "src/intel", "src/intel/dev")
DEFINITIONS = (
    "_GNU_SOURCE", "HAVE_ENDIAN_H", "HAVE_MEMFD_CREATE", "HAVE_PTHREAD", "HAVE_SECURE_GETENV", "HAVE_STRUCT_TIMESPEC",
    "NDEBUG", "UTIL_ARCH_BIG_ENDIAN=0", "UTIL_ARCH_LITTLE_ENDIAN=1",
)  # fmt: skip
UTILITIES = (
    "anon_file", "blob", "hash_table", "log", "os_file", "os_misc", "parson", "ralloc", "rb_tree", "set", "simple_mtx",
    "u_call_once", "u_debug", "u_math", "u_printf", "u_process", "vma",
)  # fmt: skip
# Scripts in src/intel/dev with their arguments, each of which writes the files that it names.
SCRIPTS = (
    ("gen_wa_helpers.py", "mesa_defs.json", "intel_wa.h", "intel_wa.c"),
    ("intel_device_info_gen_h.py", "intel_device_info_gen.h"),
    ("intel_device_info_serialize_gen_c.py", "intel_device_info_serialize_gen.c"),
)
SOURCES = (
    "drm-shim/device", "drm-shim/drm_shim", "intel/tools/intel_noop_drm_shim", "intel/dev/intel_wa",
    "intel/dev/intel_device_info_serialize_gen", "intel/dev/i915/intel_device_info", "intel/dev/xe/intel_device_info",
    "intel/dev/intel_device_info", "intel/dev/intel_debug", "intel/dev/intel_hwconfig", "intel/dev/intel_kmd",
    *(f"util/{name}" for name in UTILITIES),
)  # fmt: skip
BUILD_SECONDS = 120


def build_intel_shim(archive: Path, root: Path, folder: Path) -> Path:
    """The shim in ``folder``, where Mesa's source is unpacked. ``root``: the unpacked packages, with libdrm's headers
    and Mako, in which Mesa's scripts are written. Raises ToolError with what the compiler or a script says.
    """
    shutil.rmtree(folder, ignore_errors=True)
    with tarfile.open(archive) as tar:
        members = [each for each in tar if each.name.partition("/")[2].startswith(FOLDERS)]
        tar.extractall(folder, members, filter="data")
    (source,) = folder.iterdir()
    for script, *arguments in SCRIPTS:
        run([sys.executable, script, *arguments], source / "src/intel/dev", root)
    command = ["cc", "-std=gnu11", "-O1", "-w", "-shared", "-fPIC", "-fvisibility=hidden", "-ffunction-sections"]
    command += [f"-D{each}" for each in DEFINITIONS]
    # libdrm's headers come after those of this machine's C library.
    command += [*(f"-I{each}" for each in INCLUDES), f"-idirafter{root}/usr/include"]
    command += [f"-idirafter{root}/usr/include/libdrm", *(f"src/{each}.c" for each in SOURCES)]
    run([*command, "-Wl,--gc-sections,--no-undefined", "-o", NAME], source, root)
    return source / NAME


def run(command: list[str], folder: Path, root: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(root / "usr/lib/python3/dist-packages")}
    try:
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=BUILD_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"gpu-static: {command[0]} did not end within {BUILD_SECONDS} seconds") from error
    if done.returncode:
        raise ToolError(f"gpu-static: {NAME} cannot be built: {(done.stderr or done.stdout).strip()[-500:]}")
