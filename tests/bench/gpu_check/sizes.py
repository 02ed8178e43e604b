"""The sizes of the check on a GPU, and in a rehearsal on a CPU, which runs the same code on smaller models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bench_cuda_projections import GATED, MATRICES, NORMED
from checkpoints import LLAMA_3_2_1B, QWEN2_0_5B, QWEN3_0_6B, Shapes, published


@dataclass(frozen=True, slots=True)
class Sizes:
    """``far`` and ``near``: the shapes of the CUDA and WebGPU benchmarks by the models' names.

    ``case_stride``: every nth kernel case is prepared. ``clients``: the number of simultaneous clients of the server.
    ``sequences`` with prompts and answers of ``lengths`` tokens (minimum and maximum) run together; a step has at most
    ``step_tokens``. One sequence decodes ``alone_tokens``. Kernels are timed for batches of (sequences, new tokens of
    each). Engines are compared at the numbers of sequences in ``compared``, after as many tokens and for as many steps
    as ``compared_tokens`` says. All candidates of kernels for ``far_matrices`` and ``far_rows`` rows are timed
    ``far_repeats`` times.
    ``copy_bytes`` are copied to measure the memory's speed. ``web_options`` are those of bench_gpu.js.
    """

    far: Mapping[str, Shapes]
    near: Mapping[str, Shapes]
    near_context: int
    case_stride: int
    clients: int
    sequences: int
    lengths: tuple[int, int]
    step_tokens: int
    alone_tokens: int
    kernel_batches: tuple[tuple[int, int], ...]
    compared: tuple[int, ...]
    compared_tokens: tuple[int, int]
    far_matrices: Mapping[str, tuple[int, int, dict[str, Any]]]
    far_rows: tuple[int, ...]
    far_repeats: int
    copy_bytes: int
    web_options: tuple[str, ...]
    projections: tuple[str, ...]
    projection_rows: tuple[int, ...]
    cold_bytes: int
    projection_milliseconds: int


FULL = Sizes(
    far={"Qwen3-0.6B": QWEN3_0_6B, "Llama-3.1-8B": published("llama-3.1-8b-instruct")},
    near={"Qwen2-0.5B": QWEN2_0_5B, "Llama-3.2-1B": LLAMA_3_2_1B},
    near_context=8448,
    case_stride=1,
    clients=64,
    sequences=256,
    # The workload of nano-vllm's bench.py.
    lengths=(100, 1024),
    step_tokens=8192,
    alone_tokens=200,
    kernel_batches=((1, 1), (2, 1), (8, 1), (32, 1), (64, 1), (256, 1), (1, 256), (16, 256)),
    compared=(1, 4, 32, 256),
    compared_tokens=(128, 128),
    far_matrices=MATRICES,
    far_rows=(1, 2),
    far_repeats=20,
    copy_bytes=1 << 30,
    web_options=(),
    # The projections of a layer of Qwen3-0.6B, and its head.
    projections=("4096x1024", "1024x2048", "6144x1024", "1024x3072", "151936x1024"),
    projection_rows=(1, 64, 512),
    cold_bytes=256 << 20,
    projection_milliseconds=50,
)


def narrowed(shapes: Shapes, layers: int = 2) -> Shapes:
    """The same architecture with few layers, narrow enough for an emulated GPU."""
    heads, kv_heads = 4, 2
    narrow = {
        "vocab_size": 512,
        "hidden_size": 128,
        "intermediate_size": 192,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "max_position_embeddings": 1024,
        "eos_token_id": None,
        "bos_token_id": None,
    }
    if "head_dim" in shapes.config:
        narrow["head_dim"] = 32
    return Shapes(shapes.name, {**shapes.config, **narrow})


REHEARSAL = Sizes(
    far={name: narrowed(shapes) for name, shapes in FULL.far.items()},
    near={name: narrowed(shapes) for name, shapes in FULL.near.items()},
    near_context=256,
    case_stride=12,
    clients=6,
    sequences=5,
    lengths=(3, 20),
    step_tokens=32,
    alone_tokens=3,
    kernel_batches=((1, 1), (3, 1), (1, 33)),
    compared=(1, 3),
    compared_tokens=(8, 4),
    far_matrices={"tiny": (256, 24, {**NORMED, **GATED})},
    far_rows=(1, 3),
    far_repeats=1,
    copy_bytes=1 << 20,
    web_options=("--tokens", "4", "--lengths", "8", "--copy-mib", "4", "--any-adapter"),
    projections=("96x64",),
    projection_rows=(1, 3),
    cold_bytes=1 << 16,
    projection_milliseconds=5,
)


def sizes(*, rehearse: bool) -> Sizes:
    return REHEARSAL if rehearse else FULL
