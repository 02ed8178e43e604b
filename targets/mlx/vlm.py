"""The models of mlx-vlm: which models with towers each of them computes, the names of its tensors, and the keys of
config.json that it reads.

Its text models are those of mlx-lm, so `models.py` decides first; what differs is here. The names are those that
`formats/multimodal.py` and ``PARTS`` of the towers read, backwards.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from nearfar.compiler.arch.vision.siglip import CHANNELS
from nearfar.compiler.formats import Checkpoint
from nearfar.compiler.formats.multimodal import MLX_THETA, PREFIXES
from nearfar.compiler.ir.spec import HearingSpec, ModelSpec, VisionSpec
from nearfar.compiler.runtime.errors import UnsupportedModel

from .config import text_keys, windows_within
from .models import require_known
from .spec_facts import splits_hidden_size

Keys = dict[str, Any]
# The keys of a section "text_config" that its model shares with the towers.
OF_TEXT = ("model_type", "pad_token_id", "use_bidirectional_attention")
# The eps of norms that mlx-vlm does not read in config.json, and the bands of sound.
HEAD_NORM_EPS, BANDS = 1e-6, 128


@dataclass(frozen=True, slots=True)
class VisionLanguageModel:
    """A model of mlx-vlm. ``vision``: the keys of "vision_config". ``reasons``: why it does not compute a model, the
    first of these that holds; None otherwise.

    ``text``: the prefixes of its text model's tensors. ``tower``: that of its tower's, if the reader knows several.
    ``copies_head``: it has a head of its own even if that is the embedding. ``text_keys``: further ones of
    "text_config".
    """

    vision: Callable[[VisionSpec], Keys]
    reasons: Callable[[ModelSpec, Checkpoint, int], str | None]
    text: tuple[str, ...] = ("language_model.model.", "language_model.lm_head.")
    tower: str | None = None
    copies_head: bool = False
    text_keys: Callable[[ModelSpec, VisionSpec], Keys] = lambda spec, vision: {}  # noqa: ARG005

    @property
    def prefixes(self) -> Mapping[str, str]:
        """Those of text-only checkpoints -> of this model."""
        return {PREFIXES[theirs]: theirs for theirs in self.text}

    def tower_prefixes(self, parts: Mapping[str, str]) -> Mapping[str, str]:
        """Those that graphs have -> of this model, from ``parts`` as the reader has them."""
        found = {ours: theirs for theirs, ours in parts.items()}
        return found if self.tower is None else {**found, parts[self.tower]: self.tower}


def vision_language_model(checkpoint: Checkpoint, activation: str, context: int) -> VisionLanguageModel:
    """The model of mlx-vlm that computes a checkpoint with a tower. Raises UnsupportedModel."""
    spec, vision = checkpoint.spec, checkpoint.spec.vision
    assert vision is not None
    model = MODELS[vision.model_type]
    require_known(text_alone(spec), activation)
    reason = model.reasons(spec, checkpoint, context)
    if reason is not None:
        raise UnsupportedModel(
            f"mlx-vlm's {vision.model_type} has no such model: {reason}; use --target webgpu, cpu or cuda, or add "
            "--text-only to write a folder of mlx-lm",
            model_type=vision.model_type,
        )
    return model


def notes(checkpoint: Checkpoint) -> tuple[str, ...]:
    """What mlx-vlm 0.7.10 computes otherwise than the model, for users."""
    vision = checkpoint.spec.vision
    assert vision is not None
    side = math.isqrt(vision.positions)
    if MODELS[vision.model_type] is IDEFICS3 and side & (side - 1):
        return (
            f"mlx-vlm rounds the places of the {side} x {side} patches of a tile, so that some have the position of "
            "their neighbour: features differ a little from the model's",
        )
    others = {
        "all": "mlx-vlm lets a token of a picture see only those before it, and the model all of the picture",
        "windows": "mlx-vlm lets the tokens of a picture see all of it in all layers, and the model in those with a "
        "window",
    }
    return (f"{others[vision.both_ways]}: logits differ",) if vision.both_ways in others else ()


def text_alone(spec: ModelSpec) -> ModelSpec:
    return replace(spec, vision=None, hearing=None)


def sections(model: VisionLanguageModel, checkpoint: Checkpoint, values: Keys, context: int) -> Keys:
    """The keys that differ from ``values``, those of the checkpoint's config.json."""
    spec, vision, images = text_alone(checkpoint.spec), checkpoint.spec.vision, checkpoint.images
    assert vision is not None
    assert images is not None
    own = {key: values["text_config"][key] for key in OF_TEXT if key in values["text_config"]}
    keys = text_keys(spec, require_known(spec), context) | model.text_keys(spec, vision)
    placeholder = images.prompt.placeholder_id
    hearing = checkpoint.spec.hearing
    return {
        "text_config": {**own, **keys, "bos_token_id": spec.bos_token_id},
        "vision_config": {
            "model_type": f"{vision.model_type}_vision",
            **values.get("vision_config", {}),
            **model.vision(vision),
        },
        "audio_config": None if hearing is None else {**values["audio_config"], **hearing_keys(hearing)},
        # Both names are known.
        "image_token_id": placeholder,
        "image_token_index": placeholder,
        # mlx-vlm's Gemma 3 has no embedding for it.
        "pad_token_id": values.get("pad_token_id", own.get("pad_token_id")),
        "hidden_size": spec.hidden_size,
        "vocab_size": spec.vocab_size,
        "tie_word_embeddings": spec.tie_word_embeddings,
    }


