"""config.json and the tokenizer's files, as mlx-lm, mlx-swift and what is built on them read them.

config.json is written from the ModelSpec and not copied: mlx-lm reads ``rope_theta`` at the top of the file only, and some of its defaults
are not those of transformers.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from nearfar.compiler.errors import UnsupportedModel
from nearfar.compiler.formats import Checkpoint
from nearfar.compiler.formats.json_file import read_json_object
from nearfar.compiler.ir.spec import ModelSpec, RopeSpec

from .packing import Packing

CLASSES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}


def write_config(spec: ModelSpec, packing: Packing, folder: Path) -> None:
    """Raises UnsupportedModel where mlx-lm would compute another model than the spec's."""
    require_known(spec)
    config: dict[str, Any] = {
        "architectures": [CLASSES[spec.model_type]],
        "model_type": spec.model_type,
        "vocab_size": spec.vocab_size,
        "hidden_size": spec.hidden_size,
        "intermediate_size": spec.intermediate_size,
        "num_hidden_layers": spec.num_layers,
        "num_attention_heads": spec.num_heads,
        "num_key_value_heads": spec.num_kv_heads,
        "head_dim": spec.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": spec.max_position_embeddings,
        "rms_norm_eps": spec.rms_norm_eps,
        "rope_theta": spec.rope.theta,
        **rope_scaling(spec.rope),
        "tie_word_embeddings": spec.tie_word_embeddings,
        **({"attention_bias": spec.qkv_bias, "mlp_bias": spec.mlp_bias} if spec.model_type == "llama" else {}),
        "torch_dtype": packing.activation,
    }
    if spec.bos_token_id is not None:
        config["bos_token_id"] = spec.bos_token_id
    if spec.eos_token_ids:
        config["eos_token_id"] = list(spec.eos_token_ids) if len(spec.eos_token_ids) > 1 else spec.eos_token_ids[0]
    if packing.group is not None:
        group, bits = packing.group
        # mlx-lm reads the first name, the hub and transformers the second.
        config["quantization"] = config["quantization_config"] = {"group_size": group, "bits": bits, "mode": "affine"}
    (folder / "config.json").write_text(json.dumps(config, indent=2))


def require_known(spec: ModelSpec) -> None:
    known = {
        "llama": spec.qkv_bias == spec.output_bias and not spec.qk_norm,
        "qwen2": spec.qkv_bias and not spec.output_bias and not spec.mlp_bias and spec.head_dim * spec.num_heads == spec.hidden_size,
        "qwen3": not spec.qkv_bias and not spec.output_bias and not spec.mlp_bias and spec.qk_norm,
    }
    if not known.get(spec.model_type, False):
        raise UnsupportedModel(
            f"mlx-lm's {spec.model_type} has no such model (biases qkv {spec.qkv_bias}, output {spec.output_bias}, feed-forward "
            f"{spec.mlp_bias}; head size {spec.head_dim}, {spec.num_heads} heads, hidden size {spec.hidden_size}); take another --target",
            model_type=spec.model_type,
        )


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
    """tokenizer.json as it is, and a tokenizer_config.json that has the chat template and all special tokens in it."""
    files = checkpoint.tokenizer
    shutil.copyfile(files.tokenizer_json, folder / "tokenizer.json")
    path = checkpoint.path / "tokenizer_config.json"
    config = read_json_object(path) if path.is_file() else {}
    # Without a class, transformers would make a tokenizer of the model_type's own rules in place of tokenizer.json.
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
