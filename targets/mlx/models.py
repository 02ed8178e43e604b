"""The models of mlx-lm: which specs each of them computes, and the keys of config.json that only it reads.

mlx-lm adds the offsets of norms, and multiplies embeddings, residuals and logits itself, as transformers does. So the
weights of a folder are those of the checkpoint, and the numbers are keys of config.json.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from typing import Any, Literal

import numpy as np

from nearfar.compiler.arch.gemma import as_bfloat16
from nearfar.compiler.errors import UnsupportedModel
from nearfar.compiler.ir.rope import rotary_dim
from nearfar.compiler.ir.spec import ModelSpec

from .rope_config import is_computed, rope_parameters

SCALINGS = ("none", "linear", "llama3", "yarn", "longrope", "dynamic")
# The fields that every model or `Model.computes` considers.
CONSIDERED = frozenset({
    "qkv_bias", "output_bias", "mlp_bias", "qk_norm", "windows", "activation", "bos_token_id", "eos_token_ids",
})  # fmt: skip
PLAIN = {
    field.name: field.default
    for field in fields(ModelSpec)
    if field.default is not MISSING and field.name not in CONSIDERED
}


@dataclass(frozen=True, slots=True)
class Model:
    """A model of mlx-lm: its name in transformers, a test for the specs that it computes, and the keys of config.json
    that only it reads, for a context.

    ``fields``: the fields of a ModelSpec that may differ from a plain decoder's. ``scalings`` of the rotation.
    ``windows``: "ignored"; "mixed" if it reads ``layer_types`` and ``sliding_window`` and needs at least one layer
    without a window; "own" if ``computes`` and ``keys`` include them. ``model_type``: its name in mlx-lm if that is not
    the spec's. ``embedding_scale``: by which it multiplies the embedding, if it does not read that in config.json.
    """

    class_name: str
    computes: Callable[[ModelSpec], bool]
    keys: Callable[[ModelSpec, int], dict[str, Any]] = lambda spec, context: {}  # noqa: ARG005
    fields: frozenset[str] = frozenset()
    activation: str = "silu"
    scalings: tuple[str, ...] = SCALINGS
    windows: Literal["ignored", "mixed", "own"] = "ignored"
    model_type: str | None = None
    embedding_scale: Callable[[ModelSpec], float] | None = None


def require_known(spec: ModelSpec, activation: str = "float32") -> Model:
    """The model of mlx-lm that computes the spec with activations of this dtype. Raises UnsupportedModel."""
    model = MODELS.get(spec.model_type)
    found = "" if model is None else unread_fields(spec, model)
    if (
        model is None
        or found
        or spec.activation != model.activation
        or spec.rope.scaling not in model.scalings
        or not is_computed(spec.rope, spec)
        or not model.computes(spec)
    ):
        rotated = rotary_dim(spec.rope, spec.head_dim)
        raise UnsupportedModel(
            f"mlx-lm's {spec.model_type} has no such model (biases qkv {spec.qkv_bias}, output {spec.output_bias}, "
            f"feed-forward {spec.mlp_bias}; norms of heads {spec.qk_norm}; head size {spec.head_dim}, {rotated} of "
            f"them rotated with scaling {spec.rope.scaling}; {spec.num_heads} heads, hidden size {spec.hidden_size}; "
            f"activation {spec.activation}{found}); use --target webgpu, cpu or cuda",
            model_type=spec.model_type,
        )
    if model.embedding_scale is not None:
        theirs, ours = (rounded(scale, activation) for scale in (model.embedding_scale(spec), spec.embedding_scale))
        if theirs != ours:
            raise UnsupportedModel(
                f"mlx-lm's {spec.model_type} multiplies the embedding by {theirs:.9g} if activations are {activation}, "
                f"the checkpoint by {ours:.9g}; use --activations bfloat16, or use --target webgpu, cpu or cuda",
                model_type=spec.model_type,
            )
    return model


def unread_fields(spec: ModelSpec, model: Model) -> str:
    """The fields by which a spec differs from a plain decoder and which mlx-lm's model does not read, for a message."""
    found = [
        f"{name} {getattr(spec, name)}"
        for name, plain in PLAIN.items()
        if name not in model.fields
        and getattr(spec, name) != plain
        # The same rotation on all layers.
        and not (name == "window_rope" and spec.window_rope == spec.rope)
    ]
    return "".join(f"; {each}" for each in found)


