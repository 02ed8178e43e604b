"""Tiny models with towers that mlx-vlm computes, and what transformers computes of a prompt with pictures or sound."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import hearing_families
import numpy as np
import numpy.typing as npt
import pytest
import vision_families
from hearing_families import AUDIO, make_hearing, own_features
from image_families import marker_id
from vision_arguments import QWEN, arguments_of, masks_of
from vision_families import FAMILIES, VisionFamily, make_vision

from nearfar.compiler.formats import load
from nearfar.compiler.runtime.images.patches import PreparedImage

Floats = npt.NDArray[np.float32]
# A token before each picture of Qwen, by which mlx-vlm finds it.
START = 251
# Values of text models: heads that fill the rows of SmolVLM, the tied head of Gemma 3, whose root of the hidden size is
# a whole number, and mlx-vlm's pad token.
TEXT: Mapping[str, dict[str, Any]] = {
    "smolvlm": {"head_dim": 12},
    "idefics3": {"head_dim": 12},
    "gemma3": {
        "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": True,
        "pad_token_id": 3,
    },
    "gemma4_bounded": {"pad_token_id": 0},
}  # fmt: skip
# Widths that fill the groups of MLX.
WIDE_TEXT = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2}
WIDE_TOWER = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 2}


@dataclass(frozen=True, slots=True)
class Prompt:
    """``inputs``: the arguments of transformers' model besides the tokens. ``features`` (F, E) of the placeholders;
    ``logits`` (T, V), in which the tokens of pictures see those before them.
    """

    inputs: Mapping[str, npt.NDArray[Any]]
    token_ids: list[int]
    placeholders: list[int]
    features: Floats
    logits: Floats


def family_of_mlx(name: str, *, wide: bool = False) -> VisionFamily:
    """A family whose sizes mlx-vlm computes as transformers does: a power of two of patches on a side of SmolVLM's."""
    family = FAMILIES[name]
    config, processor = dict(family.config), dict(family.processor)
    if name in ("smolvlm", "idefics3"):
        vision = {**config["vision_config"], "image_size": 28, **(WIDE_TOWER if wide else {})}
        config |= {"scale_factor": 2, "vision_config": vision}
        processor |= {"max_image_size": {"longest_edge": 28}, "size": {"longest_edge": 56 if name == "smolvlm" else 28}}
        return replace(family, config=config, processor=processor, sizes=((60, 41), (20, 20)), video={})
    if name == "gemma3":
        config |= {"tie_word_embeddings": True}
    return replace(family, config=config)


def write(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch, *, wide: bool = False) -> tuple[PreparedImage, ...]:
    """Write the checkpoint of a family, and return the pictures of its prompt."""
    monkeypatch.setitem(vision_families.FAMILIES, name, family_of_mlx(name, wide=wide))
    values = {**TEXT.get(name, {}), **(WIDE_TEXT if wide else {}), **({"head_dim": 16} if wide else {})}
    expected = make_vision(name, folder, **values)
    if name in QWEN:
        path = folder / "config.json"
        config = json.loads(path.read_text()) | {"vision_start_token_id": START}
        path.write_text(json.dumps(config))
    return expected.images


def write_with_ears(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> PreparedImage:
    """The same for a family that hears; mlx-vlm reads 128 bands of sound."""
    family = hearing_families.FAMILIES[name]
    if name == "gemma4":
        audio = {**family.audio, "subsampling_conv_channels": [128, 6]}
        changed = replace(family, audio=audio, extractor={**family.extractor, "feature_size": 128})
        monkeypatch.setitem(hearing_families.FAMILIES, name, changed)
    return make_hearing(name, folder, **({"pad_token_id": 0} if name == "gemma4" else {})).picture


def prompt_with_pictures(name: str, folder: Path, images: tuple[PreparedImage, ...]) -> Prompt:
    import torch

    model, loaded = open_model(folder), load(str(folder))
    assert loaded.images is not None
    placeholder = marker_id(FAMILIES[name].placeholder)
    ids: list[int] = []
    for number, image in enumerate(images):
        ids += [(31 * number + 7 * i) % 250 for i in range(5 + number)]
        ids += ([START] if name in QWEN else []) + [placeholder] * sum(image.features)
    ids += [11, 12, 13]
    inputs = arguments_of(model, loaded.images, images)
    with torch.no_grad():
        made = model.model.get_image_features(**inputs)
    rows = [as_rows(made.pooler_output), *(as_rows(each) for each in getattr(made, "deepstack_features", None) or [])]
    return finished(model, inputs, ids, [placeholder], np.concatenate(rows, axis=1))


def prompt_with_sound(name: str, folder: Path, picture: PreparedImage) -> Prompt:
    import torch

    model, loaded = open_model(folder), load(str(folder))
    assert loaded.images is not None
    features, heard = own_features(model, hearing_families.FAMILIES[name])
    seen = arguments_of(model, loaded.images, [picture])
    with torch.no_grad():
        rows = as_rows(model.model.get_image_features(**seen).pooler_output)
    parts = [(AUDIO, features[0]), (hearing_families.PICTURE, rows), (AUDIO, features[1])]
    ids = [token for number, (mark, each) in enumerate(parts) for token in [5 + number, *[mark] * len(each)]]
    return finished(
        model,
        {**seen, **heard},
        [*ids, 11],
        [AUDIO, hearing_families.PICTURE],
        np.concatenate([each for _, each in parts]),
    )


def open_model(folder: Path) -> Any:
    import torch
    import transformers

    config = transformers.AutoConfig.from_pretrained(folder, attn_implementation="eager")
    return transformers.AutoModelForImageTextToText.from_pretrained(folder, config=config, dtype=torch.float32).eval()


def as_rows(found: Any) -> Floats:
    import torch

    rows = torch.cat(list(found)) if isinstance(found, list | tuple) else found
    found = rows.reshape(-1, rows.shape[-1]).numpy()
    return np.asarray(found, np.float32)


def finished(
    model: Any, inputs: Mapping[str, Any], ids: list[int], placeholders: list[int], features: Floats
) -> Prompt:
    import torch

    kind = model.config.model_type
    if kind == "gemma3":
        # mlx-vlm divides what it multiplies the embedding by.
        features = features / np.float32(model.config.text_config.hidden_size**0.5)
    masks = masks_of(model, ids) if kind in QWEN else {"attention_mask": torch.ones(1, len(ids))}
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([ids]), **inputs, **masks).logits[0].numpy()
    return Prompt({name: each.numpy() for name, each in inputs.items()}, ids, placeholders, features, logits)
