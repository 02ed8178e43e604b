"""Folders with the files that say how each family's pictures are prepared, as published repositories have them, and the
pictures of the tests.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from nearfar.compiler.formats.images import read_images
from nearfar.compiler.formats.videos import with_video
from nearfar.compiler.ir.images import ImageSpec
from nearfar.compiler.runtime.text.tokenizer import Tokenizer as OurTokenizer
from nearfar.compiler.runtime.text.tokenizer_files import TokenizerFiles

HALF = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}
GRID = range(1, 11)
MARKERS = (
    "<image>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>", "<video>", "<|image_start|>",
    "<|image_end|>", "<|img_thumbnail|>", "<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>",
    "<start_of_image>", "<end_of_image>", "<image_soft_token>", "<|image|>", "<|image>", "<image|>", "<|audio|>",
    "<|audio>", "<audio|>", "<pad>",
    *(f"<row_{row}_col_{column}>" for row in GRID for column in GRID),
    *(f"<|img_row_{row}_col_{column}|>" for row in GRID for column in GRID),
    "<|video|>",
)  # fmt: skip
# The first token after the 256 bytes.
FIRST_MARKER = 256


def marker_id(text: str) -> int:
    return FIRST_MARKER + MARKERS.index(text)


@dataclass(frozen=True, slots=True)
class Family:
    """The files of a model. ``tokens`` are those that tokenizer_config.json names; ``sizes`` the test's pictures."""

    config: dict[str, Any]
    preprocessor: dict[str, Any]
    processor: dict[str, Any] = field(default_factory=dict)
    tokens: dict[str, str] = field(default_factory=dict)
    # The processor of videos.
    video: dict[str, Any] = field(default_factory=dict)
    sizes: tuple[tuple[int, int], ...] = ()
    # Whether the processor's settings are a section of processor_config.json, as transformers 5 writes them.
    nested: bool = False


# Width and height.
AWKWARD = ((641, 427), (1, 1), (3000, 20), (20, 3000), (333, 1777), (1200, 300), (512, 512))