def rounded(value: float, dtype: str) -> float:
    if dtype == "bfloat16":
        return as_bfloat16(value)
    return float(np.dtype(dtype).type(value))


def has_bias(spec: ModelSpec) -> bool:
    return spec.qkv_bias or spec.output_bias or spec.mlp_bias


def same_biases(spec: ModelSpec) -> bool:
    return spec.qkv_bias == spec.output_bias


def rotates_whole_heads(spec: ModelSpec) -> bool:
    return rotary_dim(spec.rope, spec.head_dim) == spec.head_dim


def splits_hidden_size(spec: ModelSpec) -> bool:
    """Whether the head size is the default of a model without ``head_dim``."""
    return spec.head_dim * spec.num_heads == spec.hidden_size


def partial_rotary_factor(spec: ModelSpec) -> float:
    return rotary_dim(spec.rope, spec.head_dim) / spec.head_dim


def rotates_by_factor(spec: ModelSpec) -> bool:
    """Whether mlx-lm, which computes the rotated width from the factor, rotates as much."""
    return int(spec.head_dim * partial_rotary_factor(spec)) == rotary_dim(spec.rope, spec.head_dim)


def bias_keys(spec: ModelSpec, context: int) -> dict[str, Any]:  # noqa: ARG001
    return {"attention_bias": spec.qkv_bias, "mlp_bias": spec.mlp_bias}


def layer_types(spec: ModelSpec) -> list[str]:
    kinds = ("full_attention", "sliding_attention")
    return [kinds[spec.window(layer) is not None] for layer in range(spec.num_layers)]


def window_sizes(spec: ModelSpec) -> set[int]:
    return {window for window in spec.windows if window is not None}


def plain_windows_beside_full_layers(spec: ModelSpec) -> bool:
    """Whether layers of both kinds exist, those with a window of one size."""
    return len(window_sizes(spec)) == 1 and None in spec.windows


def phi3_keys(spec: ModelSpec, context: int) -> dict[str, Any]:  # noqa: ARG001
    original = {"original_max_position_embeddings": spec.rope.original_max_position_embeddings}
    factor = {"partial_rotary_factor": partial_rotary_factor(spec)}
    return {**factor, **original} if spec.rope.scaling == "longrope" else factor


def ministral3_keys(spec: ModelSpec, context: int) -> dict[str, Any]:
    # mlx-lm needs both keys. A rotation without an original length does not scale queries.
    scale = {
        "original_max_position_embeddings": spec.max_position_embeddings,
        "llama_4_scaling_beta": spec.rope.query_beta,
    }
    return {"rope_parameters": {**scale, **rope_parameters(spec.rope, spec.head_dim, context)}}


def granite_keys(spec: ModelSpec, context: int) -> dict[str, Any]:
    return {
        **bias_keys(spec, context),
        "attention_multiplier": spec.attention_scale or spec.head_dim**-0.5,
        "embedding_multiplier": spec.embedding_scale,
        "residual_multiplier": spec.residual_scale,
        "logits_scaling": 1 / spec.logit_scale,
    }


def smollm3_keys(spec: ModelSpec, context: int) -> dict[str, Any]:
    rotates = [int(layer not in spec.unrotated) for layer in range(spec.num_layers)]
    return {**bias_keys(spec, context), "no_rope_layers": rotates}


def olmo3_keys(spec: ModelSpec, context: int) -> dict[str, Any]:  # noqa: ARG001
    windows = {"layer_types": layer_types(spec), "sliding_window": max(window_sizes(spec))}
    return {"attention_bias": spec.qkv_bias, **windows}


def computes_olmo3(spec: ModelSpec) -> bool:
    """mlx-lm scales the rotation of layers without a window only."""
    local = spec.window_rope or spec.rope
    return (
        same_biases(spec)
        and not spec.mlp_bias
        and spec.qk_norm
        and rotates_whole_heads(spec)
        and plain_windows_beside_full_layers(spec)
        and (local.theta, local.scaling, rotary_dim(local, spec.head_dim)) == (spec.rope.theta, "none", spec.head_dim)
    )


