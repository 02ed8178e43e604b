"""config.json and the tokenizer's files, in the form that mlx-lm, mlx-swift and software based on them read.

config.json is generated from the ModelSpec instead of copied, because mlx-lm reads ``rope_theta`` at the top of the
file only, and some of its defaults differ from those of transformers.

mlx-lm's phi3 and gemma2 ignore windows, and its llama, which also reads mistral, needs a layer without one. A folder
whose windows mlx-lm does not compute names a model_type that mlx-lm does not know, so mlx-lm rejects it instead of
answering wrongly; our runner computes it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from nearfar.compiler.export.checkpoint_config import end_ids, sizes
from nearfar.compiler.formats import Checkpoint
from nearfar.compiler.formats.json_file import read_json_object
from nearfar.compiler.ir.spec import ModelSpec

from .models import Model, require_known
from .packing import Packing
from .rope_config import rope_keys


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
    model = require_known(spec, packing.activation)
    windows = spec.windows if model.windows == "own" else windows_within(spec, context)
    read = text_keys(spec, model, context)
    config: dict[str, Any] = {
        "architectures": [model.class_name],
        "model_type": model.model_type or spec.model_type,
        **({"text_config": {"model_type": spec.model_type, **read}} if model.has_section else read),
        **({} if model.windows == "own" else window_keys(spec.model_type, model, windows)),
        **shared_keys(spec, packing, stored),
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2))


def text_keys(spec: ModelSpec, model: Model, context: int) -> dict[str, Any]:
    """The keys of a text model that ``model`` computes, without its windows if other models share its key for them."""
    windows = spec.windows if model.windows == "own" else windows_within(spec, context)
    keys = model.keys(spec, context)
    read = {
        **sizes(spec),
        # The Gemmas have a key of their own, and Nemotron's activation a name of its own.
        **(
            {}
            if "hidden_activation" in keys
            else {"hidden_act": "silu" if model.activation == "silu" else "gelu_pytorch_tanh"}
        ),
        "max_position_embeddings": longest_sequence(spec, context, windows),
        "rms_norm_eps": spec.rms_norm_eps,
        **({} if "rope_parameters" in keys else rope_keys(spec.rope, spec.head_dim, context)),
        "tie_word_embeddings": spec.tie_word_embeddings,
    }
    return {name: value for name, value in read.items() if name not in model.unread} | keys


def shared_keys(spec: ModelSpec, packing: Packing, stored: Mapping[str, tuple[int, int]]) -> dict[str, Any]:
    """The keys at the top of every config.json: the dtype, special tokens, and how weights are stored."""
    config: dict[str, Any] = {"torch_dtype": packing.activation}
    if spec.bos_token_id is not None:
        config["bos_token_id"] = spec.bos_token_id
    if spec.eos_token_ids:
        config["eos_token_id"] = end_ids(spec)
    if packing.group is not None or stored:
        group, bits = packing.group or next(iter(stored.values()))
        modules = {name: {"group_size": group, "bits": bits} for name, (group, bits) in stored.items()}
        quantization = {"group_size": group, "bits": bits, "mode": "affine", **modules}
        # mlx-lm reads the first name, the hub and transformers the second.
        config["quantization"] = config["quantization_config"] = quantization
    return config


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
    if model.windows == "mixed" and len(sizes) == 1 and None in windows:
        return keys
    return {**keys, "model_type": f"{model_type}_sliding_window"}


def longest_sequence(spec: ModelSpec, context: int, windows: tuple[int | None, ...]) -> int:
    """The key with the number of positions for which the folder computes the model; mlx-lm's "longrope" scales by
    it.
    """
    if spec.rope.scaling == "longrope":
        return spec.max_position_embeddings
    # Beyond this context, omitted windows would matter, or frequencies would be others.
    fixed = windows != spec.windows or spec.rope.scaling == "dynamic"
    return context if fixed else spec.max_position_embeddings


def write_tokenizer(checkpoint: Checkpoint, folder: Path) -> None:
    """Write an unchanged tokenizer.json, and a tokenizer_config.json with the chat template and all special tokens."""
    files = checkpoint.tokenizer
    (folder / "tokenizer.json").write_bytes(files.content)
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