FAMILIES: dict[str, Family] = {
    "idefics3": Family(
        {
            "model_type": "idefics3",
            "scale_factor": 4,
            "image_token_id": marker_id("<image>"),
            "vision_config": {"image_size": 512, "patch_size": 16},
        },
        {
            "do_convert_rgb": True,
            "do_image_splitting": True,
            "do_normalize": True,
            "do_pad": True,
            "do_rescale": True,
            "do_resize": True,
            **HALF,
            "image_processor_type": "Idefics3ImageProcessor",
            "max_image_size": {"longest_edge": 512},
            "processor_class": "Idefics3Processor",
            "resample": 1,
            "rescale_factor": 0.00392156862745098,
            "size": {"longest_edge": 2048},
        },
        {"image_seq_len": 64, "processor_class": "Idefics3Processor"},
        sizes=((641, 427),),
    ),
    # Tiles whose last pixels are less than a patch, as those of SmolVLM 2.2B.
    "smolvlm": Family(
        {
            "model_type": "smolvlm",
            "scale_factor": 3,
            "image_token_id": marker_id("<image>"),
            "vision_config": {"image_size": 90, "patch_size": 14},
        },
        {
            **HALF,
            "image_processor_type": "SmolVLMImageProcessor",
            "max_image_size": {"longest_edge": 90},
            "size": {"longest_edge": 360},
            "video_sampling": {"fps": 1, "max_frames": 64, "video_size": {"longest_edge": 512}},
        },
        {"image_seq_len": 4},
        {
            "image_token": "<image>",
            "fake_image_token": "<fake_token_around_image>",
            "global_image_token": "<global-img>",
            "end_of_utterance_token": "<end_of_utterance>",
            "video_token": "<video>",
        },
        {
            **HALF,
            "video_processor_type": "SmolVLMVideoProcessor",
            "max_image_size": {"longest_edge": 90},
            "size": {"longest_edge": 200},
            "video_sampling": {"fps": 1, "max_frames": 64, "video_size": {"longest_edge": 512}},
            "do_sample_frames": False,
        },
        sizes=AWKWARD,
        nested=True,
    ),
    "lfm2_vl": Family(
        {
            "model_type": "lfm2_vl",
            "downsample_factor": 2,
            "image_token_id": marker_id("<image>"),
            "vision_config": {"num_patches": 256, "patch_size": 16},
        },
        {
            "do_image_splitting": True,
            "do_normalize": True,
            "do_pad": True,
            "do_rescale": True,
            "do_resize": False,
            "downsample_factor": 2,
            "encoder_patch_size": 16,
            **HALF,
            "image_processor_type": "Lfm2VlImageProcessorFast",
            "max_image_tokens": 256,
            "max_num_patches": 1024,
            "max_pixels_tolerance": 2.0,
            "max_tiles": 10,
            "min_image_tokens": 64,
            "min_tiles": 2,
            "processor_class": "Lfm2VlProcessor",
            "resample": 2,
            "rescale_factor": 0.00392156862745098,
            "size": {"height": 512, "width": 512},
            "tile_size": 512,
            "use_thumbnail": True,
        },
        # Sides halfway between two multiples of 32, and a grid of tiles.
        sizes=(*AWKWARD, (528, 400), (1300, 900)),
    ),
    "qwen3_vl": Family(
        {
            "model_type": "qwen3_vl",
            "image_token_id": marker_id("<|image_pad|>"),
            "vision_config": {
                "num_position_embeddings": 2304,
                "patch_size": 16,
                "spatial_merge_size": 2,
                "temporal_patch_size": 2,
            },
        },
        {
            "size": {"longest_edge": 16777216, "shortest_edge": 65536},
            "patch_size": 16,
            "temporal_patch_size": 2,
            "merge_size": 2,
            **HALF,
            "processor_class": "Qwen3VLProcessor",
            "image_processor_type": "Qwen2VLImageProcessorFast",
        },
        video={
            "size": {"longest_edge": 25165824, "shortest_edge": 4096},
            "patch_size": 16,
            "temporal_patch_size": 2,
            "merge_size": 2,
            **HALF,
            "processor_class": "Qwen3VLProcessor",
            "video_processor_type": "Qwen3VLVideoProcessor",
        },
        sizes=(*AWKWARD, (528, 400)),
    ),
    # With the mean and the deviation of CLIP, which Qwen2-VL has.
    "qwen3_5": Family(
        {"model_type": "qwen3_5", "image_token_id": marker_id("<|image_pad|>"), "vision_config": {"patch_size": 14}},
        {
            "image_processor_type": "Qwen2VLImageProcessor",
            "image_mean": [0.48145466, 0.4578275, 0.40821073],
            "image_std": [0.26862954, 0.26130258, 0.27577711],
            "max_pixels": 100352,
            "min_pixels": 3136,
        },
        # Frames of bounded size, as Qwen's own library prepares them.
        video={
            "image_mean": [0.48145466, 0.4578275, 0.40821073],
            "image_std": [0.26862954, 0.26130258, 0.27577711],
            "patch_size": 14,
            "size": {"shortest_edge": 3136, "longest_edge": 602112},
            "fps": 4,
            "max_frames": 16,
            "cap_pixels_per_frame": True,
            "max_video_tokens": 64,
        },
        sizes=AWKWARD[:3],
        nested=True,
    ),
    "gemma3": Family(
        {
            "model_type": "gemma3",
            "image_token_index": marker_id("<image_soft_token>"),
            "mm_tokens_per_image": 256,
            "vision_config": {"image_size": 896, "patch_size": 14},
        },
        {
            "do_convert_rgb": None,
            "do_normalize": True,
            "do_pan_and_scan": None,
            "do_rescale": True,
            "do_resize": True,
            **HALF,
            "image_processor_type": "Gemma3ImageProcessor",
            "image_seq_length": 256,
            "pan_and_scan_max_num_crops": None,
            "pan_and_scan_min_crop_size": None,
            "pan_and_scan_min_ratio_to_activate": None,
            "processor_class": "Gemma3Processor",
            "resample": 2,
            "rescale_factor": 0.00392156862745098,
            "size": {"height": 896, "width": 896},
        },
        {"image_seq_length": 256, "processor_class": "Gemma3Processor"},
        {"image_token": "<image_soft_token>", "boi_token": "<start_of_image>", "eoi_token": "<end_of_image>"},
        sizes=AWKWARD[:3],
    ),
    "gemma4": Family(
        {
            "model_type": "gemma4",
            "image_token_id": marker_id("<|image|>"),
            "vision_config": {"patch_size": 16, "pooling_kernel_size": 3, "position_embedding_size": 10240},
        },
        {
            "do_convert_rgb": True,
            "do_normalize": False,
            "do_rescale": True,
            "do_resize": True,
            "image_mean": [0.0, 0.0, 0.0],
            "image_processor_type": "Gemma4ImageProcessor",
            "image_std": [1.0, 1.0, 1.0],
            "max_soft_tokens": 280,
            "patch_size": 16,
            "pooling_kernel_size": 3,
            "resample": 3,
            "rescale_factor": 0.00392156862745098,
        },
        {"image_seq_length": 280, "audio_seq_length": 750},
        {
            "image_token": "<|image|>",
            "boi_token": "<|image>",
            "eoi_token": "<image|>",
            "audio_token": "<|audio|>",
            "boa_token": "<|audio>",
            "eoa_token": "<audio|>",
            "pad_token": "<pad>",
        },
        {
            "do_normalize": True,
            "image_mean": [0.0, 0.0, 0.0],
            "image_std": [1.0, 1.0, 1.0],
            "max_soft_tokens": 70,
            "num_frames": 32,
            "patch_size": 16,
            "pooling_kernel_size": 3,
            "resample": 3,
            "video_processor_type": "Gemma4VideoProcessor",
        },
        sizes=AWKWARD,
        nested=True,
    ),
    "gemma4_unified": Family(
        {"model_type": "gemma4_unified", "image_token_id": marker_id("<|image|>"), "vision_config": {}},
        {"image_processor_type": "Gemma4UnifiedImageProcessor", "max_soft_tokens": 70},
        {},
        {
            "image_token": "<|image|>",
            "boi_token": "<|image>",
            "eoi_token": "<image|>",
            "audio_token": "<|audio|>",
            "boa_token": "<|audio>",
            "eoa_token": "<audio|>",
            "pad_token": "<pad>",
        },
        sizes=AWKWARD[:3],
        nested=True,
    ),
}


