"""The keys of a GGUF file for a model: the inverse of `architectures.read_config`.

Properties that no key expresses are left out here. A caller must read the file again and compare the specs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from ...ir.rope import inverse_frequencies
from ...ir.spec import ModelSpec, StateSpec
from .architectures import ARCHITECTURES
from .attention import LONG_FACTORS, ROPE_FACTORS, SHORT_FACTORS
from .mixtures import SIGMOID, SOFTMAX_CHOSEN
from .writer import Value

Floats = npt.NDArray[np.float32]


def written_spec(spec: ModelSpec) -> ModelSpec:
    """The spec of the model whose weights are those of a bundle, which contain the factors of projections. Experts are
    multiplied by the factor of residuals when their results are added.
    """
    return spec if spec.experts is not None else replace(spec, residual_scale=1.0, factors={})


def model_metadata(architecture: str, spec: ModelSpec) -> dict[str, Value]:
    values: dict[str, Value | None] = {
        "block_count": spec.num_layers,
        "context_length": spec.max_position_embeddings,
        "embedding_length": spec.hidden_size,
        "feed_forward_length": spec.intermediate_size,
        "attention.head_count": spec.num_heads,
        "attention.head_count_kv": spec.num_kv_heads,
        "attention.key_length": spec.head_dim,
        "attention.value_length": spec.head_dim,
        ARCHITECTURES[architecture].eps_key: spec.rms_norm_eps,
        "vocab_size": spec.vocab_size,
        "rope.dimension_count": spec.rope.rotary_dim or spec.head_dim,
        "rope.freq_base": spec.rope.theta,
        **scaling(spec),
        **experts(spec),
        **(OWN[architecture](spec) if architecture in OWN else {}),
    }
    return {f"{architecture}.{key}": value for key, value in values.items() if value is not None}


def scaling(spec: ModelSpec) -> dict[str, Value | None]:
    rope = spec.rope
    if rope.scaling == "linear":
        return {"rope.scaling.type": "linear", "rope.scaling.factor": rope.factor}
    if rope.scaling == "yarn":
        return {
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": rope.factor,
            "rope.scaling.original_context_length": rope.original_max_position_embeddings,
            "rope.scaling.yarn_beta_fast": rope.beta_fast,
            "rope.scaling.yarn_beta_slow": rope.beta_slow,
        }
    if rope.scaling == "longrope":
        return {
            "rope.scaling.original_context_length": rope.original_max_position_embeddings,
            "rope.scaling.attn_factor": rope.attention_factor,
        }
    return {}


def experts(spec: ModelSpec) -> dict[str, Value | None]:
    if spec.experts is None:
        return {}
    return {
        "expert_count": spec.experts.number,
        "expert_used_count": spec.experts.chosen,
    }


def rotation_tensors(architecture: str, spec: ModelSpec) -> dict[str, Floats]:
    """The tensors of numbers of the rotation, in the architectures whose models in llama.cpp have them."""
    rope = spec.rope
    if architecture == "llama" and rope.scaling == "llama3":
        plain = inverse_frequencies(type(rope)(rope.theta, rotary_dim=rope.rotary_dim), spec.head_dim, 1)
        scaled = inverse_frequencies(rope, spec.head_dim, 1)
        return {ROPE_FACTORS: (np.array(plain) / np.array(scaled)).astype(np.float32)}
    if architecture == "phi3" and rope.scaling == "longrope":
        factors = {SHORT_FACTORS: rope.short_factors, LONG_FACTORS: rope.long_factors}
        return {name: np.array(each, np.float32) for name, each in factors.items()}
    return {}


def window_of(spec: ModelSpec) -> int | None:
    return next((window for window in spec.windows if window is not None), None)


def llama(spec: ModelSpec) -> dict[str, Value | None]:
    return {"attention.sliding_window": window_of(spec)}


def gemma2(spec: ModelSpec) -> dict[str, Value | None]:
    return {
        "attention.sliding_window": window_of(spec),
        "attn_logit_softcapping": spec.attention_softcap,
        "final_logit_softcapping": spec.logit_softcap,
    }


def gemma3(spec: ModelSpec) -> dict[str, Value | None]:
    return {
        "attention.sliding_window": window_of(spec),
        "rope.freq_base_swa": (spec.window_rope or spec.rope).theta,
        "final_logit_softcapping": spec.logit_softcap,
    }


def phi3(spec: ModelSpec) -> dict[str, Value | None]:
    # 0 tells a model without windows from Phi-3, whose windows llama.cpp ignores.
    return {"attention.sliding_window": window_of(spec) or 0}


def granite(spec: ModelSpec) -> dict[str, Value | None]:
    return {
        "attention.scale": spec.attention_scale,
        "embedding_scale": spec.embedding_scale,
        "residual_scale": spec.residual_scale,
        "logit_scale": 1 / spec.logit_scale,
    }


def minicpm(spec: ModelSpec) -> dict[str, Value | None]:
    return {
        "embedding_scale": spec.embedding_scale,
        "residual_scale": spec.residual_scale,
        "logit_scale": 1 / spec.logit_scale,
    }


def qwen3moe(spec: ModelSpec) -> dict[str, Value | None]:
    assert spec.experts is not None
    return {"expert_feed_forward_length": spec.experts.intermediate_size}


def gpt_oss(spec: ModelSpec) -> dict[str, Value | None]:
    return {
        **qwen3moe(spec),
        "attention.sliding_window": window_of(spec),
        "expert_gating_func": SOFTMAX_CHOSEN,
    }


def lfm2(spec: ModelSpec) -> dict[str, Value | None]:
    assert spec.states is not None
    heads = [spec.num_kv_heads if mixer == "attention" else 0 for mixer in spec.mixers]
    return {"attention.head_count_kv": np.array(heads, np.int32), "shortconv.l_cache": spec.states.taps}


def lfm2moe(spec: ModelSpec) -> dict[str, Value | None]:
    assert spec.experts is not None
    return {
        **lfm2(spec),
        **qwen3moe(spec),
        "leading_dense_block_count": len(spec.experts.dense_layers),
        "expert_gating_func": SIGMOID,
    }


def qwen35(spec: ModelSpec) -> dict[str, Value | None]:
    assert spec.states is not None
    full = [layer for layer, mixer in enumerate(spec.mixers) if mixer == "attention"]
    return {
        # Positions by time, height and width, which are equal in a text.
        "rope.dimension_sections": np.array([11, 11, 10, 0], np.int32),
        "full_attention_interval": full[0] + 1 if full else spec.num_layers + 1,
        **delta_sizes(spec.states),
    }


def delta_sizes(states: StateSpec) -> dict[str, Value | None]:
    return {
        "ssm.conv_kernel": states.taps,
        "ssm.state_size": states.key_dim,
        "ssm.group_count": states.groups,
        "ssm.time_step_rank": states.heads,
        "ssm.inner_size": states.heads * states.value_dim,
    }


OWN: Mapping[str, Callable[[ModelSpec], dict[str, Value | None]]] = {
    "llama": llama, "gemma2": gemma2, "gemma3": gemma3, "phi3": phi3, "granite": granite,
    "minicpm": minicpm, "starcoder2": llama, "granitemoe": granite, "gpt-oss": gpt_oss, "lfm2": lfm2,
    "qwen3moe": qwen3moe, "lfm2moe": lfm2moe, "qwen35": qwen35,
}  # fmt: skip
