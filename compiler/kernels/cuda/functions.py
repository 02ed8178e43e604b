"""The CUDA functions that kernels call, each declared once here; `device.cuh`, `wgmma.cuh` and `functions.cuh` beside
this file define them.

``address`` and ``words`` are pointers (`builder.address_of`); the others are values. A pair is a word that holds two
16-bit floats.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..builder import Scalar, extern, perform, result_of
from ..vectors import lane_of
from .sources import WAIT

# The 16-bit floats, as functions' names have them.
SHORT = {"float16": "f16", "bfloat16": "bf16"}


# --- 16-bit floats ---


def pair(dtype: str, low: Scalar, high: Scalar) -> Scalar:
    """Two floats as a pair."""
    return extern("uint32", f"pair_{SHORT[dtype]}", low, high)


def scale_pair(dtype: str, word: Scalar, odd: Scalar) -> Scalar:
    """One of the two float16 scales of a word, twice; ``odd`` 1 takes the high one."""
    return extern("uint32", f"scale_{SHORT[dtype]}", word, odd)


def unpack_octet(kind: str, dtype: str, address: Scalar, codes: list[Scalar], scale: Scalar | None) -> None:
    """Write eight weights as four pairs: weights 0 and 2, 1 and 3, 4 and 6, 5 and 7. ``codes`` are the words that hold
    them. Codes are multiplied by ``scale``, unless it is None.
    """
    perform(f"unpack_{kind}_{SHORT[dtype]}", address, *codes)
    if scale is not None:
        perform(f"scale_pairs_{SHORT[dtype]}", address, scale)


def unpack_codes(kind: str, address: Scalar, codes: list[Scalar]) -> None:
    """As `unpack_octet` to float16, without a scale."""
    perform(f"unpack_{kind}_f16", address, *codes)


def unpack_raised_nibbles(address: Scalar, codes: Scalar, masks: Sequence[Scalar]) -> None:
    """As `unpack_codes` of 4 bits, but the last two pairs are 72 more than the weights. ``masks``: 0x000F000F and
    0x00F000F0, as the results of `unknown`.
    """
    perform("unpack_raised_q4_f16", address, codes, *masks)


def unpack_bytes(kind: str, address: Scalar, first: Scalar, second: Scalar) -> None:
    """Write the bytes of two words, "signed" integers or "e4m3" floats, as four pairs: bytes 0 and 2, and 1 and 3, of
    each word.
    """
    perform(f"unpack_{kind}_f16", address, first, second)


def halves_of_word(word: Scalar) -> tuple[Scalar, Scalar]:
    """The two float16 numbers of a word as float32."""
    both = extern("float32x2", "unpack2x16float", word)
    return lane_of(both, 0), lane_of(both, 1)


def scale_codes(dtype: str, address: Scalar, codes: list[Scalar], scale: Scalar, offset: Scalar) -> None:
    """As `unpack_octet`, for codes in the bytes of two words, which are multiplied by ``scale`` and added to ``offset``
    in float32.
    """
    perform(f"scale_codes_{SHORT[dtype]}", address, *codes, scale, offset)


def unknown(value: Scalar) -> Scalar:
    """The same word in a form that the compiler does not recognise as a constant. Store it at once."""
    return result_of("uint32", "unknown", value)


# --- copies ---


def copy_16_bytes(shared: Scalar, address: Scalar, present: Scalar | int) -> None:
    """Start a copy to shared memory, or of zeros if ``present`` is 0; it has happened after `wait_for_copies`."""
    perform("copy_16_bytes", shared, address, present)


def copy_element(shared: Scalar, address: Scalar, size: int) -> None:
    """Start a copy of an aligned element of 4, 8 or 16 bytes to shared memory."""
    assert size in (4, 8, 16), size
    perform(f"copy_{size}_bytes", shared, address, *((1,) if size == 16 else ()))


def wait_for_copies() -> None:
    """Wait for the copies that this thread started."""
    perform("wait_for_copies")


def commit_copies() -> None:
    """Close the group of the copies that this thread started since the last group; it may be empty."""
    perform("commit_copies")


def wait_for_older_copies(groups: int) -> None:
    """Wait for all groups of copies except the last ``groups``."""
    perform(f"wait_for_copies_before<{groups}>")


# --- maths ---


def fast_exp2(value: Scalar) -> Scalar:
    """2 to the power of a float32, within two units in the last place; 0 for results below the normal numbers."""
    return extern("float32", "fast_exp2", value)


def fast_reciprocal(value: Scalar) -> Scalar:
    """1 / value in float32, within one unit in the last place; 0 for infinity."""
    return extern("float32", "fast_reciprocal", value)


# --- the order of kernels and of workgroups ---


def wait_for_previous_kernel() -> None:
    """Wait until the results of all previous kernels are visible, and allow the next kernel to start.

    Before this call, a kernel writes nothing, and reads nothing but weights and, if the previous kernel cannot have
    written them, pages and the batch's inputs. `targets.cuda.source` checks it.
    """
    perform(WAIT)
    perform("allow_next_kernel")


def arrive(counter: Scalar) -> Scalar:
    """Add 1 to a counter in global memory; the result is its former value. Store it at once. Earlier writes of this
    thread are visible to threads that see the new value.
    """
    return result_of("uint32", "arrive", counter)


# --- warps: all threads of a warp together ---


def load_transposed(words: Scalar, address: Scalar) -> None:
    """Four 8 by 8 matrices of 16-bit elements from shared memory, transposed, in four words of each thread."""
    perform("load_transposed", words, address)


def multiply_tiles(dtype: str, sums: Scalar, a: Scalar, b: Scalar) -> None:
    """sums (16, 8) += a (16, 16) @ b (16, 8) on tensor cores, spread over a warp (PTX ISA, matrix fragments for
    mma.m16n8k16).
    """
    perform(f"mma_{SHORT[dtype]}", sums, a, b)


def any_in_warp(condition: Scalar) -> Scalar:
    """Whether a condition holds in any thread of the warp. Store it at once."""
    return result_of("int32", "any_in_warp", condition)


def quad_max(value: Scalar) -> Scalar:
    """The largest float32 of the four threads that hold a row of a tile. Store it at once."""
    return result_of("float32", "quad_max", value)


def pair_sum(value: Scalar) -> Scalar:
    """The sum of the float32 of two adjacent threads. Store it at once."""
    return result_of("float32", "pair_sum", value)


def warp_max(value: Scalar) -> Scalar:
    """The largest float32 of a warp. Store it at once."""
    return result_of("float32", "warp_max", value)


def warp_barrier() -> None:
    """Wait for all threads of the warp. What they wrote to shared memory before is visible to them."""
    perform("warp_barrier")


def quad_sum(value: Scalar) -> Scalar:
    """As `quad_max`, the sum."""
    return result_of("float32", "quad_sum", value)


# --- groups of four warps, on Hopper GPUs: all threads of a group together ---


def multiply_asynchronously(rows: int, dtype: str, sums: Scalar, upper: Scalar, lower: Scalar, tile: Scalar) -> None:
    """sums (64, rows) += a (64, 16) @ b (rows, 16).T on tensor cores, spread over the group (PTX ISA, register
    fragments for wgmma.mma_async.m64nNk16). ``upper`` and ``lower`` are the two words of a's rows that the thread has,
    8 rows apart. ``tile`` is b in shared memory, in the order of 128-byte swizzle.

    Until `wait_for_older_products`, the words and the tile may be read and the sums are not defined.
    """
    perform(f"wgmma_{rows}_{SHORT[dtype]}", sums, upper, lower, tile)


def compute_now(count: int, words: Scalar) -> None:
    """Have ``count`` words computed before whatever follows, so that products overlap with it."""
    perform(f"compute_now<{count}>", words)


def start_products() -> None:
    """Let the next products read the registers that were written before."""
    perform("start_products")


def commit_products() -> None:
    """Close the group of the products that this thread started since the last group."""
    perform("commit_products")


def wait_for_older_products(groups: int) -> None:
    """Wait for all groups of products except the last ``groups``."""
    perform(f"wait_for_products_before<{groups}>")


def use_sums(count: int, sums: Scalar) -> None:
    """Call this between the last wait and the first use of ``count`` sums."""
    perform(f"use_sums<{count}>", sums)


# --- copies of whole tiles, on Hopper GPUs ---


def create_barrier(barrier: Scalar, arrivals: int) -> None:
    """Make 8 bytes of shared memory a barrier. A phase ends after ``arrivals`` and the bytes that they announced."""
    perform("create_barrier", barrier, arrivals)


def arrive_at(barrier: Scalar) -> None:
    perform("arrive_at", barrier)


def publish_barriers() -> None:
    """Make this thread's new barriers visible to copies. Other threads see them after the next `barrier`."""
    perform("publish_barriers")


def expect_bytes(barrier: Scalar, count: int) -> None:
    """Arrive, and announce the bytes that the next copies bring."""
    perform("expect_bytes", barrier, count)


def copy_tile(shared: Scalar, address: Scalar, size: int, barrier: Scalar) -> None:
    """Start a copy of ``size`` bytes to shared memory, which a barrier counts."""
    assert size % 16 == 0, size
    perform("copy_tile", shared, address, size, barrier)


def wait_for_phase(barrier: Scalar, phase: Scalar) -> None:
    """Wait for the end of a phase. ``phase`` is 0 for the first time, then 1, then 0 and so on."""
    perform("wait_for_phase", barrier, phase)
