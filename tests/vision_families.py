"""Tiny models that see pictures, as transformers writes them: the features of their towers and the logits of a prompt
with two pictures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from decoder_families import HYBRIDS, randomize
from image_families import HALF, MARKERS, Family, marker_id, pattern, write_family
from tiny_models import SIZES

from nearfar.compiler.ir.images import ImageSpec
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


QWEN = ("qwen3_5", "qwen3_vl")
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


def make_video(name: str, folder: Path) -> Expected:
    """The same for a prompt with one video, of which each tile is an image of the result."""
    import torch
    import transformers
    from video_oracle import video_of

    from nearfar.compiler.formats import load
    from nearfar.compiler.runtime.images.videos import prepare_video
    from nearfar.compiler.runtime.text.tokenizer import Tokenizer

    make_vision(name, folder)
    family, placeholder = FAMILIES[name], marker_id(FAMILIES[name].placeholder)
    loaded = load(str(folder))
    spec = loaded.images
    assert spec is not None
    assert spec.video is not None, loaded.notes
    video = prepare_video(spec, video_of(40, 33, 30, 10.0))
    token_ids = [5, 6, *Tokenizer(loaded.tokenizer).encode(video.text, split_special_tokens=False), 11, 12, 13]
    tiles = tiles_of(video)
    rows = [index for index, token_id in enumerate(token_ids) if token_id == placeholder]
    places = [rows[start] for start in np.cumsum([0, *video.features])[:-1]]
    model = getattr(transformers, f"{family.name}ForConditionalGeneration").from_pretrained(
        folder, attn_implementation="eager", dtype=torch.float32
    )
    inputs = video_arguments(model, spec, tiles)
    is_frame = torch.tensor([[token_id == placeholder for token_id in token_ids]])
    given, kinds = torch.tensor([token_ids]), {}
    # Other models take frames for pictures.
    if "pixel_values_videos" in inputs:
        given = torch.where(is_frame, model.config.video_token_id, given)
        unified = model.config.model_type == "gemma4_unified"
        kinds = masks_of(model, token_ids) if unified else {"mm_token_type_ids": 2 * is_frame.long()}
    with torch.no_grad():
        made = (model.model.get_video_features if kinds else model.model.get_image_features)(**inputs)
        logits = model(input_ids=given, **inputs, **kinds).logits[0].numpy()
    found = made.pooler_output
    features = torch.cat(list(found)) if isinstance(found, list | tuple) else found
    features = features.reshape(-1, features.shape[-1])
    further = [torch.cat(list(each)) for each in getattr(made, "deepstack_features", None) or []]
    features = torch.cat([features, *further], dim=-1)
    parts = np.split(features.numpy(), np.cumsum(video.features)[:-1])
    return Expected(tiles, token_ids, tuple(places), tuple(parts), logits)


def tiles_of(video: PreparedImage) -> tuple[PreparedImage, ...]:
    """Each tile as an image of its own."""
    names = ("patches", "rows", "weights", "positions", "changes")
    tiles = []
    for index, (start, stop) in enumerate(zip(video.starts[:-1], video.starts[1:], strict=True)):
        own = {name: getattr(video, name)[start:stop] for name in names}
        starts = np.array([0, stop - start], np.int32)
        tiles.append(replace(video, **own, starts=starts, features=(video.features[index],)))
    return tuple(tiles)


def video_arguments(model: Any, spec: ImageSpec, tiles: Sequence[PreparedImage]) -> dict[str, Any]:
    """The arguments of transformers' model for the frames of a video."""
    import torch

    if model.config.model_type in QWEN:
        patches, changes = (np.concatenate([getattr(tile, name) for tile in tiles]) for name in ("patches", "changes"))
        frames = [each.reshape(len(each), 3, -1) for each in (patches + changes, patches - changes)]
        grid = [len(tiles), *(int(each) + 1 for each in tiles[0].positions.max(axis=0))]
        pixels = torch.tensor(np.stack(frames, 2).reshape(len(patches), -1))
        return {"pixel_values_videos": pixels, "video_grid_thw": torch.tensor([grid])}
    arguments = arguments_of(model, spec, tiles)
    if "image_position_ids" not in arguments:
        return arguments
    return {
        "pixel_values_videos": arguments["pixel_values"],
        "video_position_ids": arguments["image_position_ids"],
        "num_frames_per_video": torch.tensor([len(tiles)]),
    }


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


def arguments_of(model: Any, spec: ImageSpec, images: Sequence[PreparedImage]) -> dict[str, Any]:
    """The arguments of transformers' model for the pictures of a prompt."""
    if model.config.model_type == "gemma4_unified":
        return positioned(images)
    if model.config.model_type == "gemma4":
        arguments = positioned(images)
        # It makes -1 to 1 of 0 to 1 itself.
        return {**arguments, "pixel_values": (arguments["pixel_values"] + 1) / 2}
    if model.config.model_type in QWEN:
        return grids_of(images)
    arguments = pixels_of(spec, images, tiles=model.config.model_type == "lfm2_vl")
    if model.config.model_type == "gemma3":
        arguments["pixel_values"] = arguments["pixel_values"][0]
    return arguments


