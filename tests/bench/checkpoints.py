"""Random checkpoints with real models' shapes for benchmarks, written without holding the model in memory, and their
compilation in a separate process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from nearfar.compiler.formats.huggingface import read_spec
from nearfar.compiler.ir.tasks import EmbeddingSpec
from nearfar.compiler.measure.shapes import shape_checkpoint
from nearfar.compiler.runtime.errors import RequestError


@dataclass(frozen=True, slots=True)
class Shapes:
    """The keys of a published model's config.json that determine its shapes, and what only other files say: the number
    of layers of the heads that draft tokens, and what an embedding model computes.
    """

    name: str
    config: dict[str, Any] = field(default_factory=dict)
    draft_layers: int = 0
    embedding: EmbeddingSpec | None = None


QWEN3_0_6B = Shapes(
    "Qwen3-0.6B",
    {
        "model_type": "qwen3", "vocab_size": 151936, "hidden_size": 1024, "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 3072, "tie_word_embeddings": True,
        "rope_theta": 1000000.0,
        "rms_norm_eps": 1e-06, "max_position_embeddings": 40960, "hidden_act": "silu", "attention_bias": False,
    },
)  # fmt: skip
QWEN2_0_5B = Shapes(
    "Qwen2-0.5B",
    {
        "model_type": "qwen2", "vocab_size": 151936, "hidden_size": 896, "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2, "intermediate_size": 4864, "tie_word_embeddings": True,
        "rope_theta": 1000000.0,
        "rms_norm_eps": 1e-06, "max_position_embeddings": 32768, "hidden_act": "silu",
    },
)  # fmt: skip
LLAMA_3_2_1B = Shapes(
    "Llama-3.2-1B",
    {
        "model_type": "llama", "vocab_size": 128256, "hidden_size": 2048, "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8, "head_dim": 64, "intermediate_size": 8192, "tie_word_embeddings": True,
        "rope_theta": 500000.0,
        "rms_norm_eps": 1e-05, "max_position_embeddings": 131072, "hidden_act": "silu", "attention_bias": False,
        "mlp_bias": False,
        "rope_scaling": {
            "rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    },
)  # fmt: skip
LFM2_1_2B = Shapes(
    "LFM2-1.2B",
    {
        "model_type": "lfm2", "vocab_size": 65536, "hidden_size": 2048, "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8, "block_ff_dim": 12288, "block_auto_adjust_ff_dim": True,
        "block_ffn_dim_multiplier": 1.0, "block_multiple_of": 256, "tie_embedding": True,
        "full_attn_idxs": [2, 5, 8, 10, 12, 14], "conv_L_cache": 3, "conv_bias": False,
        "rope_theta": 1000000.0,
        "norm_eps": 1e-05, "max_position_embeddings": 128000,
    },
)  # fmt: skip
QWEN3_5_0_8B = Shapes(
    "Qwen3.5-0.8B",
    {
        "model_type": "qwen3_5_text", "vocab_size": 248320, "hidden_size": 1024, "num_hidden_layers": 24,
        "num_attention_heads": 8,
        "num_key_value_heads": 2, "head_dim": 256, "intermediate_size": 3584, "tie_word_embeddings": True,
        "full_attention_interval": 4, "linear_num_value_heads": 16, "linear_num_key_heads": 16,
        "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000000, "partial_rotary_factor": 0.25},
        "rms_norm_eps": 1e-06, "max_position_embeddings": 262144, "hidden_act": "silu", "attention_bias": False,
        "attn_output_gate": True,
    },
)  # fmt: skip
# The layers of Qwen3-30B-A3B with an eighth of its experts, half of those chosen, and fewer layers.
MIXTURE = Shapes(
    "mixture-16x4",
    {
        "model_type": "qwen3_moe", "vocab_size": 151936, "hidden_size": 2048, "num_hidden_layers": 20,
        "num_attention_heads": 32,
        "num_key_value_heads": 4, "head_dim": 128, "intermediate_size": 6144, "tie_word_embeddings": True,
        "num_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 768, "norm_topk_prob": True,
        "decoder_sparse_step": 1, "mlp_only_layers": [],
        "rope_theta": 1000000.0,
        "rms_norm_eps": 1e-06, "max_position_embeddings": 40960, "hidden_act": "silu", "attention_bias": False,
    },
)  # fmt: skip
# Six of the 48 layers of Qwen3-30B-A3B, with all experts, and a part of its vocabulary.
SPARSE_MIXTURE = Shapes(
    "mixture-128x8",
    {
        **MIXTURE.config, "vocab_size": 32768, "num_hidden_layers": 6, "num_experts": 128, "num_experts_per_tok": 8,
    },
)  # fmt: skip
# The layers and heads of Qwen2-0.5B with a quarter to an eighth of the width: the calls per token are the same, and a
# CPU is fast enough.
QWEN2_NARROW = Shapes(
    "Qwen2-0.5B-narrow",
    {
        **QWEN2_0_5B.config,
        "vocab_size": 1024,
        "hidden_size": 224,
        "intermediate_size": 608,
        "max_position_embeddings": 4096,
    },
)
# An embedding model.
MINILM = Shapes(
    "all-MiniLM-L6-v2",
    {
        "model_type": "bert", "vocab_size": 30522, "hidden_size": 384, "num_hidden_layers": 6,
        "num_attention_heads": 12,
        "intermediate_size": 1536, "max_position_embeddings": 512, "type_vocab_size": 2, "hidden_act": "gelu",
        "layer_norm_eps": 1e-12,
    },
    embedding=EmbeddingSpec("mean", normalize=True, size=384),
)  # fmt: skip
# For long prompts on a CPU.
QWEN2_FEW_LAYERS = Shapes("Qwen2-0.5B-narrow-4-layers", {**QWEN2_NARROW.config, "num_hidden_layers": 4})


# Models with states or experts, by their names.
HYBRIDS = {shapes.name: shapes for shapes in (LFM2_1_2B, QWEN3_5_0_8B, MIXTURE)}


def published(name: str) -> Shapes:
    """The shapes of a model of `arch/published/`, such as "gemma-3-1b-it", or of one of HYBRIDS."""
    if name in HYBRIDS:
        return HYBRIDS[name]
    folder = Path(str(files("nearfar.compiler.arch") / "published"))
    names = sorted(path.stem for path in folder.glob("*.json"))
    if name not in names:
        raise RequestError(f"{name}: is not a published model; those are {', '.join(names)}")
    return Shapes(name, json.loads((folder / f"{name}.json").read_text()))


def write_checkpoint(shapes: Shapes, folder: Path, deviation: Callable[[int], float] = lambda _: 0.02) -> Path:
    """Write a Hugging Face folder with bfloat16 weights from one seed. Returns the folder.

    ``deviation`` is the standard deviation of weights, for the columns of a matrix or 1.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "config.json"
    config.write_text(json.dumps({"torch_dtype": "bfloat16", **shapes.config}))
    write_tokenizer(folder / "tokenizer.json")
    spec = replace(read_spec(config), draft_layers=shapes.draft_layers)
    tensors = shape_checkpoint(config, spec).tensors
    write_safetensors(folder / "model.safetensors", {name: tensor.shape for name, tensor in tensors.items()}, deviation)
    return folder


