"""The towers in a checkpoint of a model that sees pictures, and perhaps hears: their sections of config.json, their
tensors, and how pictures and sound are prepared for them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ..arch.draft_heads import HEADS
from ..arch.gemma4_assistant import ASSISTANT
from ..arch.hearing import EARS, ear_of
from ..arch.vision import TOWERS, tower_of
from ..arch.vision.qwen_vl import CHANGE
from ..arch.vision.siglip import CHANNELS
from ..ir.images import AreaBounds, EvenTiles, FixedSize, ImageSpec, LargestArea, LongestEdge
from ..ir.sounds import SoundSpec
from ..ir.spec import HearingSpec, ModelSpec, VisionSpec
from ..runtime.errors import CheckpointError, UnsupportedModel
from ..runtime.text.tokenizer import Tokenizer
from ..runtime.text.tokenizer_files import TokenizerFiles
from .checkpoint import Checkpoint, Derived, Tensor, put_renamed
from .config import ConfigReader
from .convolutions import ChannelsFirst, FlatMatrix, FrameDifference, FrameSum, TransposedMatrix
from .distance_tensors import MadeTensor
from .gemma4_ears import ear_channels_first, gemma4_ears
from .images import PREPROCESSOR_FILE, PROCESSOR_FILE, read_images
from .json_file import read_json_object
from .sounds import read_sounds, sound_values
from .videos import with_video

# Of a picture that is one tile, as patches of 16 x 16 pixels 4,096: a layer's largest activations of these fit a WebGPU
# buffer of 128 MiB.
MOST_PIXELS = 2**20
# Models whose towers rotate by row and column.
ROTATING = ("gemma4", "qwen3_5", "qwen3_vl")
# Those whose towers read 2p - 1 of each number p that transformers' processor makes.
DOUBLING = ("gemma4",)
# The tensors of a tower that hears, which `gemma4_ears.py` reads as they are.
EARS_PREFIX = "audio_tower."
# The option with which the tower is left out.
TEXT_ONLY = "--text-only"
# How the dimensions of tensors become those of matrices: Gemma 3 multiplies by (inputs, outputs), and the table of
# Gemma 4 12B has the embeddings of a column and of a row side by side; that of the others has two tables.
TRANSPOSED = {
    "multi_modal_projector.mm_input_projection_weight": (1, 0),
    "vision_embedder.pos_embedding": (1, 0, 2),
    "vision_tower.patch_embedder.position_embedding_table": (0, 1, 2),
}
# A bound of what a projection of Gemma 4 reads or makes, a number.
BOUND = re.compile(r"(?P<module>(?:vision|audio)_tower\..*\.(?:input|output))_(?P<which>min|max)")
# The table of Gemma 4 E2B and E4B of which each layer reads columns.
PER_LAYER_TABLE = "model.embed_tokens_per_layer.weight"
# A head for vectors of complete pictures, and buffers with the numbers from 0 on.
UNUSED = re.compile(r"(?:model\.)?(?:vision_tower\.(?:vision_model\.)?head\..*|.*\.position_ids)")


@dataclass(frozen=True, slots=True)
class StoredTower:
    """``tensors`` are those of tower and projector by the names that graphs give them, ``others`` all others by their
    own names. ``stored`` are those of tower and projector as transformers stores them. ``config`` are the values of
    config.json. ``hearing``: None if the model does not hear.
    """

    path: Path
    spec: VisionSpec
    hearing: HearingSpec | None
    tensors: Mapping[str, Tensor]
    others: Mapping[str, Tensor]
    stored: Mapping[str, Tensor]
    config: Mapping[str, Any]

    def joined(self, text: ModelSpec) -> ModelSpec:
        """The text model with its tower. Raises UnsupportedModel, which names `TEXT_ONLY`."""
        wrong = {"num_kv_shared_layers": text.num_kv_shared_layers if self.spec.both_ways != "none" else 0}
        # In other models, no file says which row belongs to a picture.
        wrong["hidden_size_per_layer_input"] = text.per_layer_size if self.spec.model_type != "gemma4" else 0
        for key, value in wrong.items():
            if value:
                raise UnsupportedModel(
                    f"{self.path / 'config.json'}: {key!r} is {value}, which is not supported in a model whose "
                    f"'model_type' is {self.spec.model_type!r} and which sees pictures; add {TEXT_ONLY} to compile the "
                    "text model alone",
                    key=key,
                )
        return replace(text, vision=self.spec, hearing=self.hearing)

    def with_media(
        self, tensors: Mapping[str, Tensor], media: Sequence[ImageSpec | SoundSpec], hearing: HearingSpec | None
    ) -> dict[str, Tensor]:
        """All tensors of the model. In tables of layers, the tokens of pictures and sound have the row of the pad
        token. ``hearing``: the complete spec. Raises CheckpointError for a missing tensor of the tower that hears.
        """
        own = self.tensors
        if hearing is not None and hearing.num_layers:
            own = gemma4_ears(own, hearing, str(self.path / "config.json"))
        found = {**tensors, **own}
        if not any(isinstance(each, ImageSpec) and each.video is not None for each in media):
            found.pop(f"{CHANGE}.weight", None)
        if PER_LAYER_TABLE in found:
            text = ConfigReader(self.config["text_config"], f"{self.path / 'config.json'}: text_config")
            pad = text.optional_integer("pad_token_id", minimum=0) or 0
            for each in media:
                found[PER_LAYER_TABLE] = RowCopied(found[PER_LAYER_TABLE], pad, each.prompt.placeholder_id)
        return found

    def read_sounds(self, tokenizer: Tokenizer) -> tuple[SoundSpec, HearingSpec] | tuple[None, None]:
        """How sound is prepared, and the complete spec of the tower that hears; None if there is none. Raises
        CheckpointError, and UnsupportedModel, which names `TEXT_ONLY`.
        """
        if self.hearing is None:
            return None, None
        with text_only_advised():
            sounds = read_sounds(self.path, self.config, tokenizer, self.hearing)
        return sounds, replace(self.hearing, sound_rows=-(-sounds.most // (sounds.samples * sounds.frames)))

    def read_images(self, tokenizer: TokenizerFiles, notes: list[str]) -> tuple[ImageSpec, VisionSpec, TokenizerFiles]:
        """How pictures and videos are prepared, the complete spec of the tower, and the tokenizer whose chat template
        writes marks for both. Notes say if pictures become smaller than the processor makes them, or videos are not
        read. Raises CheckpointError, and UnsupportedModel, which names `TEXT_ONLY`.
        """
        with text_only_advised():
            images = read_images(self.path, self.config, Tokenizer(tokenizer))
        elements, block = 3 * images.patch**2, images.block
        if (elements, block) != (self.spec.patch_elements, self.spec.block):
            raise CheckpointError(
                f"{self.path}: pictures are prepared as blocks of {block} x {block} patches of {elements} numbers, but "
                f"the tower reads {self.spec.block} x {self.spec.block} of {self.spec.patch_elements}; the files "
                "belong to different models"
            )
        images, tokenizer = with_video(self.path, self.config, images, tokenizer, notes)
        if isinstance(images.size, AreaBounds) and images.size.most > MOST_PIXELS:
            notes.append(
                f"{self.path}: pictures are reduced to {MOST_PIXELS} pixels; the processor allows {images.size.most}, "
                "for which a tower needs gigabytes of memory"
            )
            images = replace(images, size=replace(images.size, most=max(MOST_PIXELS, images.size.least)))
        if self.spec.model_type in DOUBLING:
            images = doubled(images)
        patches = largest_tile(images)
        rotates = self.spec.model_type in ROTATING
        side = longest_side(images) if rotates else 0
        frames: Literal[1, 2] = 2 if images.video is not None and images.video.frames == 2 else 1
        vision = replace(self.spec, tile_patches=patches, tile_side=side, frames=frames)
        return images, vision, tokenizer


def read_tower(
    path: Path, tensors: Mapping[str, Tensor], notes: list[str], ignore_keys: Collection[str] = ()
) -> StoredTower | None:
    """The tower of a model in a folder; None if it sees no pictures, its tower is not supported, or no file says how
    pictures are prepared, which a note says. Raises CheckpointError and UnsupportedModel.
    """
    config_path = path / "config.json"
    values = read_json_object(config_path)
    model_type = values.get("model_type")
    if model_type not in TOWERS:
        return None
    if not any((path / name).is_file() for name in (PREPROCESSOR_FILE, PROCESSOR_FILE)):
        notes.append(
            f"{path}: has no {PREPROCESSOR_FILE}, which says how pictures are prepared, so the model reads text alone; "
            "download it too to let it see pictures"
        )
        return None
    tower = tower_of(model_type)
    config = ConfigReader(values, str(config_path), ignore_keys)
    spec, parts, hearing = tower.read_config(config), dict(tower.PARTS), None
    if model_type in EARS and isinstance(values.get("audio_config"), dict):
        if sound_values(path) is None:
            notes.append(
                f"{path}: {PROCESSOR_FILE} does not say how sound is prepared, so the model does not hear; download "
                "the published one to let it hear"
            )
        else:
            ear = ear_of(model_type)
            with text_only_advised():
                hearing = ear.read_config(config)
            parts |= ear.PARTS
    own: dict[str, Tensor] = {}
    others: dict[str, Tensor] = {}
    stored: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        short = name.removeprefix("model.")
        prefix = next((prefix for prefix in parts if short.startswith(prefix)), None)
        if prefix is None:
            others[name] = tensor
        elif not UNUSED.fullmatch(name):
            renamed = parts[prefix] + short.removeprefix(prefix)
            if hearing is not None and renamed.startswith(EARS_PREFIX):
                ordered = ear_channels_first(tensor, renamed, hearing)
            else:
                ordered = channels_first(tensor)
            put_renamed(stored, renamed, name, ordered)
            own[renamed] = arranged(ordered, renamed, path)
            if len(ordered.shape) == 5 and ordered.shape[2] == 2:
                own[f"{CHANGE}.weight"] = FlatMatrix(FrameDifference(ordered))
    own = bounds_of(own) if spec.bounded or (hearing is not None and hearing.bounded) else own
    if spec.num_layers > len(own):
        raise CheckpointError(
            f"{config_path}: 'num_hidden_layers' of the tower is {spec.num_layers}, but it has {len(own)} tensors; the "
            "weights belong to another model, or a file was not downloaded",
            key="num_hidden_layers",
        )
    return StoredTower(path, spec, hearing, own, others, stored, values)


@contextmanager
def text_only_advised() -> Iterator[None]:
    """Add to an UnsupportedModel that the text model alone can be compiled."""
    try:
        yield
    except UnsupportedModel as error:
        raise UnsupportedModel(
            f"{error.message}; add {TEXT_ONLY} to compile the text model alone", **error.details
        ) from error


def bounds_of(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a tower whose projections have bounds, with both bounds of an input or an output as one vector.
    Raises CheckpointError for one without its other.
    """
    bounds, others = dict[str, dict[str, Tensor]](), dict[str, Tensor]()
    for name, tensor in tensors.items():
        match = BOUND.fullmatch(name)
        if match is None:
            others[name] = tensor
        else:
            bounds.setdefault(match["module"], {})[match["which"]] = tensor
    for module, own in bounds.items():
        missing = {"min", "max"} - own.keys()
        if missing:
            raise CheckpointError(
                f"tensor {module}_{missing.pop()} is missing, but the other bound is there; download the weights again",
                tensor=module,
            )
        name = f"{module}_bounds"
        others[name] = MadeTensor(name, 2, partial(both_bounds, own["min"], own["max"]))
    return others


