"""config.json and the tokenizer's files, in the form that mlx-lm, mlx-swift and software based on them read.

config.json is generated from the ModelSpec instead of copied, because mlx-lm reads ``rope_theta`` at the top of the
file only, and some of its defaults differ from those of transformers.

mlx-lm's phi3 ignores a sliding window, and its llama, which also reads mistral, needs a layer without one. A folder
whose windows mlx-lm does not compute names a model_type that mlx-lm does not know, so mlx-lm rejects it instead of
answering wrongly; our runner computes it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from nearfar.compiler.errors import UnsupportedModel
from nearfar.compiler.formats import Checkpoint
from nearfar.compiler.formats.json_file import read_json_object
from nearfar.compiler.ir.rope import rotary_dim
from nearfar.compiler.ir.spec import ModelSpec, RopeSpec

from .packing import Packing


@dataclass(frozen=True, slots=True)
class Model:
    """A model of mlx-lm: its name in transformers, a test for the specs that it computes, and the keys of config.json
    that only it reads.

    ``mixes_windows``: it reads ``layer_types`` and ``sliding_window``, and needs at least one layer without a window.
    """

    class_name: str
    computes: Callable[[ModelSpec], bool]
    keys: Callable[[ModelSpec], dict[str, Any]] = lambda spec: {}  # noqa: ARG005
    mixes_windows: bool = False


def write_config(
    spec: ModelSpec,
    packing: Packing,
    context: int,
    folder: Path,
    stored: Mapping[str, tuple[int, int]] = MappingProxyType({}),
) -> None:
    """``context``: the longest sequence that the bundle supports. ``stored``: weights per group and bits per weight of
    the modules that the checkpoint stores quantized. Raises UnsupportedModel if mlx-lm would compute another model.
    """
    model = require_known(spec)
    windows = windows_within(spec, context)
    config: dict[str, Any] = {
        "architectures": [model.class_name],
        "model_type": spec.model_type,
        "vocab_size": spec.vocab_size,
        "hidden_size": spec.hidden_size,
        "intermediate_size": spec.intermediate_size,
        "num_hidden_layers": spec.num_layers,
        "num_attention_heads": spec.num_heads,
        "num_key_value_heads": spec.num_kv_heads,
        "head_dim": spec.head_dim,
        "hidden_act": "silu",
        # Beyond this context, omitted windows would matter.
        "max_position_embeddings": context if windows != spec.windows else spec.max_position_embeddings,
        "rms_norm_eps": spec.rms_norm_eps,
        "rope_theta": spec.rope.theta,
        **rope_scaling(spec.rope),
        "tie_word_embeddings": spec.tie_word_embeddings,
        **model.keys(spec),
        **window_keys(spec.model_type, model, windows),
        "torch_dtype": packing.activation,
    }
    if spec.bos_token_id is not None:
        config["bos_token_id"] = spec.bos_token_id
    if spec.eos_token_ids:
        config["eos_token_id"] = list(spec.eos_token_ids) if len(spec.eos_token_ids) > 1 else spec.eos_token_ids[0]
    if packing.group is not None or stored:
        group, bits = packing.group or next(iter(stored.values()))
        modules = {name: {"group_size": group, "bits": bits} for name, (group, bits) in stored.items()}
        quantization = {"group_size": group, "bits": bits, "mode": "affine", **modules}
        # mlx-lm reads the first name, the hub and transformers the second.
        config["quantization"] = config["quantization_config"] = quantization
    (folder / "config.json").write_text(json.dumps(config, indent=2))


def require_known(spec: ModelSpec) -> Model:
    """The model of mlx-lm that computes the spec. Raises UnsupportedModel."""
    model = MODELS.get(spec.model_type)
    unknown = spec.activation != "silu" or spec.rope.scaling not in ("none", "linear", "llama3")
    if model is None or unknown or not model.computes(spec):
        rotated = rotary_dim(spec.rope, spec.head_dim)
        raise UnsupportedModel(
            f"mlx-lm's {spec.model_type} has no such model (biases qkv {spec.qkv_bias}, output {spec.output_bias}, "
            f"feed-forward "
            f"{spec.mlp_bias}; norms of heads {spec.qk_norm}; head size {spec.head_dim}, {rotated} of them rotated "
            f"with scaling "
            f"{spec.rope.scaling}; {spec.num_heads} heads, hidden size {spec.hidden_size}; activation "
            f"{spec.activation}); "
            "take another --target",
            model_type=spec.model_type,
        )
    return model


def windows_within(spec: ModelSpec, context: int) -> tuple[int | None, ...]:
    """The windows that hide a token of a context, by layer; empty if none does."""
    windows = tuple(None if window is None or window >= context else window for window in spec.windows)
    return windows if any(windows) else ()


def window_keys(model_type: str, model: Model, windows: tuple[int | None, ...]) -> dict[str, Any]:
    if not windows:
        return {}
    sizes = {window for window in windows if window is not None}
    keys: dict[str, Any] = {
        "layer_types": ["full_attention" if window is None else "sliding_attention" for window in windows],
        "sliding_window": max(sizes),
    }
    if model.mixes_windows and len(sizes) == 1 and None in windows:
        return keys
    return {**keys, "model_type": f"{model_type}_sliding_window"}


def has_bias(spec: ModelSpec) -> bool:
    return spec.qkv_bias or spec.output_bias or spec.mlp_bias


def rotates_whole_heads(spec: ModelSpec) -> bool:
    return rotary_dim(spec.rope, spec.head_dim) == spec.head_dim


def splits_hidden_size(spec: ModelSpec) -> bool:
    """Whether the head size is the default of a model without ``head_dim``."""
    return spec.head_dim * spec.num_heads == spec.hidden_size


def partial_rotary_factor(spec: ModelSpec) -> float:
    return rotary_dim(spec.rope, spec.head_dim) / spec.head_dim


def rotates_as_written(spec: ModelSpec) -> bool:
    """Whether mlx-lm computes the rotation from its theta and the rotated part, which it takes from a factor."""
    rotated = int(spec.head_dim * partial_rotary_factor(spec))
    return spec.rope.scaling == "none" and rotated == rotary_dim(spec.rope, spec.head_dim)


MODELS = {
    "ernie4_5": Model(
        "Ernie4_5ForCausalLM",
        lambda spec: spec.qkv_bias == spec.output_bias == spec.mlp_bias and spec.rope.scaling == "none",
        lambda spec: {"use_bias": spec.qkv_bias},
    ),
    "glm4": Model(
        "Glm4ForCausalLM",
        lambda spec: not spec.tie_word_embeddings and rotates_as_written(spec),
        lambda spec: {"attention_bias": spec.qkv_bias, "partial_rotary_factor": partial_rotary_factor(spec)},
    ),
    "hunyuan_v1_dense": Model(
        "HunYuanDenseV1ForCausalLM",
        lambda spec: spec.qkv_bias == spec.output_bias and spec.rope.scaling == "none",
        lambda spec: {"attention_bias": spec.qkv_bias},
    ),
    "llama": Model(
        "LlamaForCausalLM",
        lambda spec: spec.qkv_bias == spec.output_bias and not spec.qk_norm and rotates_whole_heads(spec),
        lambda spec: {"attention_bias": spec.qkv_bias, "mlp_bias": spec.mlp_bias},
        mixes_windows=True,
    ),
    "mistral": Model(
        "MistralForCausalLM",
        lambda spec: not has_bias(spec) and not spec.qk_norm and rotates_whole_heads(spec),
        mixes_windows=True,
    ),
    "phi3": Model(
        "Phi3ForCausalLM",
        lambda spec: not has_bias(spec) and not spec.qk_norm and splits_hidden_size(spec) and rotates_as_written(spec),
        lambda spec: {"partial_rotary_factor": partial_rotary_factor(spec)},
    ),
    "qwen2": Model(
        "Qwen2ForCausalLM",
        lambda spec: (
            spec.qkv_bias
            and not spec.output_bias
            and not spec.mlp_bias
            and not spec.qk_norm
            and splits_hidden_size(spec)
            and rotates_whole_heads(spec)
        ),
    ),
    "qwen3": Model("Qwen3ForCausalLM", lambda spec: not has_bias(spec) and spec.qk_norm and rotates_whole_heads(spec)),
}


def rope_scaling(rope: RopeSpec) -> dict[str, Any]:
    if rope.scaling == "none":
        return {}
    scaling: dict[str, Any] = {"rope_type": rope.scaling, "factor": rope.factor}
    if rope.scaling == "llama3":
        scaling |= {
            "low_freq_factor": rope.low_freq_factor,
            "high_freq_factor": rope.high_freq_factor,
            "original_max_position_embeddings": rope.original_max_position_embeddings,
        }
    return {"rope_scaling": scaling}


def write_tokenizer(checkpoint: Checkpoint, folder: Path) -> None:
    """Write an unchanged tokenizer.json, and a tokenizer_config.json with the chat template and all special tokens."""
    files = checkpoint.tokenizer
    (folder / "tokenizer.json").write_bytes(files.read())
    path = checkpoint.path / "tokenizer_config.json"
    config = read_json_object(path) if path.is_file() else {}
    # Without a class, transformers would build a tokenizer from the rules of the model_type instead of tokenizer.json.
    config.setdefault("tokenizer_class", "PreTrainedTokenizerFast")
    found = {
        "bos_token": files.bos_token,
        "eos_token": files.eos_token,
        "pad_token": files.pad_token,
        "unk_token": files.unk_token,
        "chat_template": files.chat_template,
    }
    config |= {name: text for name, text in found.items() if text is not None}
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2, ensure_ascii=False))
