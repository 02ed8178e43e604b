"""CompileOptions: what a bundle is compiled for, and how."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal

from ..ir.kv_format import KvName
from ..ir.tasks import Task
from ..names import ACTIVATIONS, EXPORTS, GROUPS, QUANTIZATIONS, TARGETS
from ..options import File, Flag, ModelName, options

# Called with a sentence that the user should read.
Note = Callable[[str], None]
# Called with a phase ("read", "graph", "kernels", "weights", "self-test", "prefixes"), the finished units and all units
# of the phase.
Progress = Callable[[str, int, int], None]
# Also of `nearfar serve`, `run`, `inspect` and `quality`, which compile or read models too.
IgnoredKeys = Annotated[
    tuple[str, ...],
    Flag(
        ("--ignore-key",),
        metavar="NAME",
        text="for a model: a key of config.json that is unknown to the compiler and changes nothing in the model's "
        "mathematics; may be repeated",
    ),
]


@options
class ModelOptions:
    """What `nearfar serve` too can be asked for when it compiles a model."""

    quantization: Annotated[str | None, Flag(choices=QUANTIZATIONS)] = None
    """the weights' format (default: q4f16, and q8f16 of encoders; weights that the checkpoint stores quantized stay as
    they are)"""
    requantize: bool = False
    """also convert the weights that the checkpoint stores quantized, by rounding them to the weights' format"""
    context: int | None = None
    """the longest sequence in tokens (default: 4096, or the model's limit if that is less)"""
    kv: KvName = "activation"
    """format of keys and values: activation, as computed; q8, 8-bit integers in half the memory of float16; q4, 4-bit
    integers in a quarter; or fp8, 8-bit floats (E4M3), on cuda"""
    lora_rank: Annotated[int, Flag(metavar="RANK")] = 0
    """accept LoRA adapters of up to this rank; each request can choose one (default: no adapters)"""
    text_only: bool = False
    """leave out the tower of a model that sees pictures"""
    ignore_keys: IgnoredKeys = ()


@options
class CompileOptions(ModelOptions):
    """What `nearfar compile` accepts besides the model and the output."""

    target: Annotated[str, Flag(choices=(*TARGETS, *EXPORTS))] = "webgpu"
    """the device or framework"""
    task: Task | None = None
    """what the model is for; rerank makes a reranker of a language model that answers yes or no, such as Qwen3-Reranker
    (default: what its files say)"""
    adapter: Annotated[str | None, Flag(metavar="NAME")] = None
    """the task whose adapter becomes part of the model, if it has one for each task (Jina Embeddings 3), such as
    retrieval.query"""
    assistant: Annotated[ModelName | None, Flag(metavar="MODEL")] = None
    """the assistant of a Gemma 4 model, which drafts its tokens and becomes part of the bundle (webgpu, cpu, cuda)"""
    arch: Annotated[str | None, Flag(metavar="ARCH")] = None
    """the architecture to compile kernels for, if the target needs one: for cpu, x86_64 or aarch64; for cuda, such as
    sm_90, or sm_90-cuda12 for drivers older than 580 (default: the target's)"""
    quality: Literal["best"] | None = None
    """best: fit the weights to a calibration text, each matrix in the format that the budget of --bits is best spent on
    (webgpu, cpu, cuda); takes longer"""
    bits: Annotated[float | None, Flag(metavar="B")] = None
    """with --quality best: bits a weight on average, scales included (default: 4.5)"""
    calibration: File | None = None
    """with --quality best: a UTF-8 text like those that the model will read and write (default: the model itself
    continues texts that come with nearfar)"""
    activations: Annotated[tuple[str, ...] | None, Flag(choices=ACTIVATIONS, metavar="DTYPE", several=True)] = None
    """activation dtypes to offer, best first: float16 and float32; bfloat16 on cuda and mlx; int8 on cpu and webgpu
    (default: those of the quantization)"""
    group_size: Annotated[int | None, Flag(choices=GROUPS, metavar="N")] = None
    """for onnx and mlx: the number of weights that share a scale: 32, 64 or 128 (default: 32)"""
    watermark: bool = False
    """for answers that can have the watermark of a server's --watermark-key (webgpu, cpu, cuda); a model that generates
    no text is compiled as without it"""
    device: Annotated[str | None, Flag(metavar="DEVICE")] = None
    """for onnx: the device that the graph is made for: cpu, webgpu, cuda, ... (default: cpu)"""
    tuning: Annotated[tuple[Path, ...], Flag(metavar="FILE", several=True)] = ()
    """include results of engine.exportTuning(), so that those GPUs need not measure again"""
    prefix: Annotated[tuple[Path, ...], Flag(metavar="FILE", several=True)] = ()
    """for webgpu: UTF-8 texts of system messages whose keys and values come with the bundle, at most 32 MiB each, so
    that no page computes them before its first token"""
    self_test: bool = True
    """leave out the test with which runtimes check that a device computes correctly"""
    force: bool = False
    """replace an existing bundle"""
