"""rope_append: q/k norm, rotation, and the append of keys and values to their pages, from a joint q/k/v projection.

One workgroup: one head of one new token, of the H query, K key and K value heads. One thread: the pair of elements (i, i + D/2) that
rotates together.
"""

from __future__ import annotations

from .builder import Kernel, KernelBuilder, Scalar, cast, number, rsqrt, select
from .linear_vector import power_of_two


def rope_append(
    name: str, num_heads: int, num_kv_heads: int, head_dim: int, page_size: int, positions: int, activation: str, norm_eps: float | None
) -> Kernel:
    """``positions`` is the length of the rotation table; ``norm_eps`` None means that q and k are not normed."""
    half, heads, keys_end = head_dim // 2, num_heads + 2 * num_kv_heads, num_heads + num_kv_heads
    kernel = KernelBuilder(name)
    qkv = kernel.buffer("qkv", ("S", heads, head_dim), activation)
    position_of = kernel.buffer("positions", ("S",), "int32")
    table = kernel.buffer("table", (positions, half, 2), "float32")
    slots = kernel.buffer("slots", ("S",), "int32")
    norms = [kernel.buffer(role, (head_dim,), "float32") for role in ("q_norm", "k_norm")] if norm_eps is not None else []
    kv = kernel.buffer("kv", ("P", 2, num_kv_heads, page_size, head_dim), activation, write=True)
    q = kernel.buffer("q", ("S", num_heads, head_dim), activation, write=True)

    threads = max(32, power_of_two(half))
    head, row = kernel.grid(heads, "S")
    pair = kernel.threads(threads)
    inside = pair < half
    value = kernel.local("value", 2, "float32", fill=0)
    with kernel.when(inside):
        for side in range(2):
            value[side] = cast(qkv[row, head, pair + side * half], "float32")

    if norm_eps is not None:
        squares = kernel.shared("squares", (threads,), "float32")
        squares[pair] = value[0] * value[0] + value[1] * value[1]

        def fold(mine: Scalar, other: Scalar) -> None:
            squares[mine] = squares[mine] + squares[other]

        kernel.fold(pair, pair, threads, fold)
        with kernel.when(inside):
            scale = rsqrt(squares[0] * number(1 / head_dim, "float32") + number(norm_eps, "float32"))
            for side in range(2):
                element = pair + side * half
                weight = select(head < num_heads, norms[0][element], norms[1][element])
                value[side] = select(head < keys_end, value[side] * scale * weight, value[side])

    turned = kernel.local("turned", 2, "float32")
    slot = slots[row]
    with kernel.when(inside):
        cosine, sine = table[position_of[row], pair, 0], table[position_of[row], pair, 1]
        turned[0] = value[0] * cosine - value[1] * sine
        turned[1] = value[1] * cosine + value[0] * sine
        for side in range(2):
            element = pair + side * half
            with kernel.when(head < num_heads):
                q[row, head, element] = cast(turned[side], activation)
            with kernel.when(head >= num_heads):
                is_key = head < keys_end
                plane = select(is_key, 0, 1)
                kv_head = head - num_heads - plane * num_kv_heads
                stored = select(is_key, turned[side], value[side])
                kv[slot // page_size, plane, kv_head, slot % page_size, element] = cast(stored, activation)
    return kernel.finish()
