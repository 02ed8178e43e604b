"""The environment in which wgpu and Dawn find NVIDIA's Vulkan driver on a bare machine. Standard library only.

A container often has NVIDIA's libraries, but lacks the Vulkan loader or the file that names the driver to the loader.
"""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Mapping
from pathlib import Path

from .packages import WHEELS

LOADER = "libvulkan.so.1"
# NVIDIA's driver names no function to the loader if GLVND's libraries are missing, as on an H200 with CUDA alone.
GLVND = ("libEGL.so.1", "libGLX.so.0", "libGLdispatch.so.0")
# The folders in which the loader looks, and in which NVIDIA's container images put the file.
KNOWN_TO_LOADER = ("/etc/vulkan/icd.d", "/usr/share/vulkan/icd.d", "/usr/local/share/vulkan/icd.d")
OTHER_FOLDERS = ("/usr/local/nvidia/share/vulkan/icd.d", "/usr/local/nvidia/vulkan/icd.d")
# NVIDIA's Vulkan driver is in the library for GLX, and in that for EGL on machines without X11.
DRIVERS = ("libGLX_nvidia.so.0", "libEGL_nvidia.so.0")
# Each of these names drivers to the loader; the second is the older name.
VARIABLES = ("VK_DRIVER_FILES", "VK_ICD_FILENAMES")


def vulkan_environment(root: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """The variables to add. If the machine's Vulkan is complete, none are needed."""
    added = {}
    packed = root / WHEELS
    if not all(map(loads, (LOADER, *GLVND))) and (packed / LOADER).exists():
        paths = [str(packed), environment.get("LD_LIBRARY_PATH", "")]
        added["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, paths))
    if not any(environment.get(name) for name in VARIABLES) and not named_in(KNOWN_TO_LOADER):
        file = named_in(OTHER_FOLDERS) or described(root / "build/gpu-vulkan/nvidia_icd.json")
        if file is not None:
            added |= dict.fromkeys(VARIABLES, str(file))
    return added


def named_in(folders: tuple[str, ...]) -> Path | None:
    """The file that names NVIDIA's driver."""
    found = sorted(file for folder in folders for file in Path(folder).glob("nvidia*.json"))
    return found[0] if found else None


def described(file: Path) -> Path | None:
    """Write the file that names NVIDIA's driver (LoaderDriverInterface.md of the Vulkan loader), if there is one."""
    driver = next((name for name in DRIVERS if loads(name)), None)
    if driver is None:
        return None
    file.parent.mkdir(parents=True, exist_ok=True)
    description = {"library_path": driver, "api_version": "1.3.0"}
    file.write_text(json.dumps({"file_format_version": "1.0.1", "ICD": description}))
    return file


def loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True
