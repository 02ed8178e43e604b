"""Tiny models that read videos: those of `vision_families.py`, the features of frames and the logits of a prompt with a
video.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from image_families import marker_id
from vision_arguments import QWEN, arguments_of, masks_of
from vision_families import FAMILIES, Expected, make_vision

from nearfar.compiler.ir.images import ImageSpec
from nearfar.compiler.runtime.images.patches import PreparedImage


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