def masks_of(model: Any, token_ids: Sequence[int]) -> dict[str, Any]:
    """The arguments that let the tokens of a picture see all of it, or that say which these tokens are."""
    import torch

    config, ids = model.config, torch.tensor([list(token_ids)])
    is_image = (ids == config.image_token_id).long()
    if config.model_type == "gemma3":
        return {"token_type_ids": is_image}
    if config.model_type in ("gemma4", *QWEN):
        return {"mm_token_type_ids": is_image}
    if config.model_type != "gemma4_unified":
        return {}
    # Its forward() without these masks sees both ways in the other layers, too.
    embedded = model.get_input_embeddings()(torch.zeros_like(ids))
    positions = torch.arange(len(token_ids))[None]
    masks = model.create_masks_for_generate(model.config, embedded, None, None, positions, is_image)
    return {"attention_mask": masks}


def positioned(images: Sequence[PreparedImage]) -> dict[str, Any]:
    """The arguments of transformers' models that read patches with their columns and rows."""
    import torch

    longest = max(len(image.patches) for image in images)
    values = np.zeros((len(images), longest, images[0].patches.shape[1]), np.float32)
    positions = np.full((len(images), longest, 2), -1, np.int64)
    for index, image in enumerate(images):
        values[index, : len(image.patches)] = image.patches
        positions[index, : len(image.patches)] = image.positions[:, ::-1]
    return {"pixel_values": torch.tensor(values), "image_position_ids": torch.tensor(positions)}


def grids_of(images: Sequence[PreparedImage]) -> dict[str, Any]:
    """The arguments of transformers' models of Qwen: patches block by block, each of two equal frames."""
    import torch

    patches = np.concatenate([image.patches for image in images])
    by_channel = patches.reshape(len(patches), 3, 1, -1)
    grids = [[1, *(int(each) + 1 for each in image.positions.max(axis=0))] for image in images]
    frames = np.repeat(by_channel, 2, axis=2).reshape(len(patches), -1)
    return {"pixel_values": torch.tensor(frames), "image_grid_thw": torch.tensor(grids)}


def pixels_of(spec: ImageSpec, images: Sequence[PreparedImage], *, tiles: bool) -> dict[str, Any]:
    """The arguments of transformers' model: tiles as squares of pixels, or their patches row by row."""
    import torch

    side, rows, shapes = spec.patch, [], []
    for image in images:
        for start, stop in zip(image.starts[:-1], image.starts[1:], strict=True):
            own = image.positions[start:stop]
            height, width = (int(each) + 1 for each in own.max(axis=0))
            by_row = np.empty((height, width, image.patches.shape[1]), np.float32)
            by_row[own[:, 0], own[:, 1]] = image.patches[start:stop]
            rows.append(by_row)
            shapes.append((height, width))
    if not tiles:
        squares = [each.reshape(*each.shape[:2], 3, side, side).transpose(2, 0, 3, 1, 4) for each in rows]
        pixels = [each.reshape(3, each.shape[1] * side, -1) for each in squares]
        return {"pixel_values": torch.tensor(np.stack(pixels)[None])}
    longest = max(height * width for height, width in shapes)
    values, mask = (
        np.zeros((len(rows), longest, rows[0].shape[2]), np.float32),
        np.zeros((len(rows), longest), np.int64),
    )
    for index, each in enumerate(rows):
        count = each.shape[0] * each.shape[1]
        values[index, :count], mask[index, :count] = each.reshape(count, -1), 1
    return {
        "pixel_values": torch.tensor(values),
        "pixel_attention_mask": torch.tensor(mask),
        "spatial_shapes": torch.tensor(shapes),
    }


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
    found = list(token_ids)
    with torch.no_grad():
        for _ in range(count):
            logits = model(input_ids=torch.tensor([found]), **inputs, **masks_of(model, found)).logits
            found.append(int(logits[0, -1].argmax()))
    return found[len(token_ids) :]


def greedy_video_answer(folder: Path, token_ids: Sequence[int], video: PreparedImage, count: int) -> list[int]:
    """The tokens that transformers' model likes best after a prompt with a video."""
    import torch
    import transformers

    from nearfar.compiler.formats import load

    spec = load(str(folder)).images
    assert spec is not None
    model = transformers.AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32)
    inputs, found = video_arguments(model, spec, tiles_of(video)), list(token_ids)
    with torch.no_grad():
        for _ in range(count):
            found.append(int(model(input_ids=torch.tensor([found]), **inputs).logits[0, -1].argmax()))
    return found[len(token_ids) :]
