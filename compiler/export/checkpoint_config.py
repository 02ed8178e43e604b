"""The config.json of a model: the inverse of `read_config` in `arch/`, for transformers 5.

The written values are read again: the architecture's own `read_config` must return the spec from which they were made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..arch import by_model_type
from ..arch.decoder_config import ACTIVATION_NAMES
from ..formats.config import ConfigReader
from ..ir.spec import ModelSpec, RopeSpec
from ..runtime.errors import UnsupportedModel
from .same_model import differences

Config = dict[str, Any]

# The dtype of the training, to which the factor of an embedding may be rounded.
DTYPES = ("float32", "bfloat16", "float16")
# Keys that a family may not have.
OPTIONAL = ("head_dim", "hidden_act")
# The first of several names.
_ACTIVATIONS = {ours: theirs for theirs, ours in reversed(ACTIVATION_NAMES.items())}


def checkpoint_config(spec: ModelSpec, dtype: str, where: str) -> Config:
    """``dtype``: that of the weights. Raises UnsupportedModel, for the bundle ``where``."""
    family = FAMILIES.get(spec.model_type)
    if family is None:
        raise UnsupportedModel(
            f"{where}: a {spec.model_type} model cannot be exported as safetensors; exported are "
            f"{', '.join(sorted(FAMILIES))}"
        )
    name, own = family
    config: Config = {
        "architectures": [f"{name}ForCausalLM"],
        "model_type": spec.model_type,
        **sizes(spec),
        "hidden_act": _ACTIVATIONS[spec.activation],
        "max_position_embeddings": spec.max_position_embeddings,
        "rms_norm_eps": spec.rms_norm_eps,
        "rope_parameters": rope_parameters(spec.rope),
        "tie_word_embeddings": spec.tie_word_embeddings,
        "bos_token_id": spec.bos_token_id,
        "eos_token_id": end_ids(spec),
        # Otherwise a class has its own default, which may be outside of the vocabulary.
        "pad_token_id": None,
    } | own(spec)
    config = {key: value for key, value in config.items() if value is not None or key not in OPTIONAL}
    for candidate in (dtype, *(each for each in DTYPES if each != dtype)):
        written = {**config, "dtype": candidate}
        read = by_model_type(spec.model_type).read_config(ConfigReader(written, where))
        # The tensors say whether there are heads that draft tokens.
        different = differences(spec, read, ignored=("draft_layers",))
        if not different:
            return written
    raise UnsupportedModel(
        f"{where}: config.json cannot express this {spec.model_type} model: its {different[0]} is "
        f"{getattr(spec, different[0])}, and would be read as {getattr(read, different[0])}",
        fields=different,
    )


def sizes(spec: ModelSpec) -> dict[str, int]:
    return {
        "vocab_size": spec.vocab_size,
        "hidden_size": spec.hidden_size,
        "intermediate_size": spec.intermediate_size,
        "num_hidden_layers": spec.num_layers,
        "num_attention_heads": spec.num_heads,
        "num_key_value_heads": spec.num_kv_heads,
        "head_dim": spec.head_dim,
    }


def end_ids(spec: ModelSpec) -> int | list[int] | None:
    ids = spec.eos_token_ids
    return None if not ids else ids[0] if len(ids) == 1 else list(ids)


def rope_parameters(rope: RopeSpec) -> Config:
    section: Config = {"rope_type": "default" if rope.scaling == "none" else rope.scaling, "rope_theta": rope.theta}
    keys = {
        "linear": ("factor",),
        "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
        "yarn": (
            "factor", "attention_factor", "beta_fast", "beta_slow", "truncate", "original_max_position_embeddings",
        ),
        "longrope": ("factor", "attention_factor", "original_max_position_embeddings"),
        "dynamic": ("factor",),
    }  # fmt: skip
    section |= {key: getattr(rope, key) for key in keys.get(rope.scaling, ())}
    if rope.scaling == "longrope":
        section |= {"short_factor": list(rope.short_factors), "long_factor": list(rope.long_factors)}
    return section


def biased(spec: ModelSpec) -> Config:
    return {"attention_bias": spec.qkv_bias} if spec.qkv_bias else {}


def windows(spec: ModelSpec) -> Config:
    """The window, and which layers have it."""
    window = next((each for each in spec.windows if each is not None), None)
    return {} if window is None else {"sliding_window": window, "layer_types": kinds(spec)}


def kinds(spec: ModelSpec) -> list[str]:
    return ["full_attention" if spec.window(layer) is None else "sliding_attention" for layer in range(spec.num_layers)]


def llama(spec: ModelSpec) -> Config:
    changed = {}
    if spec.rope.scaling == "dynamic":
        # The trained length, which the factor multiplies.
        changed["max_position_embeddings"] = spec.rope.original_max_position_embeddings
    return {**biased(spec), **({"mlp_bias": True} if spec.mlp_bias else {}), **changed}


def mistral(spec: ModelSpec) -> Config:
    return {"sliding_window": spec.window(0)}


def qwen2(spec: ModelSpec) -> Config:
    found = windows(spec)
    return {**found, "use_sliding_window": True} if found else {}


def qwen3(spec: ModelSpec) -> Config:
    return {**qwen2(spec), **biased(spec)}


def gemma(spec: ModelSpec) -> Config:
    assert spec.attention_scale is not None
    # It may be an integer, whose square root has been rounded.
    scalar = spec.attention_scale**-2
    nearest = round(scalar)
    return {
        **biased(spec),
        "hidden_act": None,
        "hidden_activation": _ACTIVATIONS[spec.activation],
        "query_pre_attn_scalar": nearest if nearest**-0.5 == spec.attention_scale else scalar,
        "attn_logit_softcapping": spec.attention_softcap,
        "final_logit_softcapping": spec.logit_softcap,
        "sliding_window": next((each for each in spec.windows if each is not None), None),
        "layer_types": kinds(spec),
    }


def gemma3(spec: ModelSpec) -> Config:
    sections = {"full_attention": spec.rope, "sliding_attention": spec.window_rope or spec.rope}
    return {**gemma(spec), "rope_parameters": {kind: rope_parameters(rope) for kind, rope in sections.items()}}


def phi3(spec: ModelSpec) -> Config:
    section = rope_parameters(spec.rope)
    section["partial_rotary_factor"] = (spec.rope.rotary_dim or spec.head_dim) / spec.head_dim
    outer = {key: section[key] for key in ("original_max_position_embeddings",) if key in section}
    # Classes read the same factor from different keys.
    return {
        **outer,
        "head_dim": None,
        "rope_parameters": section,
        "partial_rotary_factor": section["partial_rotary_factor"],
        "sliding_window": spec.window(0),
    }


def granite(spec: ModelSpec) -> Config:
    return {
        **llama(spec),
        "attention_multiplier": spec.attention_scale,
        "embedding_multiplier": spec.embedding_scale,
        "residual_multiplier": spec.residual_scale,
        "logits_scaling": 1 / spec.logit_scale,
    }


def smollm3(spec: ModelSpec) -> Config:
    found = windows(spec)
    rotated = [int(layer not in spec.unrotated) for layer in range(spec.num_layers)]
    config = {**llama(spec), **found, "use_sliding_window": bool(found)}
    return {**config, "layer_types": kinds(spec), "no_rope_layers": rotated}


def qwen3_5(spec: ModelSpec) -> Config:
    assert spec.states is not None
    section = rope_parameters(spec.rope)
    section["partial_rotary_factor"] = (spec.rope.rotary_dim or spec.head_dim) / spec.head_dim
    return {
        **biased(spec),
        "rope_parameters": section,
        "layer_types": ["full_attention" if each == "attention" else "linear_attention" for each in spec.mixers],
        "linear_conv_kernel_dim": spec.states.taps,
        "linear_num_value_heads": spec.states.heads,
        "linear_num_key_heads": spec.states.groups,
        "linear_key_head_dim": spec.states.key_dim,
        "linear_value_head_dim": spec.states.value_dim,
        "mtp_num_hidden_layers": spec.draft_layers,
    }


# model_type -> the name of transformers' class, and the family's own keys.
FAMILIES: Mapping[str, tuple[str, Callable[[ModelSpec], Config]]] = {
    "llama": ("Llama", llama),
    "mistral": ("Mistral", mistral),
    "qwen2": ("Qwen2", qwen2),
    "qwen3": ("Qwen3", qwen3),
    "gemma2": ("Gemma2", gemma),
    "gemma3_text": ("Gemma3", gemma3),
    "phi3": ("Phi3", phi3),
    "granite": ("Granite", granite),
    "smollm3": ("SmolLM3", smollm3),
    "olmo2": ("Olmo2", biased),
    "qwen3_5_text": ("Qwen3_5", qwen3_5),
}
