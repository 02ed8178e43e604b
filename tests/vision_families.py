"""Tiny models that see pictures, as transformers writes them: the features of their towers and the logits of a prompt
with two pictures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from decoder_families import HYBRIDS, randomize
from image_families import HALF, MARKERS, Family, marker_id, pattern, write_family
from tiny_models import SIZES
from vision_arguments import QWEN, arguments_of, masks_of

from nearfar.compiler.runtime.images.patches import PreparedImage, prepare_image

Floats = npt.NDArray[np.float32]
VISION = {"hidden_size": 36, "intermediate_size": 52, "num_hidden_layers": 2, "num_attention_heads": 3}
TEXT = {**SIZES, "vocab_size": 256 + len(MARKERS) + 3}
IMAGE = marker_id("<image>")
LLAMA = {**TEXT, "model_type": "llama", "head_dim": 24}
LFM2 = {
    **TEXT,
    "model_type": "lfm2",
    "layer_types": ["conv", "full_attention", "conv"],
    "block_multiple_of": 10,
    "block_auto_adjust_ff_dim": False,
}
GEMMA3 = {
    **TEXT,
    "model_type": "gemma3_text",
    "head_dim": 24,
    "query_pre_attn_scalar": 24,
    "sliding_window": 6,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
}
GEMMA4 = {
    **TEXT,
    "model_type": "gemma4_unified_text",
    "num_hidden_layers": 4,
    "head_dim": 12,
    "global_head_dim": 24,
    "pad_token_id": 0,
    "num_global_key_value_heads": 1,
    "attention_k_eq_v": True,
    "sliding_window": 8,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
}
GEMMA4_TOWER = {
    **VISION,
    "num_key_value_heads": 3,
    "head_dim": 12,
    "patch_size": 4,
    "pooling_kernel_size": 2,
    "position_embedding_size": 24,
}
GEMMA4_PICTURES = {
    "image_processor_type": "Gemma4ImageProcessor",
    "max_soft_tokens": 12,
    "patch_size": 4,
    "pooling_kernel_size": 2,
}
GEMMA4_VIDEO = {**GEMMA4_PICTURES, "num_frames": 3, "video_processor_type": "Gemma4VideoProcessor"}
GEMMA4_TEXT = {**GEMMA4, "model_type": "gemma4_text", "hidden_size_per_layer_input": 0}
IDEFICS3 = {"vision_config": {**VISION, "image_size": 42, "patch_size": 7}, "scale_factor": 3, "pad_token_id": 0}
# Writes the mark of each picture, and the texts, between control tokens.
TEMPLATE = (
    "{% for message in messages %}{{ '<start_of_image>' }}{% if message.content is string %}{{ message.content }}"
    "{% else %}{% for part in message.content %}{% if part.type == 'image' %}{{ '<image>' }}"
    "{% elif part.type == 'video' %}{{ '<video>' }}{% else %}{{ part.text }}"
    "{% endif %}{% endfor %}{% endif %}{{ '<end_of_utterance>' }}{% endfor %}"
)


def mrope(*section: int) -> dict[str, Any]:
    return {"rope_type": "default", "rope_theta": 500.0, "mrope_section": list(section), "mrope_interleaved": True}


LFM2_VL = {
    "vision_config": {**VISION, "model_type": "siglip2_vision_model", "num_patches": 36, "patch_size": 4},
    "projector_hidden_size": 44,
}
# Tiles of 42 pixels, and pictures of 8 to 20 features.
TILES = {**HALF, "max_image_size": {"longest_edge": 42}, "size": {"longest_edge": 84}}
AREAS = {
    **HALF,
    "encoder_patch_size": 4,
    "downsample_factor": 2,
    "min_image_tokens": 8,
    "max_image_tokens": 20,
    "tile_size": 32,
    "max_tiles": 4,
}


QWEN_VISION = {
    "depth": 3,
    "hidden_size": 48,
    "intermediate_size": 52,
    "num_heads": 3,
    "out_hidden_size": SIZES["hidden_size"],
    "num_position_embeddings": 36,
    "patch_size": 4,
}
QWEN_AREAS = {
    **HALF,
    "image_processor_type": "Qwen2VLImageProcessorFast",
    "patch_size": 4,
    "size": {"shortest_edge": 8 * 64, "longest_edge": 20 * 64},
}
QWEN_VIDEO = {
    **HALF,
    "video_processor_type": "Qwen3VLVideoProcessor",
    "patch_size": 4,
    "size": {"shortest_edge": 8 * 64, "longest_edge": 60 * 64},
}


@dataclass(frozen=True, slots=True)
class VisionFamily:
    """transformers' class without its ending, its configuration, the processor's files, the pictures' sizes, and the
    token that stands for a feature.
    """

    name: str
    config: dict[str, Any]
    processor: dict[str, Any]
    sizes: Sequence[tuple[int, int]]
    placeholder: str = "<image>"
    # How videos are read, and the token that a chat template writes for them.
    video: dict[str, Any] = field(default_factory=dict)
    video_mark: str = "<video>"


FAMILIES: dict[str, VisionFamily] = {
    # A picture of four tiles and an overview, and one of a single tile.
    "smolvlm": VisionFamily(
        "SmolVLM",
        {"text_config": LLAMA, **IDEFICS3},
        {**TILES, "image_processor_type": "SmolVLMImageProcessor"},
        ((90, 61), (20, 20)),
        video={**TILES, "video_sampling": {"fps": 1, "max_frames": 4, "video_size": {"longest_edge": 84}}},
    ),
    "idefics3": VisionFamily(
        "Idefics3",
        {"text_config": LLAMA, **IDEFICS3},
        {**TILES, "image_processor_type": "Idefics3ImageProcessor", "size": {"longest_edge": 42}},
        ((33, 42), (42, 42)),
    ),
    # A picture of tiles and an overview, and one that is much higher than wide.
    "lfm2_vl": VisionFamily(
        "Lfm2Vl",
        {"text_config": LFM2, **LFM2_VL},
        {**AREAS, "image_processor_type": "Lfm2VlImageProcessorFast"},
        ((70, 64), (9, 60)),
    ),
    "lfm2_vl_plain": VisionFamily(
        "Lfm2Vl",
        {"text_config": LFM2, **LFM2_VL, "projector_use_layernorm": False, "projector_bias": False},
        {**AREAS, "image_processor_type": "Lfm2VlImageProcessorFast", "do_image_splitting": False},
        ((31, 17), (40, 40)),
    ),
    "gemma3": VisionFamily(
        "Gemma3",
        {
            "text_config": GEMMA3,
            "vision_config": {**VISION, "model_type": "siglip_vision_model", "image_size": 42, "patch_size": 7},
            "mm_tokens_per_image": 9,
            # Otherwise it repeats the last token whatever it sees.
            "tie_word_embeddings": False,
        },
        {**HALF, "image_processor_type": "Gemma3ImageProcessor", "size": {"height": 42, "width": 42}},
        ((33, 42), (90, 20)),
        "<image_soft_token>",
    ),
    # Pictures of more features than a window has tokens, and of fewer.
    "gemma4_unified": VisionFamily(
        "Gemma4Unified",
        {
            "text_config": GEMMA4,
            "vision_config": {
                "patch_size": 4, "pooling_kernel_size": 2, "mm_embed_dim": 44, "mm_posemb_size": 20,
                "output_proj_dims": 44,
            },
            "audio_config": {"audio_embed_dim": 32},
        },
        {
            "image_processor_type": "Gemma4UnifiedImageProcessor", "max_soft_tokens": 12, "patch_size": 4,
            "pooling_kernel_size": 2,
        },
        ((60, 45), (20, 70)),
        "<|image|>",
        {**GEMMA4_VIDEO, "video_processor_type": "Gemma4UnifiedVideoProcessor"},
        "<|video|>",
    ),
    # Features in their standard form, which layers with a window see both ways.
    "gemma4": VisionFamily(
        "Gemma4",
        {
            "text_config": {**GEMMA4_TEXT, "use_bidirectional_attention": "vision"},
            "vision_config": {**GEMMA4_TOWER, "standardize": True},
            "audio_config": None,
        },
        GEMMA4_PICTURES,
        ((60, 45), (20, 70)),
        "<|image|>",
        GEMMA4_VIDEO,
        "<|video|>",
    ),
    # Bounds of projections, and a table for each layer; pictures are read from left to right.
    "gemma4_bounded": VisionFamily(
        "Gemma4",
        {
            "text_config": {
                **GEMMA4_TEXT,
                "hidden_size_per_layer_input": 10,
                "vocab_size_per_layer_input": TEXT["vocab_size"],
                "num_kv_shared_layers": 2,
                "use_double_wide_mlp": True,
                "pad_token_id": 3,
            },
            "vision_config": {**GEMMA4_TOWER, "use_clipped_linears": True},
            "audio_config": None,
        },
        GEMMA4_PICTURES,
        ((60, 45), (20, 70)),
        "<|image|>",
        GEMMA4_VIDEO,
        "<|video|>",
    ),
    # Pictures are read from left to right.
    "gemma4_causal": VisionFamily(
        "Gemma4",
        {"text_config": GEMMA4_TEXT, "vision_config": GEMMA4_TOWER, "audio_config": None},
        GEMMA4_PICTURES,
        ((60, 45), (20, 70)),
        "<|image|>",
        GEMMA4_VIDEO,
        "<|video|>",
    ),
    # Wide and high pictures, whose rotations are by other axes; features for two further layers, made in another order.
    "qwen3_vl": VisionFamily(
        "Qwen3VL",
        {
            "text_config": {**TEXT, "head_dim": 24, "rope_parameters": mrope(5, 4, 3)},
            "vision_config": {**QWEN_VISION, "deepstack_visual_indexes": [1, 0]},
        },
        QWEN_AREAS,
        ((70, 24), (20, 51)),
        "<|image_pad|>",
        QWEN_VIDEO,
        "<|video_pad|>",
    ),
    "qwen3_5": VisionFamily(
        "Qwen3_5",
        {
            "text_config": {
                **TEXT,
                **HYBRIDS["qwen3_5_text"][1],
                "rope_parameters": {**mrope(2, 2, 2), "partial_rotary_factor": 0.5},
            },
            "vision_config": QWEN_VISION,
        },
        QWEN_AREAS,
        ((70, 24), (20, 51)),
        "<|image_pad|>",
        QWEN_VIDEO,
        "<|video_pad|>",
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Expected:
    """A prompt with two pictures, and what transformers computes: the features of each picture, and the logits of all
    tokens. ``places`` are the positions of the first placeholders.
    """

    images: tuple[PreparedImage, ...]
    token_ids: list[int]
    places: tuple[int, ...]
    features: tuple[Floats, ...]
    logits: Floats


def make_vision(name: str, folder: Path, **text: Any) -> Expected:
    """Write a model of FAMILIES into a folder. ``text`` are other values of its text model's configuration."""
    import torch
    import transformers

    from nearfar.compiler.formats import load

    family = FAMILIES[name]
    placeholder = marker_id(family.placeholder)
    torch.manual_seed(len(name))
    values = {**family.config, "text_config": {**family.config["text_config"], **text}}
    marks = {"image_token_id": placeholder}
    if family.video:
        marks["video_token_id"] = marker_id(family.video_mark)
    if name in QWEN:
        marks["vision_start_token_id"] = marker_id("<|vision_start|>")
    config = getattr(transformers, f"{family.name}Config")(**values, **marks)
    for part in (config, config.text_config, config.vision_config):
        part._attn_implementation = "eager"
    model = getattr(transformers, f"{family.name}ForConditionalGeneration")(config).float().eval()
    randomize(model)
    standardize(model)
    write_family(Family({}, family.processor, video=family.video), folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE.replace("<video>", family.video_mark))
    model.save_pretrained(folder)
    spec = load(str(folder)).images
    assert spec is not None
    images = tuple(prepare_image(spec, pattern(*size)) for size in family.sizes)
    token_ids: list[int] = []
    places = []
    for number, image in enumerate(images):
        token_ids += [(31 * number + 7 * i) % 250 for i in range(5 + number)]
        # Tokens between the tiles do not matter here.
        places.append(len(token_ids))
        token_ids += [placeholder] * sum(image.features)
    token_ids += [11, 12, 13]
    inputs = arguments_of(model, spec, images)
    with torch.no_grad():
        made = model.model.get_image_features(**inputs)
        logits = model(input_ids=torch.tensor([token_ids]), **inputs, **masks_of(model, token_ids)).logits[0].numpy()
    found = made.pooler_output
    rows = torch.cat(list(found)) if isinstance(found, list | tuple) else found
    further = getattr(made, "deepstack_features", None) or []
    rows = torch.cat([rows, *(torch.cat(list(each)) for each in further)], dim=-1)
    stops = np.cumsum([sum(image.features) for image in images])[:-1]
    features = np.split(rows.reshape(-1, rows.shape[-1]).numpy(), stops)
    return Expected(images, token_ids, tuple(places), tuple(features), logits)


