"""Opens a folder that mlc-llm wrote for WebLLM or its own engines: mlc-chat-config.json, tensor-cache.json (earlier
ndarray-cache.json) with params_shard_*.bin, and the tokenizer's files.

The names of tensors, and the parts that a conversion drops, are those of mlc-llm (python/mlc_llm/model/ and
interface/gen_config.py of github.com/mlc-ai/mlc-llm).
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from ..arch import by_model_type
from ..ir.spec import ModelSpec
from ..runtime.errors import CheckpointError
from ..runtime.text.tokenizer_files import TokenizerFiles
from .checkpoint import Checkpoint, Shifted, Tensor
from .config import ConfigReader, require_skippable
from .json_file import read_json_object
from .mlc_params import MlcFormat, format_of, read_matrix, read_records, rows_of
from .multimodal import text_tensors
from .safetensors_file import SafetensorsTensor
from .spec_against_tensors import require_sizes
from .tokenizer_files import read_tokenizer_files

CONFIG_FILE = "mlc-chat-config.json"
# mlc-llm's model types, and the corresponding ones of config.json.
MODEL_TYPES = {
    "llama": "llama",
    "mistral": "mistral",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "gemma2": "gemma2",
    "gemma3": "gemma3_text",
    "gemma3_text": "gemma3_text",
    "phi3": "phi3",
}
# Keys about the way in which mlc-llm runs the model. Its runtime supports a window only for Mistral.
RUNTIME = frozenset(
    {
        "attention_sink_size", "context_window_size", "disaggregation", "is_text_model", "kwargs", "max_batch_size",
        "pipeline_parallel_stages", "position_embedding_base", "prefill_chunk_size", "sliding_window_size",
        "tensor_parallel_shards", "text_config",
    }
)  # fmt: skip
# The keys of a scaled rotation.
ROPE_SCALING = ("rope_scaling", "original_max_position_embeddings")
# Gemma's norms are stored plus one.
SHIFTED = ("gemma2", "gemma3_text")
EMBEDDING, HEAD = "model.embed_tokens", "lm_head"
_LAYER = re.compile(r"(?:model\.layers|transformer\.h)\.(\d{1,5})\.(.+)")
# Modules of Phi-3 with other names.
_RENAMED = {
    "transformer.embd": EMBEDDING,
    "transformer.norm": "model.norm",
    "ln": "input_layernorm",
    "mixer.qkv_proj": "self_attn.qkv_proj",
    "mixer.out_proj": "self_attn.o_proj",
}


def open_mlc(path: Path, ignore_keys: Collection[str] = ()) -> Checkpoint:
    """The checkpoint in a folder. Reads and checks everything except the tensors' values.

    Raises CheckpointError for missing, corrupt or contradictory files, UnsupportedModel for models and quantizations
    that we do not compile.
    """
    where = path / CONFIG_FILE
    values = read_json_object(where)
    require_skippable(ignore_keys, values, str(where))
    chat = ConfigReader(values, str(where))
    section = values.get("model_config")
    if not isinstance(section, dict):
        raise chat.unsupported(
            "model_config", "'model_config' is missing: mlc-llm before 2024 wrote the folder; convert the model again"
        )
    chat.expect("model_type", *MODEL_TYPES)
    model_type = MODEL_TYPES[chat.text("model_type")]
    quantization = format_of(chat)
    records, left_out = text_tensors({_name(name): record for name, record in read_records(path).items()})
    config = _config_of(section, model_type)
    config.setdefault("tie_word_embeddings", not any(name.startswith(f"{HEAD}.") for name in records))
    config["vocab_size"] = _vocab_size(where, records)
    tokenizer = read_tokenizer_files(path, config["vocab_size"])
    config["eos_token_id"] = _ends(chat, values.get("conv_template"), tokenizer)
    spec = by_model_type(model_type).read_config(ConfigReader(config, f"{where}: model_config", ignore_keys))
    tensors = _read_tensors(records, spec, quantization, where)
    require_sizes(where, spec, tensors)
    notes = [*left_out, *_notes(path, config, tokenizer)]
    return Checkpoint(path, spec, tensors, tokenizer, config, notes=tuple(notes))


def _config_of(values: Mapping[str, Any], model_type: str) -> dict[str, Any]:
    """The values of the config.json from which the folder was made, as far as mlc-llm stores them."""
    inner = values.get("text_config")
    if isinstance(inner, dict):
        # The keys of Gemma 3's text model that mlc-llm does not use are one level deeper.
        unused = inner.get("kwargs")
        values = {**(unused if isinstance(unused, dict) else {}), **inner}
    config = {key: value for key, value in values.items() if key not in RUNTIME and value is not None}
    config["model_type"] = model_type
    theta, context, window = (
        values.get(key) for key in ("position_embedding_base", "context_window_size", "sliding_window_size")
    )
    if theta:
        config["rope_theta"] = theta
    if model_type == "mistral":
        config["sliding_window"] = None if window == -1 else window
        # With a window, mlc-llm stores no other length.
        context = window if context == -1 else context
    elif model_type == "gemma3_text":
        config["sliding_window"] = window
    config.setdefault("max_position_embeddings", context)
    scaling = config.get("rope_scaling")
    if not scaling:
        # 0 is mlc-llm's default.
        config = {key: value for key, value in config.items() if key not in ROPE_SCALING}
    elif isinstance(scaling, dict):
        # mlc-llm copies the key of this name into the section.
        config["rope_scaling"] = {key: value for key, value in scaling.items() if key != "max_position_embeddings"}
    if model_type == "phi3" or not config.get("head_dim"):
        config.pop("head_dim", None)
    return config


def _vocab_size(where: Path, records: Mapping[str, SafetensorsTensor]) -> int:
    """The number of rows of the embedding, which mlc-llm uses too."""
    for kind in ("q_weight", "weight"):
        table = records.get(f"{EMBEDDING}.{kind}")
        if table is not None and len(table.shape) == 2:
            return table.shape[0]
    raise CheckpointError(f"{where.parent}: has no matrix {EMBEDDING}; download it again", file=str(where))


def _ends(chat: ConfigReader, template: object, tokenizer: TokenizerFiles) -> list[int]:
    """The tokens that end an answer. mlc-llm writes 2 if it found none, so only special tokens count, and those that
    'stop_str' spells, which is where it has the end of a ChatML turn.
    """
    added = json.loads(tokenizer.content).get("added_tokens") or []
    special = {token["id"] for token in added if token.get("special")}
    named, spelled = list(chat.token_ids("eos_token_id")), []
    if isinstance(template, dict):
        named += ConfigReader(template, f"{chat.where}: conv_template").token_ids("stop_token_ids")
        texts = template.get("stop_str") or ()
        spelled = [token["id"] for token in added if token["content"] in ([texts] if isinstance(texts, str) else texts)]
    return list(dict.fromkeys([*(each for each in named if each in special), *spelled]))


def _notes(path: Path, config: Mapping[str, Any], tokenizer: TokenizerFiles) -> list[str]:
    notes = []
    if config["model_type"] == "phi3":
        notes.append(
            f"{path}: mlc-llm does not keep the sliding window of Phi-3, so attention covers the whole context, as it "
            "does in mlc-llm"
        )
    if tokenizer.chat_template is None:
        notes.append(
            f"{path}: there is no chat template in tokenizer_config.json, and 'conv_template' of {CONFIG_FILE} is not "
            "read; to chat, copy chat_template.jinja of the original model into the folder"
        )
    return notes


# --- tensors ---


def _name(name: str) -> str:
    """The name that config.json's model gives to a tensor, except that fused ones stay fused."""
    module, _, kind = name.removeprefix("language_model.").rpartition(".")
    layer = _LAYER.fullmatch(module)
    if layer is not None:
        return f"model.layers.{layer[1]}.{_RENAMED.get(layer[2], layer[2])}.{kind}"
    return f"{_RENAMED.get(module, module)}.{kind}"


