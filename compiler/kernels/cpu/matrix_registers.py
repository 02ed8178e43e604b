"""AMX: eight registers of 16 rows of 64 bytes, and the instructions that load, multiply and store them.

A register holds float32 sums (16, 16); 16 rows of 32 bfloat16; or 16 pairs of rows of 16 bfloat16, two in a word. One
instruction adds the product of a left side (16, 32) and a right side (32, 16) to sums. The processor must have
permitted the registers to this process; see `targets/cpu/levels.py`.
"""

from __future__ import annotations

from ..builder import Scalar, address_of, number
from ..tir import script, tirx
from .builder import CpuKernelBuilder

ROWS, ROW_BYTES = 16, 64
# The registers of sums and of both sides.
SUMS, LEFT, RIGHT = (0, 1, 2, 3), (4, 5), (6, 7)


def configure(kernel: CpuKernelBuilder) -> None:
    """Give the registers their sizes, in the 64 bytes that the instruction reads. Call `release` at the end."""
    table = bytearray(64)
    # The only palette.
    table[0] = 1
    for index in (*SUMS, *LEFT, *RIGHT):
        table[16 + 2 * index] = ROW_BYTES
        table[48 + index] = ROWS
    words = kernel.local("configuration", 16, "uint32")
    for index in range(16):
        words[index] = number(int.from_bytes(table[4 * index : 4 * index + 4], "little"), "uint32")
    _perform("ldtilecfg", address_of(words, 0))


def release() -> None:
    _perform("tilerelease")


def clear(index: int) -> None:
    _perform("tilezero", _register(index))


def load(index: int, address: Scalar, stride_bytes: int = ROW_BYTES) -> None:
    """``stride_bytes`` is the distance of rows in memory."""
    _perform("tileloadd64", _register(index), address, tirx.const(stride_bytes, "int64"))


def store(index: int, address: Scalar, stride_bytes: int = ROW_BYTES) -> None:
    _perform("tilestored64", _register(index), address, tirx.const(stride_bytes, "int64"))


def multiply(sums: int, left: int, right: int) -> None:
    _perform("tdpbf16ps", _register(sums), _register(left), _register(right))


def _perform(name: str, *arguments: Scalar) -> None:
    script.evaluate(tirx.call_llvm_intrin("void", f"llvm.x86.{name}", *arguments))


def _register(index: int) -> Scalar:
    return tirx.const(index, "int8")