def standardize(model: Any) -> None:
    """Give a tower of Gemma 4 small scales of its features' standard form, and narrow bounds of its projections, of
    which some stay infinite.
    """
    import torch

    for name, buffer in model.named_buffers():
        if name.endswith("std_bias"):
            buffer.copy_(4 * torch.randn_like(buffer))
        if name.endswith(("input_min", "output_min")):
            buffer.fill_(-0.3 - torch.rand(1).item())
        if name.endswith(("input_max", "output_max")) and "o_proj" not in name:
            buffer.fill_(0.2 + torch.rand(1).item())
        if name.endswith("std_scale"):
            buffer.copy_(0.05 * (1 + 0.3 * torch.rand_like(buffer)))


def greedy_answer(
    folder: Path, token_ids: Sequence[int], pictures: Sequence[npt.NDArray[np.uint8]], count: int
) -> list[int]:
    """The ``count`` most likely tokens that transformers' model of a folder generates after a prompt."""
    import torch
    import transformers

    from nearfar.compiler.formats import load

    spec = load(str(folder)).images
    assert spec is not None
    config = transformers.AutoConfig.from_pretrained(folder, attn_implementation="eager")
    model = transformers.AutoModelForImageTextToText.from_pretrained(folder, config=config, dtype=torch.float32).eval()
    inputs = arguments_of(model, spec, [prepare_image(spec, each) for each in pictures]) if pictures else {}
    # A placeholder in an answer is a token like others. Beside pictures the model would expect features for it, so each
    # step reads a token alone, after those that it has read.
    step = {"input_ids": torch.tensor([list(token_ids)]), **inputs, **masks_of(model, token_ids)}
    found: list[int] = []
    with torch.no_grad():
        while len(found) < count:
            output = model(**step, use_cache=True)
            found.append(int(output.logits[0, -1].argmax()))
            step = {"input_ids": torch.tensor([found[-1:]]), "cache": output.cache}
    return found