def write_family(family: Family, folder: Path) -> Path:
    """A folder with its files, and a tokenizer of bytes with all markers."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {"config.json": family.config, "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast"}}
    files["tokenizer_config.json"] |= family.tokens
    processor = family.processor
    if family.nested:
        processor = {**processor, "image_processor": family.preprocessor}
        processor |= {"video_processor": family.video} if family.video else {}
    else:
        files["preprocessor_config.json"] = family.preprocessor
        files |= {"video_preprocessor_config.json": family.video} if family.video else {}
    if processor:
        files["processor_config.json"] = processor
    for name, values in files.items():
        (folder / name).write_text(json.dumps(values))
    tokenizer = Tokenizer(
        models.BPE({text: id for id, text in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, [])
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in MARKERS])
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def spec_of(folder: Path, notes: list[str] | None = None) -> ImageSpec:
    """``notes`` receives why videos are not read."""
    files = TokenizerFiles.at(folder / "tokenizer.json", "<video> <|video_pad|> <|video|>")
    config = json.loads((folder / "config.json").read_text())
    images = read_images(folder, config, OurTokenizer(files))
    return with_video(folder, config, images, files, [] if notes is None else notes)[0]


def pattern(width: int, height: int) -> npt.NDArray[np.uint8]:
    """A picture (height, width, 3) with soft and hard edges, which TypeScript makes, too."""
    x, y = np.arange(width)[None], np.arange(height)[:, None]
    channels = (x * 3 + y * 5 + ((x * y) >> 3), x ^ y, (x * x + y * y) >> 5)
    return np.stack([channel & 255 for channel in channels], -1).astype(np.uint8)
