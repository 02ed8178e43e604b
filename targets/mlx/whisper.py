"""A Whisper as a folder that mlx-whisper loads: weights.safetensors with the names of OpenAI's file, and config.json
with its sizes. mlx-whisper has its own tokenizer, and computes the positions of the encoder.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from nearfar.compiler.formats import Checkpoint
from nearfar.compiler.formats.convolutions import ConvolutionMatrix
from nearfar.compiler.ir.graph import Graph, Parameter, Source
from nearfar.compiler.ir.plan import union
from nearfar.compiler.pipeline.weights import tensor_shapes
from nearfar.compiler.runtime.errors import UnsupportedModel

from .names import FolderTensors
from .packing import Packing

WEIGHTS_FILE = "weights.safetensors"
ENCODER, POSITIONS = "model.encoder.", "model.encoder.embed_positions.weight"
# Parts of our names -> mlx-whisper's, in order; what stands before a layer's modules comes first.
NAMES = {
    "model.encoder.layers.": "encoder.blocks.", "model.encoder.layer_norm.": "encoder.ln_post.",
    "model.encoder.conv": "encoder.conv", "model.layers.": "decoder.blocks.", "model.norm.": "decoder.ln.",
    "model.embed_tokens.": "decoder.token_embedding.",
    "model.embed_positions.weight": "decoder.positional_embedding",
    ".self_attn_layer_norm.": ".attn_ln.", ".input_layernorm.": ".attn_ln.",
    ".encoder_attn_layer_norm.": ".cross_attn_ln.", ".final_layer_norm.": ".mlp_ln.",
    ".post_attention_layernorm.": ".mlp_ln.", ".self_attn.": ".attn.", ".encoder_attn.": ".cross_attn.",
    ".q_proj.": ".query.", ".k_proj.": ".key.", ".v_proj.": ".value.", ".o_proj.": ".out.", ".out_proj.": ".out.",
    ".fc1.": ".mlp1.", ".mlp.up_proj.": ".mlp1.", ".fc2.": ".mlp2.", ".mlp.down_proj.": ".mlp2.",
}  # fmt: skip
# By the size of its vocabulary, mlx-whisper takes a model for an English one, or for one of several languages.
VOCABULARIES = {51864: "English", 51865: "99 languages", 51866: "100 languages"}
# The largest difference of positions: those of a file in float16.
ROUNDING = 1e-3


def whisper_tensors(checkpoint: Checkpoint, graphs: Mapping[str, Graph]) -> tuple[Checkpoint, FolderTensors]:
    """The checkpoint from which the folder's tensors are read, and these tensors. Raises UnsupportedModel if
    mlx-whisper would compute another model.
    """
    require_known(checkpoint)
    stored, shapes, parameters = dict(checkpoint.tensors), dict[str, tuple[int, ...]](), []
    for name, (rows, *columns) in tensor_shapes(union(each.parameters for each in graphs.values())).items():
        if name == POSITIONS or name.endswith(".k_proj.bias"):
            continue
        theirs, form = renamed(name), None
        matrix = stored[name]
        if isinstance(matrix, ConvolutionMatrix):
            # One filter, whose kernel has the channels last.
            stored[name] = single = ConvolutionMatrix(matrix.stored)
            theirs = theirs.replace(".matrix", ".weight")
            (rows, *columns), form = single.shape, "f32"
            shapes[theirs] = (rows, matrix.stored.shape[2], matrix.stored.shape[1])
        elif theirs.endswith("positional_embedding"):
            form = "f32"
        parameters.append(Parameter(theirs, (Source(name, 0, rows),), columns[0] if columns else None, form))
    return replace(checkpoint, tensors=stored), FolderTensors(parameters, checkpoint.spec, shapes, WEIGHTS_FILE)


def renamed(name: str) -> str:
    for ours, theirs in NAMES.items():
        name = name.replace(ours, theirs)
    return name


def require_known(checkpoint: Checkpoint) -> None:
    spec, audio = checkpoint.spec, checkpoint.spec.audio
    if spec.model_type != "whisper":
        raise UnsupportedModel(
            f"{checkpoint.path}: mlx-whisper computes Whisper alone, not {spec.model_type}; use --target webgpu, cpu, "
            "cuda or onnx",
            model_type=spec.model_type,
        )
    assert audio is not None
    size = spec.hidden_size
    differs = {
        f"an activation {spec.activation}": spec.activation != "gelu",
        f"feed-forwards of {audio.intermediate_size} and {spec.intermediate_size} elements instead of {4 * size}": {
            audio.intermediate_size,
            spec.intermediate_size,
        }
        != {4 * size},
        "a head of its own": not spec.tie_word_embeddings,
        "a scale of its embedding": spec.embedding_scale != 1,
        f"a vocabulary of {spec.vocab_size} tokens": spec.vocab_size not in VOCABULARIES,
        "biases of keys": any(
            has_values(checkpoint, name) for name in checkpoint.tensors if name.endswith(".k_proj.bias")
        ),
        "positions of its encoder": not has_sinusoids(checkpoint, audio.positions, size),
    }
    for what, found in differs.items():
        if found:
            raise UnsupportedModel(
                f"{checkpoint.path}: has {what}, which mlx-whisper does not compute; use --target webgpu, cpu, cuda or "
                "onnx",
                model_type=spec.model_type,
            )


def has_values(checkpoint: Checkpoint, name: str) -> bool:
    tensor = checkpoint.tensors[name]
    return bool(np.any(tensor.rows(0, tensor.shape[0])))


def has_sinusoids(checkpoint: Checkpoint, count: int, size: int) -> bool:
    """Whether the encoder's positions are those that mlx-whisper computes (sines, then cosines)."""
    frequencies = np.exp(-np.log(10_000) / (size // 2 - 1) * np.arange(size // 2))
    angles = np.arange(count)[:, None] * frequencies
    made = np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
    return bool(np.abs(checkpoint.tensors[POSITIONS].rows(0, count) - made).max() < ROUNDING)


def write_config(checkpoint: Checkpoint, packing: Packing, folder: Path) -> None:
    """mlx-whisper refuses keys that it does not know."""
    spec, audio, group = checkpoint.spec, checkpoint.spec.audio, packing.group
    assert audio is not None
    config: dict[str, Any] = {
        "model_type": "whisper",
        "n_mels": audio.mel_bins,
        "n_audio_ctx": audio.positions,
        "n_audio_state": audio.hidden_size,
        "n_audio_head": audio.num_heads,
        "n_audio_layer": audio.num_layers,
        "n_vocab": spec.vocab_size,
        "n_text_ctx": spec.max_position_embeddings,
        "n_text_state": spec.hidden_size,
        "n_text_head": spec.num_heads,
        "n_text_layer": spec.num_layers,
    }
    if group is not None:
        config["quantization"] = {"group_size": group[0], "bits": group[1]}
    (folder / "config.json").write_text(json.dumps(config, indent=1))