def both_bounds(low: Tensor, high: Tensor) -> npt.NDArray[np.float32]:
    """Infinite bounds become the largest numbers."""
    found = np.array([each.rows(0, 1).reshape(-1)[0] for each in (low, high)], np.float32)
    return np.nan_to_num(found, nan=np.nan)


@dataclass(frozen=True, slots=True)
class RowCopied(Derived):
    """A table in which row ``to`` is row ``row``."""

    row: int
    to: int

    @property
    def shape(self) -> tuple[int, ...]:
        return self.stored.shape

    def rows(self, start: int, stop: int) -> npt.NDArray[np.float32]:
        found = self.stored.rows(start, stop)
        if not start <= self.to < stop:
            return found
        changed = found.copy()
        changed[self.to - start] = self.stored.rows(self.row, self.row + 1)[0]
        return changed


def doubled(images: ImageSpec) -> ImageSpec:
    """Pictures of 2p - 1 for each number p: Gemma 4's tower begins so, with pixels from 0 to 1."""
    mean, std = images.mean or (0.0,) * 3, images.std or (1.0,) * 3
    halves = tuple(each / 2 for each in std)
    return replace(images, mean=tuple(each + half for each, half in zip(mean, halves, strict=True)), std=halves)


def largest_tile(images: ImageSpec) -> int:
    """The patches of the largest tile of a picture."""
    of_tiles = 0 if images.tiles is None else (images.tiles.side // images.patch) ** 2
    if isinstance(images.tiles, EvenTiles):
        return of_tiles
    return max(of_tiles, largest_area(images.size) // images.patch**2)


def largest_area(size: FixedSize | LongestEdge | AreaBounds | LargestArea) -> int:
    """The pixels of the largest picture that is not cut into tiles."""
    if isinstance(size, FixedSize):
        return size.height * size.width
    return size.pixels**2 if isinstance(size, LongestEdge) else size.most


def longest_side(images: ImageSpec) -> int:
    """The most patches of a side of a tile."""
    patches, aspect = largest_tile(images), images.size.max_aspect if isinstance(images.size, AreaBounds) else None
    return min(patches // images.block, math.ceil(math.sqrt(patches * (aspect or patches))) + images.block)


def without_ears(checkpoint: Checkpoint) -> Checkpoint:
    """A checkpoint that reads no sound."""
    hearing = checkpoint.spec.hearing
    if hearing is None:
        return checkpoint
    parts = tuple(ear_of(hearing.model_type).PARTS.values())
    tensors = {name: each for name, each in checkpoint.tensors.items() if not name.startswith(parts)}
    return replace(checkpoint, spec=replace(checkpoint.spec, hearing=None), sounds=None, tensors=tensors)


def decoder_alone(checkpoint: Checkpoint) -> Checkpoint:
    """What computes the next token of a text: a checkpoint without a tower, and without the heads or the assistant that
    draft tokens.
    """
    spec = checkpoint.spec
    parts = [HEADS] if spec.draft_layers else []
    if checkpoint.assistant is not None:
        parts.append(ASSISTANT)
    if spec.vision is not None:
        parts += tower_of(spec.vision.model_type).PARTS.values()
    if spec.hearing is not None:
        parts += ear_of(spec.hearing.model_type).PARTS.values()
    if not parts:
        return checkpoint
    tensors = {name: each for name, each in checkpoint.tensors.items() if not name.startswith(tuple(parts))}
    alone = replace(spec, vision=None, hearing=None, draft_layers=0)
    return replace(checkpoint, spec=alone, images=None, sounds=None, assistant=None, tensors=tensors)


def arranged(tensor: Tensor, name: str, path: Path) -> Tensor:
    """A tensor as the matrix that its graph reads."""
    if name.startswith(EARS_PREFIX):
        return tensor
    if name in TRANSPOSED and len(tensor.shape) == len(TRANSPOSED[name]):
        return TransposedMatrix(tensor, TRANSPOSED[name])
    return flat(tensor, name, path) if len(tensor.shape) in (4, 5) else tensor


def channels_first(tensor: Tensor) -> Tensor:
    """A convolution of patches as transformers stores it, or MLX."""
    from_mlx = len(tensor.shape) in (4, 5) and tensor.shape[1] != CHANNELS and tensor.shape[-1] == CHANNELS
    return ChannelsFirst(tensor) if from_mlx else tensor


def flat(tensor: Tensor, name: str, path: Path) -> FlatMatrix:
    """Raises CheckpointError for another order of the dimensions than that of transformers or MLX."""
    if len(tensor.shape) == 5:
        tensor = FrameSum(tensor)
    _, channels, height, width = tensor.shape
    if channels != CHANNELS or height != width:
        raise CheckpointError(
            f"{path}: tensor {name} has shape {list(tensor.shape)}, which is not (outputs, {CHANNELS}, patch, patch); "
            "pass the checkpoint that transformers reads",
            tensor=name,
        )
    return FlatMatrix(tensor)