def exaone4_keys(spec: ModelSpec, context: int) -> dict[str, Any]:  # noqa: ARG001
    has_windows = bool(window_sizes(spec))
    pattern = "".join("G" if window is None else "L" for window in spec.windows)
    return {
        # Keys that mlx-lm requires even if they are null.
        **({} if spec.rope.scaling not in ("none", "dynamic") else {"rope_scaling": None}),
        "sliding_window": max(window_sizes(spec)) if has_windows else None,
        "sliding_window_pattern": pattern if has_windows else None,
        **({"layer_types": layer_types(spec)} if has_windows else {}),
    }


def computes_exaone4(spec: ModelSpec) -> bool:
    """mlx-lm rotates all layers of a model without windows, and only those with one of a model with windows."""
    full = tuple(layer for layer in range(spec.num_layers) if spec.window(layer) is None)
    fits = (
        plain_windows_beside_full_layers(spec) and spec.unrotated == full if window_sizes(spec) else not spec.unrotated
    )
    return not has_bias(spec) and spec.qk_norm and rotates_whole_heads(spec) and fits


def query_scalar(spec: ModelSpec) -> float:
    """The number whose inverse root scales the scores; transformers requires an integer."""
    return float((spec.attention_scale or spec.head_dim**-0.5) ** -2)


def has_whole_query_scalar(spec: ModelSpec) -> bool:
    return math.isclose(query_scalar(spec), round(query_scalar(spec)), rel_tol=1e-9)


def gemma2_keys(spec: ModelSpec, context: int) -> dict[str, Any]:  # noqa: ARG001
    return {
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": round(query_scalar(spec)),
        "attn_logit_softcapping": spec.attention_softcap,
        "final_logit_softcapping": spec.logit_softcap,
    }


def computes_gemma2(spec: ModelSpec) -> bool:
    return (
        not has_bias(spec)
        and not spec.qk_norm
        and rotates_whole_heads(spec)
        and spec.tie_word_embeddings
        and has_whole_query_scalar(spec)
        and None not in (spec.attention_softcap, spec.logit_softcap)
    )


def gemma3_keys(spec: ModelSpec, context: int) -> dict[str, Any]:  # noqa: ARG001
    return {
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": round(query_scalar(spec)),
        "rope_local_base_freq": (spec.window_rope or spec.rope).theta,
        "sliding_window_pattern": full_layer_interval(spec),
        "sliding_window": max(window_sizes(spec), default=spec.max_position_embeddings),
        "layer_types": layer_types(spec),
    }


def full_layer_interval(spec: ModelSpec) -> int:
    """Every nth layer has no window; the number of layers plus one if all have."""
    return next((layer + 1 for layer in range(spec.num_layers) if spec.window(layer) is None), spec.num_layers + 1)


def has_regular_full_layers(spec: ModelSpec) -> bool:
    every = full_layer_interval(spec)
    return all((spec.window(layer) is None) == ((layer + 1) % every == 0) for layer in range(spec.num_layers))


def computes_gemma3(spec: ModelSpec) -> bool:
    every = full_layer_interval(spec)
    local = spec.window_rope or spec.rope
    return (
        not has_bias(spec)
        and spec.qk_norm
        and rotates_whole_heads(spec)
        and has_regular_full_layers(spec)
        and has_whole_query_scalar(spec)
        and every <= spec.num_layers
        and len(window_sizes(spec)) <= 1
        and (every == 1 or local.scaling == "none")
        and rotary_dim(local, spec.head_dim) == spec.head_dim
    )


