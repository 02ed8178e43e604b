"""The GPUs, and what their compilers say of each shader.

A driver of Mesa compiles for the GPU that a shim pretends to be: the shim answers the driver's questions to the kernel,
and no shader runs.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nearfar.compiler.runtime.errors import ToolError

from .packages import Compilers

# The time limit of a process: for its start, and for each shader.
START_SECONDS, SHADER_SECONDS = 120, 2


@dataclass(frozen=True, slots=True)
class Device:
    """``vendor`` is the GPU's as browsers name it. ``occupancy`` is the driver's name for the threads or groups of
    threads that fit, of ``full`` in all, which ``unit`` names; ``spills`` those for the values that go to memory and
    come back.
    """

    name: str
    vendor: str
    driver: str
    shim: str
    environment: Mapping[str, str]
    occupancy: str
    full: int
    unit: str
    registers: str
    spills: tuple[str, ...]
    instructions: str


@dataclass(frozen=True, slots=True)
class Statistics:
    """What a compiler says of a shader."""

    occupancy: int
    registers: int
    spills: int
    instructions: int


def adreno(name: str, environment: Mapping[str, str]) -> Device:
    return Device(
        name, "qualcomm", "freedreno", "freedreno", environment, "Max Waves Per Core", 16, "waves", "Registers used",
        ("STP Count", "LDP Count"), "Instruction Count",
    )  # fmt: skip


def amd(name: str, gpu: str) -> Device:
    return Device(
        name, "amd", "radeon", "amdgpu", {"AMDGPU_GPU_ID": gpu}, "Subgroups per SIMD", 32, "subgroups a SIMD", "VGPRs",
        ("Spilled VGPRs", "Spilled SGPRs"), "Instructions",
    )  # fmt: skip


def intel(name: str, platform: str) -> Device:
    return Device(
        name, "intel", "intel", "intel", {"INTEL_STUB_GPU_PLATFORM": platform}, "Max dispatch width", 32, "lanes",
        "Max live registers", ("Spills", "Fills"), "Instructions",
    )  # fmt: skip


DEVICES = (
    adreno("adreno-740", {"FD_CHIP_ID": "0x43050a01"}),
    adreno("adreno-750", {"FD_GPU_ID": "750"}),
    Device(
        "apple-m1", "apple", "asahi", "asahi", {}, "Threads", 1024, "threads", "GPRs", ("Spills", "Fills"),
        "Instructions",
    ),
    Device(
        "nvidia-ada", "nvidia", "nouveau", "nouveau", {"NOUVEAU_CHIPSET": "192"}, "Max warps/SM", 48, "warps",
        "Number of GPRs", ("Spills to memory", "Fills from memory"), "Instruction count",
    ),
    amd("amd-rdna2", "vangogh"),
    amd("amd-rdna3", "phoenix"),
    amd("amd-rdna4", "gfx1201"),
    intel("intel-alder-lake", "adl"),
    intel("intel-lunar-lake", "lnl"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Compiled:
    """The statistics of shaders by name, and the errors of those that the compiler refused or crashed on."""

    statistics: dict[str, Statistics] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)


def compile_shaders(compilers: Compilers, device: Device, shaders: Mapping[str, Path]) -> Compiled:
    """Compile SPIR-V for one GPU. A shader at which the compiler crashes is an error of its own.

    Raises ToolError if the driver does not start.
    """
    compiled, names = Compiled(), {str(path): name for name, path in shaders.items()}
    waiting = list(names)
    while waiting:
        done, problem = run(compilers, device, waiting)
        for each in done:
            name = names[each["file"]]
            if "error" in each:
                compiled.errors[name] = each["error"]
            else:
                compiled.statistics[name] = statistics_of(device, each["executables"])
        waiting = waiting[len(done) :]
        if waiting:
            compiled.errors[names[waiting.pop(0)]] = problem
    return compiled


def run(compilers: Compilers, device: Device, files: Sequence[str]) -> tuple[list[dict[str, Any]], str]:
    """The lines of the files that one process compiled, and why it did not compile more."""
    command = compilers.command(
        compilers.program,
        compilers.libraries / f"libvulkan_{device.driver}.so",
        preload=f"lib{device.shim}_noop_drm_shim.so",
    )
    environment = {**os.environ, **device.environment, "MESA_SHADER_CACHE_DISABLE": "1"}
    process = subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    timer = threading.Timer(START_SECONDS + SHADER_SECONDS * len(files), process.kill)
    timer.start()
    try:
        output, complaints = process.communicate("\n".join(files))
    finally:
        timer.cancel()
    first, *done = [json.loads(line) for line in output.splitlines() if line.endswith("}")] or [None]
    last = (complaints.strip().splitlines() or [""])[-1]
    if first is None:
        raise ToolError(f"gpu-static: {device.name}: the driver does not start ({process.returncode}): {last}")
    return done, f"the compiler ended with {process.returncode}: {last}"


def statistics_of(device: Device, executables: Sequence[Mapping[str, float]]) -> Statistics:
    # A compute shader is one executable. Asahi lists its preamble with it.
    values = executables[-1]
    return Statistics(
        occupancy=int(values[device.occupancy]),
        registers=int(values[device.registers]),
        spills=int(sum(values[name] for name in device.spills)),
        instructions=int(values[device.instructions]),
    )
