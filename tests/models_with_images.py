"""Tiny models of images or sound beside text, whose text models are decoders that compile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from decoder_families import FAMILIES, HYBRIDS, PLAIN_FAMILIES, write
from tiny_models import SIZES

VISION: dict[str, Any] = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
QWEN_VISION = {"depth": 1, "num_heads": 2, "hidden_size": 16, "intermediate_size": 16, "out_hidden_size": 72}
CLIP, SIGLIP = ({**VISION, "model_type": f"{name}_vision_model"} for name in ("clip", "siglip"))
# Inside these models, transformers 5 omits the text model's factor of the logits, unlike transformers 4 and the text
# model alone.
COHERE2 = {"model_type": "cohere2", **FAMILIES["cohere2"][1], "logit_scale": 1.0}


def rotation(*sections: int, **more: Any) -> dict[str, Any]:
    return {"rope_type": "default", "rope_theta": 300.0, "mrope_section": list(sections), **more}


# model_type -> (transformers' class without its ending, the text model's configuration besides the sizes, that of the
# other parts).
MODELS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "aya_vision": ("AyaVision", COHERE2, {"vision_config": SIGLIP}),
    "cohere2_vision": ("Cohere2Vision", COHERE2, {"vision_config": SIGLIP, "alignment_intermediate_size": 16}),
    # The image token is not one of TOKENS.
    "gemma3": (
        "Gemma3",
        FAMILIES["gemma3_text"][1],
        {"vision_config": VISION, "mm_tokens_per_image": 4, "image_token_index": 504},
    ),
    # The text's values on full layers are its keys.
    "gemma4_unified": (
        "Gemma4Unified",
        {**PLAIN_FAMILIES["gemma4_unified_text"][1], "pad_token_id": 0},
        {
            "vision_config": {
                "mm_embed_dim": 16,
                "mm_posemb_size": 4,
                "output_proj_dims": 16,
                "patch_size": 4,
                "pooling_kernel_size": 2,
            },
            "audio_config": {"audio_embed_dim": 16},
        },
    ),
    "idefics3": ("Idefics3", {"model_type": "llama", "head_dim": 24}, {"vision_config": VISION}),
    "internvl": (
        "InternVL",
        {"model_type": "qwen3", "head_dim": 24},
        {"vision_config": {**VISION, "image_size": [28, 28], "patch_size": [14, 14]}},
    ),
    "lfm2_vl": (
        "Lfm2Vl",
        {"model_type": "lfm2", **HYBRIDS["lfm2"][1]},
        {"vision_config": {**VISION, "model_type": "siglip2_vision_model", "num_patches": 4}},
    ),
    "llava": ("Llava", {"model_type": "llama", "head_dim": 24}, {"vision_config": CLIP}),
    "llava_next": ("LlavaNext", {"model_type": "mistral", "sliding_window": 11}, {"vision_config": CLIP}),
    "llava_onevision": ("LlavaOnevision", {"model_type": "qwen2"}, {"vision_config": SIGLIP}),
    # transformers ties the head of this model by default, but not that of its text model.
    "mistral3": (
        "Mistral3",
        {"model_type": "ministral3", "head_dim": 24},
        {"vision_config": {**VISION, "model_type": "pixtral"}},
    ),
    "qwen2_vl": (
        "Qwen2VL",
        {"rope_parameters": rotation(2, 2, 2)},
        {"vision_config": {"depth": 1, "embed_dim": 16, "num_heads": 2, "hidden_size": 72, "mlp_ratio": 1}},
    ),
    "qwen2_5_vl": ("Qwen2_5_VL", {"rope_parameters": rotation(2, 2, 2)}, {"vision_config": QWEN_VISION}),
    "qwen3_5": (
        "Qwen3_5",
        {**HYBRIDS["qwen3_5_text"][1], "rope_parameters": rotation(1, 1, 1, mrope_interleaved=True)},
        {"vision_config": QWEN_VISION},
    ),
    "qwen3_vl": (
        "Qwen3VL",
        {"head_dim": 24, "rope_parameters": rotation(4, 4, 4, mrope_interleaved=True)},
        {"vision_config": {**QWEN_VISION, "deepstack_visual_indexes": [0]}},
    ),
    "smolvlm": ("SmolVLM", {"model_type": "llama", "head_dim": 24}, {"vision_config": VISION}),
    "voxtral": (
        "Voxtral",
        {"model_type": "llama", "head_dim": 24},
        {
            "audio_config": {
                "hidden_size": 16,
                "intermediate_size": 64,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
            }
        },
    ),
}


def make_with_images(name: str, folder: Path) -> npt.NDArray[np.float32]:
    """Write a checkpoint of MODELS into a folder. Returns transformers' logits (tokens, V) of TOKENS."""
    import torch
    import transformers

    family, text, others = MODELS[name]
    torch.manual_seed(len(name))
    config = getattr(transformers, f"{family}Config")(text_config={**SIZES, **text}, **others)
    return write(getattr(transformers, f"{family}ForConditionalGeneration")(config).float(), folder)
