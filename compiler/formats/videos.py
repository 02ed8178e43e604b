"""Reads how a model's videos are read: the section of `processor_config.json`, `video_preprocessor_config.json`, or as
in transformers the file of pictures. The rules are those of transformers' processors.

A model whose videos follow other rules than those of `VideoSpec` reads pictures alone, which a note says.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..ir.images import ImageSpec
from ..ir.videos import ByCount, ByRate, BySeconds, FrameArea, FrameEdge, FrameVolume, VideoPrompt, VideoSpec
from ..runtime.errors import CheckpointError, UnsupportedModel
from ..runtime.text.tokenizer import Tokenizer
from ..runtime.text.tokenizer_files import TokenizerFiles
from .config import ConfigReader
from .images import (
    HARMLESS,
    IDEFICS_MOST,
    PREPROCESSOR_FILE,
    PROCESSOR_FILE,
    QWEN_ASPECT,
    ProcessorFiles,
    read_filter,
    read_scales,
    read_size,
)
from .json_file import read_json_object

VIDEO_FILE = "video_preprocessor_config.json"
# What transformers' processors of videos are told beside how frames become pixels, and what they only report.
UNUSED = (
    "do_sample_frames", "return_metadata", "video_metadata", "video_processor_type", "image_processor_type",
    "max_duration",
)  # fmt: skip
# Of transformers' classes, where they differ from those of other models.
GEMMA4: Mapping[str, Any] = {"image_mean": [0.0] * 3, "image_std": [1.0] * 3}
DEFAULTS = {"gemma4": GEMMA4, "gemma4_unified": GEMMA4}
# The branch of SmolVLM's published templates that writes a picture. transformers renders chats with videos with a
# template that has this branch for videos, too.
PICTURE_BRANCH = re.compile(r"\{% elif line\['type'\] == 'image' %\}\{\{ ?'<image>' ?\}\}")
VIDEO_BRANCH = "{% elif line['type'] == 'video' %}{{ '<video>' }}"


def with_video(
    path: Path, values: Mapping[str, Any], images: ImageSpec, tokenizer: TokenizerFiles, notes: list[str]
) -> tuple[ImageSpec, TokenizerFiles]:
    """The spec with how videos are read, if the model in a folder reads them, and the tokenizer whose chat template
    writes a mark for them. ``values`` are those of config.json.
    """
    model_type = values.get("model_type")
    if model_type not in READERS:
        return images, tokenizer
    try:
        processor = _processor(path, DEFAULTS.get(str(model_type), {}))
        if processor is None:
            return images, tokenizer
        files = ProcessorFiles.open(path, values, processor, Tokenizer(tokenizer))
        video = READERS[str(model_type)](files, images)
        _require_same_pixels(processor, images, model_type)
        processor.ignore(*HARMLESS, *UNUSED)
        if processor.where.endswith(PREPROCESSOR_FILE):
            # It is that of pictures, whose other keys are known.
            processor.ignore(*processor.keys())
        processor.finish()
        tokenizer = with_video_template(tokenizer, video.prompt.mark)
    except (CheckpointError, UnsupportedModel) as error:
        notes.append(f"videos are not read, only pictures: {error.message}")
        return images, tokenizer
    return replace(images, video=video), tokenizer


def with_video_template(tokenizer: TokenizerFiles, mark: str) -> TokenizerFiles:
    """Raises UnsupportedModel for a chat template that writes no videos."""
    template = tokenizer.chat_template or ""
    if mark in template:
        return tokenizer
    written = PICTURE_BRANCH.sub(lambda found: found[0] + VIDEO_BRANCH, template)
    if written == template:
        raise UnsupportedModel(f"the chat template does not write {mark!r}, which stands for a video")
    return replace(tokenizer, chat_template=written)


def _processor(path: Path, defaults: Mapping[str, Any]) -> ConfigReader | None:
    """None if the folder says nothing about videos."""
    nested = path / PROCESSOR_FILE
    section = read_json_object(nested).get("video_processor") if nested.is_file() else None
    if isinstance(section, dict):
        return ConfigReader({**defaults, **section}, f"{nested}: video_processor")
    file = next((path / name for name in (VIDEO_FILE, PREPROCESSOR_FILE) if (path / name).is_file()), None)
    if file is None:
        return None
    return ConfigReader({**defaults, **read_json_object(file)}, str(file))


def _require_same_pixels(processor: ConfigReader, images: ImageSpec, model_type: object) -> None:
    """Frames become patches as pictures do."""
    processor.expect("do_resize", True)
    kind = read_filter(processor, 1 if model_type == "smolvlm" else 3)
    mean, std = read_scales(processor)
    # The form of images.py for pixels that are only divided by 255.
    if (mean, std) == ((0.0,) * 3, (1.0,) * 3):
        mean = std = None
    if (kind, mean, std) != (images.filter, images.mean, images.std):
        raise processor.unsupported(
            "image_mean", "'resample', 'image_mean' and 'image_std' of videos must be those of pictures"
        )


def _smolvlm(files: ProcessorFiles, images: ImageSpec) -> VideoSpec:
    processor = files.processor
    processor.expect("do_pad", True)
    processor.ignore("do_image_splitting")
    side = read_size(processor, "max_image_size", {"longest_edge": 364})["longest_edge"]
    sampling = processor.section("video_sampling")
    if sampling is None:
        longest = read_size(processor, "size", {"longest_edge": 4 * 364})["longest_edge"]
        fps, most = processor.optional_number("fps"), processor.optional_integer("num_frames")
    else:
        fps, most = sampling.number("fps"), sampling.integer("max_frames")
        edge = read_size(sampling, "video_size", {"longest_edge": 4 * 364})["longest_edge"]
        longest = read_size(processor, "size", {"longest_edge": edge})["longest_edge"]
        sampling.finish()
    if fps is None or most is None:
        raise processor.unsupported(
            "video_sampling", "'video_sampling' is missing, which says how many frames are read"
        )
    block = images.patch * images.block
    if images.tiles is None or side != images.tiles.side:
        raise processor.unsupported("max_image_size", f"frames have {side} pixels a side, and tiles of pictures do not")
    assert side // block, "a tile has blocks"
    fake = files.token("fake_image_token", "<fake_token_around_image>")
    overview = files.token("global_image_token", "<global-img>")
    return VideoSpec(
        sampling=BySeconds(fps, most, skip=1),
        size=FrameEdge(longest, IDEFICS_MOST, side),
        frames=1,
        prompt=VideoPrompt(
            mark=files.token("video_token", "<video>"),
            start="You are provided the following series of {count} frames from a {h:mm:ss} [H:MM:SS] video.\n",
            tile=f"\nFrame from {{mm:ss}}:{fake}{overview}{{features}}{fake}",
            end="\n\n",
        ),
    )


def _qwen(files: ProcessorFiles, images: ImageSpec) -> VideoSpec:
    processor = files.processor
    files.agree("patch_size", processor.integer("patch_size", default=16), "patch_size", images.patch)
    files.agree("merge_size", processor.integer("merge_size", default=2), "spatial_merge_size", images.block)
    frames = processor.integer("temporal_patch_size", default=2)
    key = "temporal_patch_size"
    files.agree(key, frames, key, files.vision.integer(key, default=2))
    if frames != 2:
        raise processor.unsupported(key, f"{key!r} is {frames}, which is not supported; supported: 2")
    processor.expect("num_frames", None)
    size = read_size(processor, "size", {"shortest_edge": 128 * 32 * 32, "longest_edge": 32 * 32 * 768})
    tokens = processor.integer("max_video_tokens", default=768)
    capped = processor.optional_flag("cap_pixels_per_frame") or False
    start, end = (files.token(f"vision_{each}_token", f"<|vision_{each}|>") for each in ("start", "end"))
    return VideoSpec(
        sampling=ByRate(
            processor.number("fps", default=2.0),
            processor.integer("min_frames", default=4),
            processor.integer("max_frames", default=768),
        ),
        size=FrameVolume(
            size["shortest_edge"],
            size["longest_edge"],
            tokens * (images.patch * images.block) ** 2 if capped else None,
            QWEN_ASPECT,
        ),
        frames=frames,
        prompt=VideoPrompt(
            mark=files.token("video_token", "<|video_pad|>"),
            tile=f"<{{seconds}} seconds>{start}{{features}}{end}",
        ),
    )


def _gemma4(files: ProcessorFiles, images: ImageSpec) -> VideoSpec:
    processor = files.processor
    processor.ignore("size")
    processor.expect("fps", None)
    patch, pool = processor.integer("patch_size", default=16), processor.integer("pooling_kernel_size", default=3)
    files.agree("patch_size", patch * pool, "patch_size", images.patch * images.block)
    most = processor.integer("max_soft_tokens", default=70) * (patch * pool) ** 2
    largest = images.size.most if images.size.rule == "largest_area" else 0
    if most > largest:
        raise processor.unsupported("max_soft_tokens", "frames are larger than pictures, which is not supported")
    start, end = files.token("boi_token", "<|image>"), files.token("eoi_token", "<image|>")
    return VideoSpec(
        sampling=ByCount(processor.integer("num_frames", default=32)),
        size=FrameArea(most),
        frames=1,
        prompt=VideoPrompt(
            mark=files.token("video_token", "<|video|>"), tile=f"{{mm:ss}} {start}{{features}}{end}", between=" "
        ),
    )


READERS: dict[str, Callable[[ProcessorFiles, ImageSpec], VideoSpec]] = {
    "smolvlm": _smolvlm,
    "qwen3_vl": _qwen,
    "qwen3_5": _qwen,
    "gemma4": _gemma4,
    "gemma4_unified": _gemma4,
}