def gemma4_keys(spec: ModelSpec, context: int) -> dict[str, Any]:
    window_rope, window_head_dim = spec.window_rope or spec.rope, spec.window_head_dim or spec.head_dim
    full = {
        **rope_parameters(spec.rope, spec.head_dim, context),
        "partial_rotary_factor": partial_rotary_factor(spec),
    }
    return {
        "hidden_activation": "gelu_pytorch_tanh",
        "head_dim": window_head_dim,
        "global_head_dim": spec.head_dim,
        "rope_parameters": {
            "full_attention": full,
            "sliding_attention": rope_parameters(window_rope, window_head_dim, context),
        },
        "layer_types": layer_types(spec),
        "sliding_window": max(window_sizes(spec), default=spec.max_position_embeddings),
        "num_kv_shared_layers": spec.num_kv_shared_layers,
        "use_double_wide_mlp": spec.shared_intermediate_size not in (None, spec.intermediate_size),
        "hidden_size_per_layer_input": spec.per_layer_size,
        "vocab_size_per_layer_input": spec.per_layer_vocab_size,
        "final_logit_softcapping": spec.logit_softcap,
    }


def computes_gemma4(spec: ModelSpec) -> bool:
    local, window_head_dim = spec.window_rope or spec.rope, spec.window_head_dim or spec.head_dim
    return (
        not has_bias(spec)
        and spec.qk_norm
        and spec.attention_scale == 1
        and spec.tie_word_embeddings
        and len(window_sizes(spec)) <= 1
        and spec.window_num_kv_heads in (None, spec.num_kv_heads)
        and spec.shared_intermediate_size in (None, spec.intermediate_size, 2 * spec.intermediate_size)
        and (rotates_whole_heads(spec) or spec.rope.scaling == "proportional")
        and rotates_by_factor(spec)
        and local.scaling in ("none", "linear")
        and rotary_dim(local, window_head_dim) == window_head_dim
    )


def cohere2_keys(spec: ModelSpec, context: int) -> dict[str, Any]:  # noqa: ARG001
    return {
        "attention_bias": spec.qkv_bias,
        "layer_norm_bias": False,
        "layer_norm_eps": spec.rms_norm_eps,
        "logit_scale": spec.logit_scale,
        "sliding_window_pattern": full_layer_interval(spec),
        "sliding_window": max(window_sizes(spec), default=spec.max_position_embeddings),
        "layer_types": layer_types(spec),
    }


def computes_cohere2(spec: ModelSpec) -> bool:
    full = tuple(layer for layer in range(spec.num_layers) if spec.window(layer) is None)
    return (
        same_biases(spec)
        and not spec.mlp_bias
        and spec.tie_word_embeddings
        and splits_hidden_size(spec)
        and rotates_whole_heads(spec)
        and has_regular_full_layers(spec)
        and full_layer_interval(spec) <= spec.num_layers
        and len(window_sizes(spec)) <= 1
        and spec.unrotated == full
    )


def stablelm_keys(spec: ModelSpec, context: int) -> dict[str, Any]:  # noqa: ARG001
    return {
        "layer_norm_eps": spec.rms_norm_eps,
        "partial_rotary_factor": partial_rotary_factor(spec),
        "use_parallel_residual": False,
        "use_qkv_bias": spec.qkv_bias,
    }


def computes_stablelm(spec: ModelSpec) -> bool:
    return (
        not spec.output_bias
        and not spec.mlp_bias
        and not spec.tie_word_embeddings
        and splits_hidden_size(spec)
        and rotates_by_factor(spec)
    )


def root_of_hidden_size(spec: ModelSpec) -> float:
    return math.sqrt(spec.hidden_size)