def patch_side(vision: VisionSpec) -> int:
    return math.isqrt(vision.patch_elements // CHANNELS)


def sizes(vision: VisionSpec) -> Keys:
    return {
        "hidden_size": vision.hidden_size,
        "intermediate_size": vision.intermediate_size,
        "num_hidden_layers": vision.num_layers,
        "num_attention_heads": vision.num_heads,
        "patch_size": patch_side(vision),
    }


def siglip_keys(vision: VisionSpec) -> Keys:
    side = math.isqrt(vision.positions) * patch_side(vision)
    return {**sizes(vision), "image_size": side, "layer_norm_eps": vision.norm_eps}


def lfm2_vl_keys(vision: VisionSpec) -> Keys:
    return {**sizes(vision), "num_patches": vision.positions, "layer_norm_eps": vision.norm_eps}


def gemma4_vision_keys(vision: VisionSpec) -> Keys:
    return {
        **sizes(vision),
        "num_key_value_heads": vision.num_heads,
        "head_dim": vision.head_dim,
        "rms_norm_eps": vision.norm_eps,
        "position_embedding_size": vision.positions // 2,
        "pooling_kernel_size": vision.block,
        "standardize": vision.projector_norm,
        "use_clipped_linears": vision.bounded,
    }


def unified_keys(vision: VisionSpec) -> Keys:
    return {
        "mm_embed_dim": vision.hidden_size,
        "output_proj_dims": vision.hidden_size,
        "mm_posemb_size": vision.positions // 2,
        "model_patch_size": patch_side(vision),
        "rms_norm_eps": vision.projector_eps,
    }


def qwen_keys(vision: VisionSpec) -> Keys:
    return {
        # transformers 5 writes a longer name.
        "model_type": vision.model_type,
        "depth": vision.num_layers,
        "hidden_size": vision.hidden_size,
        "intermediate_size": vision.intermediate_size,
        "num_heads": vision.num_heads,
        "patch_size": patch_side(vision),
        "spatial_merge_size": vision.block,
        "num_position_embeddings": vision.positions,
        "deepstack_visual_indexes": list(vision.deepstack_layers),
    }


def hearing_keys(hearing: HearingSpec) -> Keys:
    if not hearing.num_layers:
        sizes = ("audio_embed_dim", "hidden_size", "output_proj_dims", "audio_samples_per_token")
        return {**dict.fromkeys(sizes, hearing.row_elements), "rms_norm_eps": hearing.norm_eps}
    return {
        "hidden_size": hearing.hidden_size,
        "num_hidden_layers": hearing.num_layers,
        "num_attention_heads": hearing.num_heads,
        "subsampling_conv_channels": list(hearing.channels),
        "conv_kernel_size": hearing.taps,
        "attention_chunk_size": hearing.window,
        "attention_context_left": hearing.window + 1,
        "attention_logit_cap": hearing.softcap,
        "residual_weight": hearing.residual,
        "output_proj_dims": hearing.output_size,
        "rms_norm_eps": hearing.norm_eps,
    }


def gemma3_text_keys(spec: ModelSpec, vision: VisionSpec) -> Keys:
    return {MLX_THETA: spec.rope.theta, "mm_tokens_per_image": vision.positions // vision.block**2}


def mrope(vision: VisionSpec) -> Keys:
    # mlx-vlm needs the first name, transformers the second.
    return {
        "type": "default", "rope_type": "default", "mrope_section": list(vision.mrope_section),
        "mrope_interleaved": True,
    }  # fmt: skip


def qwen3_vl_text_keys(spec: ModelSpec, vision: VisionSpec) -> Keys:  # noqa: ARG001
    return {"rope_scaling": mrope(vision)}


def qwen3_5_text_keys(spec: ModelSpec, vision: VisionSpec) -> Keys:
    section = require_known(spec).keys(spec, 1)["rope_parameters"]
    return {"rope_parameters": {**section, **mrope(vision)}}


def siglip_reasons(spec: ModelSpec, checkpoint: Checkpoint, context: int) -> str | None:  # noqa: ARG001
    assert spec.vision is not None
    if spec.vision.activation != "gelu_tanh":
        return f"the activation of its tower is {spec.vision.activation}"
    return None


def idefics3_reasons(spec: ModelSpec, checkpoint: Checkpoint, context: int) -> str | None:
    if spec.qkv_bias or spec.mlp_bias:
        return "its text model has biases"
    if spec.rope.scaling != "none":
        return f"its rotation has the scaling {spec.rope.scaling}"
    if not splits_hidden_size(spec) or windows_within(spec, context):
        return "its text model has heads of another size, or windows"
    return siglip_reasons(spec, checkpoint, context)


def lfm2_vl_reasons(spec: ModelSpec, checkpoint: Checkpoint, context: int) -> str | None:
    assert spec.vision is not None
    if spec.experts is not None:
        return "its text model has experts"
    if spec.vision.projector_activation != "gelu":
        return f"the activation of its projector is {spec.vision.projector_activation}"
    return siglip_reasons(spec, checkpoint, context)


def gemma3_reasons(spec: ModelSpec, checkpoint: Checkpoint, context: int) -> str | None:
    if not spec.tie_word_embeddings:
        return "its head is not the embedding"
    return siglip_reasons(spec, checkpoint, context)


def gemma4_reasons(spec: ModelSpec, checkpoint: Checkpoint, context: int) -> str | None:
    vision, hearing = spec.vision, spec.hearing
    assert vision is not None
    if vision.num_layers and vision.norm_eps != HEAD_NORM_EPS:
        return f"'rms_norm_eps' of its tower is {vision.norm_eps}"
    if spec.per_layer_size and checkpoint.config.get("pad_token_id"):
        return f"'pad_token_id', whose row in a table of layers pictures have, is {checkpoint.config['pad_token_id']}"
    if hearing is not None and hearing.num_layers:
        if not hearing.bounded or hearing.norm_eps != HEAD_NORM_EPS:
            return "its tower for sound has no bounds, or another 'rms_norm_eps'"
        if hearing.channels[0] != BANDS:
            return f"its tower for sound reads {hearing.channels[0]} bands instead of {BANDS}"
    return siglip_reasons(spec, checkpoint, context) if vision.num_layers else None


def qwen_reasons(spec: ModelSpec, checkpoint: Checkpoint, context: int) -> str | None:
    assert spec.vision is not None
    if spec.vision.model_type == "qwen3_5" and spec.vision.deepstack_layers:
        return "it has features behind earlier layers ('deepstack_visual_indexes')"
    return siglip_reasons(spec, checkpoint, context)


IDEFICS3 = VisionLanguageModel(
    siglip_keys, idefics3_reasons, text=("language_model.", "language_model.lm_head."), copies_head=True
)
MODELS = {
    "gemma3": VisionLanguageModel(
        siglip_keys,
        gemma3_reasons,
        tower="vision_tower.vision_model.",
        copies_head=True,
        text_keys=gemma3_text_keys,
    ),
    "gemma4": VisionLanguageModel(gemma4_vision_keys, gemma4_reasons),
    "gemma4_unified": VisionLanguageModel(unified_keys, gemma4_reasons),
    "idefics3": IDEFICS3,
    "lfm2_vl": VisionLanguageModel(lfm2_vl_keys, lfm2_vl_reasons),
    "qwen3_5": VisionLanguageModel(qwen_keys, qwen_reasons, text_keys=qwen3_5_text_keys),
    "qwen3_vl": VisionLanguageModel(qwen_keys, qwen_reasons, text_keys=qwen3_vl_text_keys),
    "smolvlm": IDEFICS3,
}