def _read_tensors(
    records: Mapping[str, SafetensorsTensor], spec: ModelSpec, quantization: MlcFormat | None, where: Path
) -> dict[str, Tensor]:
    """The tensors of a model with separate matrices for q, k and v, and for gate and up, except in Phi-3."""
    tensors: dict[str, Tensor] = {}
    for name, record in records.items():
        module, _, kind = name.rpartition(".")
        if kind == "q_scale":
            continue
        tensor: Tensor = record
        if kind == "q_weight":
            tensor = read_matrix(module, records, quantization, _columns(module, spec), where)
            kind = "weight"
        parts = {} if spec.model_type == "phi3" else _parts(module, spec)
        if not parts:
            full = f"{module}.{kind}"
            shifts = spec.model_type in SHIFTED and module.endswith("norm")
            tensors[full] = Shifted(full, record) if shifts else tensor
        elif tensor.shape[:1] != (sum(parts.values()),):
            raise CheckpointError(
                f"{where}: tensor {name} has shape {list(tensor.shape)}, but 'model_config' requires "
                f"{sum(parts.values())} rows; the weights belong to another model",
                tensor=name,
            )
        else:
            start = 0
            for part, rows in parts.items():
                full = f"{part}.{kind}"
                tensors[full] = rows_of(tensor, full, start, start + rows)
                start += rows
    return tensors


def _parts(module: str, spec: ModelSpec) -> dict[str, int]:
    """The modules that a fused one stacks, with their rows; empty for any other module."""
    prefix, _, last = module.rpartition(".")
    if last in ("qkv_proj", "c_attn"):
        heads = {"q": spec.num_heads, "k": spec.num_kv_heads, "v": spec.num_kv_heads}
        return {f"{prefix}.{part}_proj": count * spec.head_dim for part, count in heads.items()}
    if last == "gate_up_proj":
        return {f"{prefix}.{part}_proj": spec.intermediate_size for part in ("gate", "up")}
    return {}


def _columns(module: str, spec: ModelSpec) -> int:
    """The number of columns of a matrix, which its rows of complete words do not show."""
    last = module.rpartition(".")[2]
    return {"o_proj": spec.num_heads * spec.head_dim, "down_proj": spec.intermediate_size}.get(last, spec.hidden_size)
