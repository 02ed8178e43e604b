"""SASS, the instructions of NVIDIA's GPUs, of a cubin, as nvdisasm prints them."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import NamedTuple

LINE = re.compile(r"^(?:\s*(?P<label>\.L_x_\d+):|.*?" + r"/\*[0-9a-f]{4,}\*/\s+(@!?U?P\w+ )?([A-Z][\w.]*)\s*([^;]*);)")
TARGET = re.compile(r"\.L_x_\d+")


class Instruction(NamedTuple):
    """``guard``: the predicate without which it is not executed, such as "@P0 "."""

    opcode: str
    operands: list[str]
    guard: str = ""

    def register(self, operand: int) -> int:
        """The number of the register that an operand is, or that an address contains."""
        match = re.search(r"(?<![A-Z])R(\d+)", self.operands[operand])
        assert match is not None, self
        return int(match[1])


class Loop(NamedTuple):
    """The instructions from the target of a branch back to it, ``first`` to ``last``."""

    first: int
    last: int

    @property
    def length(self) -> int:
        return self.last - self.first + 1


class Function(NamedTuple):
    """A kernel's instructions without NOPs, and its loops, the longest first."""

    instructions: Sequence[Instruction]
    loops: Sequence[Loop]


@cache
def disassembler() -> str | None:
    """nvdisasm of the wheel nvidia-cuda-nvdisasm, or on the PATH."""
    spec = find_spec("nvidia")
    folders = spec.submodule_search_locations or () if spec else ()
    found = [str(file) for folder in folders for file in Path(folder).glob("cu*/bin/nvdisasm")]
    return next(iter(found), None) or shutil.which("nvdisasm")


def functions_of(cubin: bytes, prefix: str = "") -> dict[str, Function]:
    """Each kernel by its name without the prefix. `disassembler` must have found one."""
    command = disassembler()
    assert command is not None
    with NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        done = subprocess.run([command, "-c", file.name], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    parts = re.split(rf"^\.text\.{prefix}", done.stdout.decode(), flags=re.MULTILINE)[1:]
    return {part.split(":")[0]: function_of(part) for part in parts}


def function_of(text: str) -> Function:
    instructions: list[Instruction] = []
    places: dict[str, int] = {}
    for match in filter(None, map(LINE.match, text.splitlines())):
        label, guard, opcode, operands = match.groups()
        if label:
            places[label] = len(instructions)
        elif opcode != "NOP":
            instructions.append(Instruction(opcode, [each.strip() for each in operands.split(",")], guard or ""))
    loops = set()
    for index, each in enumerate(instructions):
        target = TARGET.search(" ".join(each.operands)) if each.opcode == "BRA" else None
        # A branch to itself follows the end of a kernel.
        if target is not None and places.get(target[0], index) < index:
            loops.add(Loop(places[target[0]], index))
    return Function(instructions, sorted(loops, key=lambda loop: -loop.length))
