"""The models of mlx-lm: which specs each of them computes, and which keys of config.json only it reads.

mlx-lm adds the offsets of norms, and multiplies embeddings, residuals and logits itself, as transformers does. So the
weights of a folder are those of the checkpoint, and the numbers are keys of config.json.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from typing import Any, Literal

import numpy as np

from nearfar.compiler.arch.gemma_numbers import as_bfloat16
from nearfar.compiler.ir.rope import rotary_dim
from nearfar.compiler.ir.spec import ModelSpec
from nearfar.compiler.runtime.errors import UnsupportedModel

from . import families, hybrids
from .rope_config import is_computed
from .spec_facts import (
    has_bias,
    is_plain,
    partial_rotary_factor,
    root_of_hidden_size,
    rotates_by_factor,
    rotates_whole_heads,
    same_biases,
    splits_hidden_size,
)

SCALINGS = ("none", "linear", "llama3", "yarn", "longrope", "dynamic")
# The fields that `require_known`, every model or `Model.computes` considers.
CONSIDERED = frozenset({
    "qkv_bias", "output_bias", "mlp_bias", "qk_norm", "windows", "activation", "bos_token_id", "eos_token_ids",
    "experts", "mixers", "states",
})  # fmt: skip
GRANITE_SCALES = frozenset({"attention_scale", "embedding_scale", "residual_scale", "logit_scale"})
# Why mlx-lm's model of the same name has other logits, or cannot be loaded.
REASONS = {
    "apertus": "mlx-lm reads the factors of its activation as they were before softplus",
    "gemma": "mlx-lm computes the exact GELU, the model its approximation with tanh",
    "gpt2": "mlx-lm transposes its matrices when it loads them, but not the scales of integers",
    "gpt_neox": "mlx-lm computes GELU's approximation with tanh, the model the exact one",
    "olmo": "mlx-lm reads the tensors and keys of AI2's own package, hf_olmo",
    "starcoder2": "mlx-lm computes the exact GELU, the model its approximation with tanh",
    "falcon_h1": "mlx-lm multiplies the weights by the factors of config.json when it converts a checkpoint",
    "gpt_oss": "mlx-lm rounds the bounds of YaRN's blend",
}
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
    ``unread``: the keys of other models that its config.json lacks. ``has_section``: its keys are in "text_config",
    because the model also reads images.
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
    unread: frozenset[str] = frozenset()
    has_section: bool = False


def require_known(spec: ModelSpec, activation: str = "float32") -> Model:
    """The model of mlx-lm that computes the spec with activations of this dtype. Raises UnsupportedModel."""
    model = MODELS.get(spec.model_type)
    states = sorted({*spec.mixers} - {"attention"})
    known = model.fields if model else frozenset()
    found = f"; layers of {', '.join(states)}" if states and "states" not in known else ""
    found += "; experts" if spec.experts and "experts" not in known else ""
    found += f"; {REASONS[spec.model_type]}" if spec.model_type in REASONS else ""
    found += unread_fields(spec, model) if model else ""
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


# Gemma 4 and its unified form, whose text models are one.
GEMMA4 = Model(
    "Gemma4ForCausalLM",
    families.computes_gemma4,
    families.gemma4_keys,
    fields=frozenset(
        {
            "attention_scale",
            "embedding_scale",
            "logit_softcap",
            "window_rope",
            "window_head_dim",
            "window_num_kv_heads",
            "num_kv_shared_layers",
            "shared_intermediate_size",
            "per_layer_size",
            "per_layer_vocab_size",
            "experts",
            "keys_are_values",
        }
    ),
    activation="gelu_tanh",
    scalings=("none", "linear", "proportional"),
    windows="own",
    embedding_scale=root_of_hidden_size,
    model_type="gemma4_text",
)


MODELS = {
    "llama": Model(
        "LlamaForCausalLM",
        lambda spec: same_biases(spec) and not spec.qk_norm and rotates_whole_heads(spec),
        families.bias_keys,
        windows="mixed",
    ),
    "mistral": Model(
        "MistralForCausalLM",
        is_plain,
        windows="mixed",
    ),
    # mlx-lm's llama computes windows on some layers too.
    "ministral": Model(
        "LlamaForCausalLM",
        is_plain,
        windows="mixed",
        model_type="llama",
    ),
    "ministral3": Model(
        "Ministral3ForCausalLM",
        is_plain,
        families.ministral3_keys,
        windows="mixed",
    ),
    "smollm3": Model(
        "SmolLM3ForCausalLM",
        lambda spec: same_biases(spec) and not spec.qk_norm and rotates_whole_heads(spec),
        families.smollm3_keys,
        fields=frozenset({"unrotated"}),
        windows="mixed",
    ),
    "granite": Model(
        "GraniteForCausalLM",
        lambda spec: (
            same_biases(spec) and not spec.qk_norm and rotates_whole_heads(spec) and splits_hidden_size(spec)
        ),
        families.granite_keys,
        fields=GRANITE_SCALES,
    ),
    "olmo2": Model(
        "Olmo2ForCausalLM",
        lambda spec: same_biases(spec) and not spec.mlp_bias and spec.qk_norm and rotates_whole_heads(spec),
        families.bias_keys,
    ),
    "olmo3": Model(
        "Olmo3ForCausalLM",
        families.computes_olmo3,
        families.olmo3_keys,
        fields=frozenset({"window_rope"}),
        windows="own",
    ),
    "exaone4": Model(
        "Exaone4ForCausalLM",
        families.computes_exaone4,
        families.exaone4_keys,
        fields=frozenset({"unrotated"}),
        windows="own",
    ),
    "gemma2": Model(
        "Gemma2ForCausalLM",
        families.computes_gemma2,
        families.gemma2_keys,
        fields=frozenset({"attention_scale", "attention_softcap", "logit_softcap", "embedding_scale"}),
        activation="gelu_tanh",
        scalings=("none",),
        embedding_scale=root_of_hidden_size,
    ),
    "gemma3_text": Model(
        "Gemma3ForCausalLM",
        families.computes_gemma3,
        families.gemma3_keys,
        fields=frozenset({"attention_scale", "embedding_scale", "window_rope"}),
        activation="gelu_tanh",
        windows="own",
        embedding_scale=lambda spec: as_bfloat16(root_of_hidden_size(spec)),
    ),
    "gemma4_text": GEMMA4,
    "gemma4_unified_text": GEMMA4,
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
        families.computes_cohere2,
        families.cohere2_keys,
        fields=frozenset({"logit_scale", "unrotated"}),
        scalings=("none",),
        windows="own",
        unread=frozenset({"rms_norm_eps"}),
    ),
    "stablelm": Model(
        "StableLmForCausalLM",
        families.computes_stablelm,
        families.stablelm_keys,
        scalings=("none",),
        unread=frozenset({"head_dim", "rms_norm_eps"}),
    ),
    "phi3": Model(
        "Phi3ForCausalLM",
        lambda spec: (
            not has_bias(spec)
            and not spec.qk_norm
            and splits_hidden_size(spec)
            and rotates_by_factor(spec)
        ),
        families.phi3_keys,
        scalings=("none", "longrope"),
        unread=frozenset({"head_dim"}),
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
    "mimo": Model(
        "MiMoForCausalLM",
        lambda spec: (
            spec.qkv_bias
            and not (spec.output_bias or spec.mlp_bias or spec.qk_norm)
            and splits_hidden_size(spec)
            and rotates_whole_heads(spec)
        ),
    ),
    "seed_oss": Model(
        "SeedOssForCausalLM",
        lambda spec: not spec.qk_norm and rotates_whole_heads(spec),
        families.seed_oss_keys,
    ),
    # Its attention has biases on queries, keys and values alone, and no scaling.
    "helium": Model(
        "HeliumForCausalLM",
        lambda spec: (
            not (spec.output_bias or spec.mlp_bias or spec.qk_norm)
            and splits_hidden_size(spec)
            and rotates_whole_heads(spec)
        ),
        families.bias_keys,
        scalings=("none",),
    ),
    "minicpm": Model(
        "MiniCPMForCausalLM",
        families.computes_minicpm,
        families.minicpm_keys,
        fields=frozenset({"embedding_scale", "residual_scale", "logit_scale"}),
    ),
    "nemotron": Model(
        "NemotronForCausalLM",
        lambda spec: same_biases(spec) and not spec.qk_norm and rotates_by_factor(spec),
        families.nemotron_keys,
        activation="relu2",
        scalings=("none",),
        unread=frozenset({"rms_norm_eps"}),
    ),
    "phi": Model(
        "PhiForCausalLM",
        lambda spec: not spec.tie_word_embeddings and splits_hidden_size(spec) and rotates_by_factor(spec),
        families.phi_keys,
        activation="gelu_tanh",
        scalings=("none",),
        unread=frozenset({"rms_norm_eps"}),
    ),
    "qwen3": Model("Qwen3ForCausalLM", lambda spec: not has_bias(spec) and spec.qk_norm and rotates_whole_heads(spec)),
    "qwen3_moe": Model(
        "Qwen3MoeForCausalLM", hybrids.computes_qwen3_moe, hybrids.qwen3_moe_keys, fields=frozenset({"experts"})
    ),
    "olmoe": Model("OlmoeForCausalLM", hybrids.computes_olmoe, hybrids.olmoe_keys, fields=frozenset({"experts"})),
    "granitemoe": Model(
        "GraniteMoeForCausalLM",
        hybrids.computes_granitemoe,
        hybrids.granitemoe_keys,
        fields=GRANITE_SCALES | {"experts"},
    ),
    "granitemoehybrid": Model(
        "GraniteMoeHybridForCausalLM",
        hybrids.computes_granitemoehybrid,
        hybrids.granitemoehybrid_keys,
        fields=GRANITE_SCALES | {"experts", "states", "unrotated"},
        scalings=("none",),
    ),
    "mamba2": Model(
        "Mamba2ForCausalLM",
        hybrids.computes_mamba2,
        hybrids.mamba2_keys,
        fields=frozenset({"states", "unrotated"}),
        scalings=("none",),
        unread=hybrids.NOT_OF_MAMBA2,
    ),
    "lfm2": Model(
        "Lfm2ForCausalLM",
        hybrids.computes_lfm2,
        hybrids.lfm2_keys,
        fields=frozenset({"states"}),
        scalings=("none",),
        unread=hybrids.NOT_OF_LFM2,
    ),
    "lfm2_moe": Model(
        "Lfm2MoeForCausalLM",
        hybrids.computes_lfm2_moe,
        hybrids.lfm2_moe_keys,
        fields=frozenset({"experts", "states"}),
        scalings=("none",),
        unread=hybrids.NOT_OF_LFM2,
    ),
    # mlx-lm drops the heads that draft tokens.
    "qwen3_5_text": Model(
        "Qwen3_5ForCausalLM",
        hybrids.computes_qwen3_5,
        hybrids.qwen3_5_keys,
        fields=frozenset({"draft_layers", "states"}),
        scalings=("none",),
        model_type="qwen3_5",
        has_section=True,
    ),
}  # fmt: skip