MODELS = {
    "llama": Model(
        "LlamaForCausalLM",
        lambda spec: same_biases(spec) and not spec.qk_norm and rotates_whole_heads(spec),
        bias_keys,
        windows="mixed",
    ),
    "mistral": Model(
        "MistralForCausalLM",
        lambda spec: not has_bias(spec) and not spec.qk_norm and rotates_whole_heads(spec),
        windows="mixed",
    ),
    # mlx-lm's llama computes windows on some layers too.
    "ministral": Model(
        "LlamaForCausalLM",
        lambda spec: not has_bias(spec) and not spec.qk_norm and rotates_whole_heads(spec),
        windows="mixed",
        model_type="llama",
    ),
    "ministral3": Model(
        "Ministral3ForCausalLM",
        lambda spec: not has_bias(spec) and not spec.qk_norm and rotates_whole_heads(spec),
        ministral3_keys,
        windows="mixed",
    ),
    "smollm3": Model(
        "SmolLM3ForCausalLM",
        lambda spec: same_biases(spec) and not spec.qk_norm and rotates_whole_heads(spec),
        smollm3_keys,
        fields=frozenset({"unrotated"}),
        windows="mixed",
    ),
    "granite": Model(
        "GraniteForCausalLM",
        lambda spec: (
            same_biases(spec) and not spec.qk_norm and rotates_whole_heads(spec) and splits_hidden_size(spec)
        ),
        granite_keys,
        fields=frozenset({"attention_scale", "embedding_scale", "residual_scale", "logit_scale"}),
    ),
    "olmo2": Model(
        "Olmo2ForCausalLM",
        lambda spec: same_biases(spec) and not spec.mlp_bias and spec.qk_norm and rotates_whole_heads(spec),
        bias_keys,
    ),
    "olmo3": Model(
        "Olmo3ForCausalLM", computes_olmo3, olmo3_keys, fields=frozenset({"window_rope"}), windows="own"
    ),
    "exaone4": Model(
        "Exaone4ForCausalLM", computes_exaone4, exaone4_keys, fields=frozenset({"unrotated"}), windows="own"
    ),
    "gemma2": Model(
        "Gemma2ForCausalLM",
        computes_gemma2,
        gemma2_keys,
        fields=frozenset({"attention_scale", "attention_softcap", "logit_softcap", "embedding_scale"}),
        activation="gelu_tanh",
        scalings=("none",),
        embedding_scale=root_of_hidden_size,
    ),
    "gemma3_text": Model(
        "Gemma3ForCausalLM",
        computes_gemma3,
        gemma3_keys,
        fields=frozenset({"attention_scale", "embedding_scale", "window_rope"}),
        activation="gelu_tanh",
        windows="own",
        embedding_scale=lambda spec: as_bfloat16(root_of_hidden_size(spec)),
    ),
    "gemma4_text": Model(
        "Gemma4ForCausalLM",
        computes_gemma4,
        gemma4_keys,
        fields=frozenset({
            "attention_scale", "embedding_scale", "logit_softcap", "window_rope", "window_head_dim",
            "window_num_kv_heads", "num_kv_shared_layers", "shared_intermediate_size", "per_layer_size",
            "per_layer_vocab_size",
        }),
        activation="gelu_tanh",
        scalings=("none", "linear", "proportional"),
        windows="own",
        embedding_scale=root_of_hidden_size,
    ),
    "ernie4_5": Model(
        "Ernie4_5ForCausalLM",
        lambda spec: spec.qkv_bias == spec.output_bias == spec.mlp_bias and not spec.qk_norm,
        lambda spec, _: {"use_bias": spec.qkv_bias},
        scalings=("none",),
    ),
    "glm4": Model(
        "Glm4ForCausalLM",
        lambda spec: not spec.tie_word_embeddings and rotates_by_factor(spec),
        lambda spec, _: {"attention_bias": spec.qkv_bias, "partial_rotary_factor": partial_rotary_factor(spec)},
        scalings=("none",),
    ),
    "hunyuan_v1_dense": Model(
        "HunYuanDenseV1ForCausalLM",
        lambda spec: same_biases(spec),
        lambda spec, _: {"attention_bias": spec.qkv_bias},
        scalings=("none",),
    ),
    "cohere2": Model(
        "Cohere2ForCausalLM",
        computes_cohere2,
        cohere2_keys,
        fields=frozenset({"logit_scale", "unrotated"}),
        scalings=("none",),
        windows="own",
    ),
    "stablelm": Model("StableLmForCausalLM", computes_stablelm, stablelm_keys, scalings=("none",)),
    "phi3": Model(
        "Phi3ForCausalLM",
        lambda spec: (
            not has_bias(spec)
            and not spec.qk_norm
            and splits_hidden_size(spec)
            and rotates_by_factor(spec)
        ),
        phi3_keys,
        scalings=("none", "longrope"),
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
}  # fmt: skip
