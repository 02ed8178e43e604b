"""A bundle's WGSL kernels by readable names, and their translation to SPIR-V."""

from __future__ import annotations

import struct
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nearfar.compiler.bundle.entries import KernelEntry
from nearfar.compiler.quant.base import GROUP
from nearfar.compiler.quant.kernel_format import WeightFormat
from nearfar.compiler.runtime.errors import ToolError

from .packages import Compilers

TINT_SECONDS = 60
# The words of the SPIR-V specification.
FIRST_WORD, LOOP_MERGE, DONT_UNROLL = 5, 246, 2
# The values of facts that labels leave out.
USUAL = {"products": "float32", "thread_outputs": 4, "each_tile": False}


@dataclass(frozen=True, slots=True)
class ShaderSource:
    """``weights``: those that a thread of a matrix-vector kernel multiplies in one pass of its loop over the columns;
    0 for other kernels. ``name`` is that of the kernel in its bundle.
    """

    label: str
    name: str
    path: Path
    weights: int


def sources_of(bundle: Path, kernels: Mapping[str, KernelEntry]) -> list[ShaderSource]:
    """The kernels of a bundle for webgpu, in the order of their labels."""
    labels = {name: label_of(each) for name, each in kernels.items()}
    count = Counter(labels.values())
    doubles = {label for label, times in count.items() if times > 1}
    for label in doubles:
        same = [name for name in kernels if labels[name] == label]
        leaves = {name: dict(leaves_of(kernels[name].facts)) for name in same}
        for name in same:
            own = {
                key: value
                for key, value in leaves[name].items()
                if any(leaves[other].get(key) != value for other in same)
            }
            labels[name] = f"{label} {' '.join(f'{key}={value}' for key, value in own.items())}".strip()
    sources = [
        ShaderSource(labels[name], name, bundle / each.file, weights_a_pass(each)) for name, each in kernels.items()
    ]
    return sorted(sources, key=lambda each: each.label)


def label_of(kernel: KernelEntry) -> str:
    """The facts by which a person knows a kernel. Others are added if two kernels have the same."""
    facts = kernel.facts
    parts: list[object] = [kernel.template]
    if "facts" in facts:
        projection = facts["facts"]
        parts.append(f"{projection['outputs'] * halves(projection)}x{projection['columns']}")
        parts += ["gated"] * (halves(projection) - 1)
        parts.append(projection["x_dtype"].replace("float", "f"))
    if "heads" in facts:
        parts.append(str(facts["heads"].get("activation", "")).replace("float", "f"))
    for name in ("shape", "options"):
        shape = (facts.get(name) or {}).items()
        parts += [f"{key}={value}" for key, value in shape if USUAL.get(key) != value]
    return " ".join(map(str, parts))


def halves(projection: Mapping[str, Any]) -> int:
    """2 if a projection is gated."""
    return 1 + any(part["op"] == "gate_halves" for part in projection["store"])


def leaves_of(value: Any, key: str = "") -> list[tuple[str, object]]:
    """The numbers and strings in nested facts, each with its path."""
    if isinstance(value, Mapping):
        items = value.items()
    elif isinstance(value, Sequence) and not isinstance(value, str):
        items = dict(enumerate(value)).items()
    else:
        return [(key, value)]
    return [leaf for name, each in items for leaf in leaves_of(each, f"{key}.{name}" if key else str(name))]


def weights_a_pass(kernel: KernelEntry) -> int:
    if kernel.template not in ("linear_vector", "linear_subgroup", "linear_dots"):
        return 0
    projection, shape = kernel.facts["facts"], kernel.facts["shape"]
    columns = GROUP if kernel.template == "linear_dots" else WeightFormat(**projection["weight"]).block_columns
    rows, unroll = int(shape["rows"]), int(shape.get("unroll", 1))
    return rows * halves(projection) * unroll * columns


def translate(compilers: Compilers, source: Path, shader: Path) -> None:
    """WGSL to SPIR-V, as Chromium translates it for Vulkan: with bounds checks, and workgroup memory that starts as
    zeros. Raises ToolError with Tint's message.
    """
    command = compilers.command(compilers.root / "usr/bin/tint", "--format", "spirv", "--output-name", shader, source)
    done = subprocess.run(command, capture_output=True, text=True, timeout=TINT_SECONDS, check=False)
    if done.returncode:
        raise ToolError(f"gpu-static: Tint refuses {source.name}: {done.stderr.strip()}")


def keep_loops(shader: Path, copy: Path) -> None:
    """A copy of SPIR-V that asks compilers not to unroll loops, so that a loop's instructions are counted once."""
    data = shader.read_bytes()
    words = list(struct.unpack(f"<{len(data) // 4}I", data))
    at = FIRST_WORD
    while at < len(words):
        length, op = words[at] >> 16, words[at] & 0xFFFF
        if op == LOOP_MERGE:
            words[at + 3] = DONT_UNROLL
        at += length
    copy.write_bytes(struct.pack(f"<{len(words)}I", *words))