def write_safetensors(
    path: Path, tensors: dict[str, tuple[int, ...]], deviation: Callable[[int], float] = lambda _: 0.02
) -> None:
    header, end = {}, 0
    for name, shape in tensors.items():
        size = 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    generator = np.random.default_rng(0)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for shape in tensors.values():
            scale = np.float32(deviation(shape[1] if len(shape) > 1 else 1))
            # The upper half of a float32, rounded, is a bfloat16.
            for rows in np.array_split(np.arange(shape[0]), max(1, int(np.prod(shape)) >> 22)):
                values = generator.standard_normal((len(rows), *shape[1:]), np.float32) * scale
                file.write((values.view(np.uint32) >> 16).astype(np.uint16).tobytes())


def write_tokenizer(path: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: index for index, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(path))


@dataclass(frozen=True, slots=True)
class Usage:
    """What a process took: its duration, the time of all its threads, and the most bytes that were resident."""

    seconds: float
    processor_seconds: float
    peak_bytes: int


def compile_in_process(checkpoint: Path, bundle: Path, *options: str) -> Usage:
    """Run `nearfar compile` with further options in a separate process, which finds no compiled kernels."""
    command = [sys.executable, "-m", "nearfar.compiler.cli", "compile", str(checkpoint), "-o", str(bundle)]
    command += ["--force", "--json", *options]
    with tempfile.TemporaryDirectory(prefix="nearfar-") as kernels:
        environment = {**os.environ, "NEARFAR_KERNEL_CACHE": kernels}
        started = time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment)
        _, status, used = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return Usage(seconds, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024)
