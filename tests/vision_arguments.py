"""The arguments of transformers' models for pictures that our runtime prepared, and the masks of their prompts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nearfar.compiler.ir.images import ImageSpec
from nearfar.compiler.runtime.images.patches import PreparedImage

QWEN = ("qwen3_5", "qwen3_vl")


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
