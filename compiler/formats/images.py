"""Reads how a model's pictures are prepared: `preprocessor_config.json` or the section of `processor_config.json`, and
what config.json and the tokenizer say about them. The rules are those of transformers' processors.

What a processor would do otherwise than the rules that `ImageSpec` has is refused by name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from ..ir.images import (
    AreaBounds,
    EvenTiles,
    FixedSize,
    ImagePrompt,
    ImageSpec,
    LargestArea,
    LongestEdge,
    PositionSpec,
    TileGrid,
)
from ..runtime.errors import CheckpointError
from ..runtime.images.patches import largest_taps
from ..runtime.text.tokenizer import Tokenizer
from ..shared.script import SharedScript
from .config import ConfigReader
from .json_file import read_json_object

PREPROCESSOR_FILE, PROCESSOR_FILE = "preprocessor_config.json", "processor_config.json"
TOKENIZER_FILE = "tokenizer_config.json"
# One for each channel.
Numbers = tuple[float, ...] | None
# Pillow's numbers of filters.
FILTERS: dict[int, Literal["bilinear", "bicubic", "lanczos"]] = {1: "lanczos", 2: "bilinear", 3: "bicubic"}
# Keys that change nothing for a single picture that is RGB, as every picture is once it is decoded.
HARMLESS = (
    "auto_map", "data_format", "default_to_square", "device", "disable_grouping", "do_convert_rgb", "input_data_format",
    "processor_class", "return_row_col_info", "return_tensors",
)  # fmt: skip
# transformers' own bounds: no side of Idefics 3 is longer, and no picture of Qwen is longer for its width.
IDEFICS_MOST = 4096
QWEN_ASPECT = 200.0
# Classes of mlx-vlm, whose defaults it writes beside the file of the model.
OF_MLX = ("Lfm2VlNumpyImageProcessor", "Qwen3VLImageProcessor")


@dataclass(frozen=True, slots=True)
class ProcessorFiles:
    """The files of a checkpoint that concern pictures or sound: the processor's settings, those of config.json and of
    the tower, and the tokenizer.
    """

    path: Path
    processor: ConfigReader
    config: ConfigReader
    vision: ConfigReader
    tokenizer: Tokenizer

    @staticmethod
    def open(path: Path, values: Mapping[str, Any], processor: ConfigReader, tokenizer: Tokenizer) -> ProcessorFiles:
        """``values`` are those of config.json. Raises CheckpointError."""
        config = ConfigReader(values, str(path / "config.json"))
        vision = config.section("vision_config")
        if vision is None:
            raise config.contradiction("vision_config", "'vision_config' is missing")
        return ProcessorFiles(path, processor, config, vision, tokenizer)

    def token(self, name: str, default: str) -> str:
        """The text of a token that tokenizer_config.json may name. Raises CheckpointError if there is no such token."""
        file = self.path / TOKENIZER_FILE
        values = read_json_object(file) if file.is_file() else {}
        named = [values, *(values.get(key) for key in ("extra_special_tokens", "model_specific_special_tokens"))]
        found = next((each[name] for each in named if isinstance(each, dict) and each.get(name) is not None), default)
        text = found.get("content") if isinstance(found, dict) else found
        if not isinstance(text, str) or self.tokenizer.token_id(text) is None:
            raise CheckpointError(
                f"{file}: {name} {text!r} is not a token of the tokenizer; download the tokenizer again", file=str(file)
            )
        return text

    def placeholder(self, keys: tuple[str, ...], name: str, default: str) -> tuple[str, int]:
        """The token that features replace, and its id, which config.json must agree on."""
        text = self.token(name, default)
        found = self.tokenizer.token_id(text)
        assert found is not None
        for key in keys:
            said = self.config.optional_integer(key, minimum=0)
            if said not in (None, found):
                raise self.config.contradiction(key, f"{key!r} is {said}, but the tokenizer's {text!r} is {found}")
        return text, found

    def agree(self, key: str, value: int, other: str, expected: int) -> None:
        """Raises CheckpointError unless a number of the processor is the one of the model."""
        if value != expected:
            raise self.processor.contradiction(key, f"{key!r} is {value}, but {other!r} of config.json is {expected}")


def read_images(path: Path, values: Mapping[str, Any], tokenizer: Tokenizer) -> ImageSpec:
    """How the pictures of the model in a folder are prepared; ``values`` are those of its config.json.

    Raises CheckpointError for missing and contradictory files, UnsupportedModel for rules that are not known.
    """
    where = str(path / "config.json")
    config = ConfigReader(values, where)
    model_type = config.text("model_type")
    if model_type not in READERS:
        known = ", ".join(READERS)
        raise config.unsupported(
            "model_type", f"pictures of model_type {model_type!r} are not supported; supported: {known}"
        )
    read, processors = READERS[model_type]
    processor = _processor(path)
    files = ProcessorFiles.open(path, values, processor, tokenizer)
    name = processor.optional_text("image_processor_type")
    # Classes of earlier versions, and those for Pillow, compute the same.
    if name is not None and name.removesuffix("Fast").removesuffix("Pil") not in processors:
        raise processor.unsupported(
            "image_processor_type",
            f"'image_processor_type' is {name!r}, which is not supported for {model_type}; supported: "
            + ", ".join(processors),
        )
    spec = read(files)
    processor.ignore(*HARMLESS)
    processor.finish()
    wrong = SharedScript.of_thread().ask("wrongImages", asdict(spec), spec.prompt.placeholder_id + 1)
    if wrong is not None:
        part, what = wrong
        raise processor.unsupported(part, f"'{part}' of its pictures {what}, which is not supported")
    return spec


def _processor(path: Path) -> ConfigReader:
    """The settings of the image processor. As in transformers, the section takes precedence over a file of its own,
    unless mlx-vlm wrote it.
    """
    section, file = processor_values(path).get("image_processor"), path / PREPROCESSOR_FILE
    if isinstance(section, dict) and not (section.get("image_processor_type") in OF_MLX and file.is_file()):
        return ConfigReader(section, f"{path / PROCESSOR_FILE}: image_processor")
    if not file.is_file():
        raise CheckpointError(
            f"{file}: is missing, so it is not known how pictures are prepared; download it too", file=str(file)
        )
    return ConfigReader(read_json_object(file), str(file))


def processor_values(path: Path) -> Mapping[str, Any]:
    """The values of processor_config.json; empty if it is missing."""
    file = path / PROCESSOR_FILE
    return read_json_object(file) if file.is_file() else {}


def read_filter(processor: ConfigReader, default: int) -> Literal["bilinear", "bicubic", "lanczos"]:
    number = processor.integer("resample", minimum=0, default=default)
    if number not in FILTERS:
        known = " or ".join(f"{each} ({name})" for each, name in FILTERS.items())
        raise processor.unsupported("resample", f"'resample' is {number}, which is not supported; supported: {known}")
    return FILTERS[number]


def read_scales(processor: ConfigReader, *, normalizes: bool = True) -> tuple[Numbers, Numbers]:
    """The mean and the standard deviation; both None if bytes are only divided by 255."""
    processor.expect("do_rescale", True)
    processor.expect("rescale_factor", 1 / 255)
    if not processor.flag("do_normalize", default=normalizes):
        processor.ignore("image_mean", "image_std")
        return None, None
    half = ConfigReader({"image_mean": [0.5] * 3, "image_std": [0.5] * 3})
    mean = (processor if processor.has("image_mean") else half).numbers("image_mean", or_zero=True)
    std = (processor if processor.has("image_std") else half).numbers("image_std")
    if len(mean) != 3 or len(std) != 3:
        raise processor.contradiction("image_mean", "'image_mean' and 'image_std' must have three numbers")
    return mean, std


def _idefics3(files: ProcessorFiles) -> ImageSpec:
    """Idefics 3 and SmolVLM."""
    processor, vision = files.processor, files.vision
    processor.expect("do_resize", True)
    processor.expect("do_image_splitting", True)
    processor.expect("do_pad", True)
    # How videos are read.
    processor.ignore("video_sampling")
    side = read_size(processor, "max_image_size", {"longest_edge": 364})["longest_edge"]
    longest = read_size(processor, "size", {"longest_edge": 4 * 364})["longest_edge"]
    patch, block = vision.integer("patch_size", default=32), files.config.integer("scale_factor", default=2)
    across = side // patch
    if across % block:
        raise processor.contradiction(
            "max_image_size", f"a tile of {side} pixels has {across} patches a side, no multiple of {block}"
        )
    said = processor_values(files.path).get("image_seq_len")
    if said not in (None, (across // block) ** 2):
        raise CheckpointError(
            f"{files.path / PROCESSOR_FILE}: 'image_seq_len' is {said}, but a tile has {(across // block) ** 2} "
            "features; download it again",
            file=str(files.path / PROCESSOR_FILE),
        )
    image, image_id = files.placeholder(("image_token_id",), "image_token", "<image>")
    fake = files.token("fake_image_token", "<fake_token_around_image>")
    overview = fake + files.token("global_image_token", "<global-img>")
    mean, std = read_scales(processor)
    if mean is None or all((255 * each).is_integer() for each in mean):
        # transformers takes a tile of zeros for padding and drops it.
        raise processor.unsupported(
            "image_mean", "pictures of one colour would become zeros, which are not supported; 'image_mean' must be 0.5"
        )
    return ImageSpec(
        patch=patch,
        block=block,
        order="channel_row_column",
        filter=read_filter(processor, 1),
        mean=mean,
        std=std,
        size=LongestEdge(longest, IDEFICS_MOST),
        tiles=EvenTiles(side),
        positions=PositionSpec("fractions", vision.integer("image_size", default=224) // patch),
        prompt=ImagePrompt(
            image,
            image,
            image_id,
            whole=overview,
            tile=fake + "<row_{row}_col_{column}>",
            row_end="\n",
            overview="\n" + overview,
            end=fake,
        ),
    )


def _lfm2_vl(files: ProcessorFiles) -> ImageSpec:
    processor = files.processor
    # transformers' class sets it to true, and ignores the size.
    processor.ignore("do_resize", "size", "max_num_patches")
    processor.expect("do_pad", True)
    patch, block = (
        processor.integer("encoder_patch_size", default=16),
        processor.integer("downsample_factor", default=2),
    )
    files.agree("encoder_patch_size", patch, "patch_size", files.vision.integer("patch_size", default=16))
    files.agree("downsample_factor", block, "downsample_factor", files.config.integer("downsample_factor", default=2))
    pixels = (patch * block) ** 2
    fewest, most = (
        processor.integer(f"{each}_image_tokens", default=count) for each, count in (("min", 64), ("max", 256))
    )
    side = processor.integer("tile_size", default=512)
    low, high = (processor.integer(f"{each}_tiles", default=count) for each, count in (("min", 2), ("max", 10)))
    tolerance = processor.number("max_pixels_tolerance", default=2.0)
    overview = processor.flag("use_thumbnail", default=True)
    splits = processor.flag("do_image_splitting", default=True) and (low, high) != (1, 1)
    if splits and (low < 2 or low > high):
        raise processor.unsupported(
            "min_tiles", f"{low} to {high} tiles are not supported; 'min_tiles' must be at least 2"
        )
    if splits and side % (patch * block):
        raise processor.unsupported("tile_size", f"'tile_size' is {side}, no multiple of {patch * block} pixels")
    for where in (files.config, ConfigReader(processor_values(files.path), str(files.path / PROCESSOR_FILE))):
        where.expect("use_image_special_tokens", True)
    image, image_id = files.placeholder(("image_token_id", "image_token_index"), "image_token", "<image>")
    table = math.isqrt(files.vision.integer("num_patches", default=256))
    mean, std = read_scales(processor)
    return ImageSpec(
        patch=patch,
        block=block,
        order="row_column_channel",
        filter=read_filter(processor, 2),
        mean=mean,
        std=std,
        size=AreaBounds(fewest * pixels, most * pixels, whole_blocks=True, max_aspect=None),
        tiles=TileGrid(side, low, high, most * pixels * tolerance, overview) if splits else None,
        positions=PositionSpec("antialiased", table, largest_taps(table, block, fewest)),
        prompt=ImagePrompt(
            image,
            image,
            image_id,
            start=files.token("image_start_token", "<|image_start|>"),
            tile="<|img_row_{row}_col_{column}|>",
            overview=files.token("image_thumbnail_token", "<|img_thumbnail|>"),
            end=files.token("image_end_token", "<|image_end|>"),
        ),
    )


def _qwen(files: ProcessorFiles) -> ImageSpec:
    """Qwen3-VL and Qwen3.5. A picture is two equal frames, whose kernels the importer adds."""
    processor, vision = files.processor, files.vision
    processor.expect("do_resize", True)
    patch, block = processor.integer("patch_size", default=14), processor.integer("merge_size", default=2)
    files.agree("patch_size", patch, "patch_size", vision.integer("patch_size", default=16))
    files.agree("merge_size", block, "spatial_merge_size", vision.integer("spatial_merge_size", default=2))
    frames = processor.integer("temporal_patch_size", default=2)
    files.agree("temporal_patch_size", frames, "temporal_patch_size", vision.integer("temporal_patch_size", default=2))
    size = read_size(processor, "size", {"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 1280})
    least = processor.optional_integer("min_pixels") or size["shortest_edge"]
    most = processor.optional_integer("max_pixels") or size["longest_edge"]
    image, image_id = files.placeholder(("image_token_id",), "image_token", "<|image_pad|>")
    table = math.isqrt(vision.integer("num_position_embeddings", default=2304))
    mean, std = read_scales(processor)
    return ImageSpec(
        patch=patch,
        block=block,
        order="channel_row_column",
        filter=read_filter(processor, 3),
        mean=mean,
        std=std,
        size=AreaBounds(least, most, whole_blocks=False, max_aspect=QWEN_ASPECT),
        tiles=None,
        positions=PositionSpec("corners", table, 4),
        prompt=ImagePrompt(image, image, image_id),
    )


def _gemma3(files: ProcessorFiles) -> ImageSpec:
    processor, vision = files.processor, files.vision
    processor.expect("do_resize", True)
    processor.expect("do_pan_and_scan", False)
    processor.ignore("pan_and_scan_max_num_crops", "pan_and_scan_min_crop_size", "pan_and_scan_min_ratio_to_activate")
    size = read_size(processor, "size", {"height": 224, "width": 224})
    pixels, patch = vision.integer("image_size", default=224), vision.integer("patch_size", default=16)
    for key in ("height", "width"):
        files.agree(f"size.{key}", size[key], "image_size", pixels)
    tokens = files.config.integer("mm_tokens_per_image", default=256)
    side, across = pixels // patch, math.isqrt(tokens)
    if across**2 != tokens or side % across:
        raise files.config.unsupported(
            "mm_tokens_per_image", f"{tokens} features of {side} x {side} patches are not supported"
        )
    for where in (processor, ConfigReader(processor_values(files.path), str(files.path / PROCESSOR_FILE))):
        where.expect("image_seq_length", tokens)
    image, image_id = files.placeholder(("image_token_index", "image_token_id"), "image_token", "<image_soft_token>")
    start, end = files.token("boi_token", "<start_of_image>"), files.token("eoi_token", "<end_of_image>")
    mean, std = read_scales(processor)
    return ImageSpec(
        patch=patch,
        block=side // across,
        order="channel_row_column",
        filter=read_filter(processor, 2),
        mean=mean,
        std=std,
        size=FixedSize(size["height"], size["width"]),
        tiles=None,
        positions=PositionSpec("plain", side),
        prompt=ImagePrompt(start, image, image_id, start=f"\n\n{start}", end=f"{end}\n\n"),
    )


def _gemma4(files: ProcessorFiles) -> ImageSpec:
    return _gemma4_of(files, merged=False)


def _gemma4_unified(files: ProcessorFiles) -> ImageSpec:
    """Its patches are whole blocks, and each becomes a feature."""
    return _gemma4_of(files, merged=True)


def _gemma4_of(files: ProcessorFiles, *, merged: bool) -> ImageSpec:
    processor, vision = files.processor, files.vision
    processor.expect("do_resize", True)
    # The size follows from the number of features.
    processor.ignore("size", "image_seq_length")
    patch, block = processor.integer("patch_size", default=16), processor.integer("pooling_kernel_size", default=3)
    files.agree("patch_size", patch, "patch_size", vision.integer("patch_size", default=16))
    files.agree("pooling_kernel_size", block, "pooling_kernel_size", vision.integer("pooling_kernel_size", default=3))
    most = processor.integer("max_soft_tokens", default=280)
    rows = vision.integer(
        *(("mm_posemb_size",) if merged else ("position_embedding_size",)), default=1120 if merged else 10240
    )
    if most * (1 if merged else block) > rows:
        raise processor.contradiction("max_soft_tokens", f"{most} features in a row need more than {rows} positions")
    image, image_id = files.placeholder(("image_token_id",), "image_token", "<|image|>")
    mean, std = read_scales(processor, normalizes=False)
    return ImageSpec(
        patch=patch * block if merged else patch,
        block=1 if merged else block,
        order="row_column_channel",
        filter=read_filter(processor, 3),
        mean=mean,
        std=std,
        size=LargestArea(most * (patch * block) ** 2),
        tiles=None,
        positions=PositionSpec("axes", rows, 2),
        prompt=ImagePrompt(
            image,
            image,
            image_id,
            start=files.token("boi_token", "<|image>"),
            end=files.token("eoi_token", "<image|>"),
        ),
    )


def read_size(processor: ConfigReader, key: str, default: Mapping[str, int]) -> dict[str, int]:
    """A section of sizes, which must have exactly the keys of the default."""
    if not processor.has(key):
        return dict(default)
    section = processor.section(key)
    if section is None:
        raise processor.contradiction(key, f"{key!r} is null")
    values = {each: section.integer(each) for each in default}
    section.finish()
    return values


# By model_type: its reader, and the classes of transformers' image processors that it states.
READERS: dict[str, tuple[Callable[[ProcessorFiles], ImageSpec], tuple[str, ...]]] = {
    "idefics3": (_idefics3, ("Idefics3ImageProcessor", "SmolVLMImageProcessor")),
    "smolvlm": (_idefics3, ("SmolVLMImageProcessor", "Idefics3ImageProcessor")),
    "lfm2_vl": (_lfm2_vl, ("Lfm2VlImageProcessor",)),
    "qwen3_vl": (_qwen, ("Qwen2VLImageProcessor",)),
    "qwen3_5": (_qwen, ("Qwen2VLImageProcessor",)),
    "gemma3": (_gemma3, ("Gemma3ImageProcessor",)),
    "gemma4": (_gemma4, ("Gemma4ImageProcessor",)),
    "gemma4_unified": (_gemma4_unified, ("Gemma4UnifiedImageProcessor",)),
}
