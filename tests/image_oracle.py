"""transformers' own processors of pictures, which need torchvision: its pixels and the tokens of a prompt.

``python tests/image_oracle.py`` writes `tests/conformance/images.json`, with which both languages are compared where
torchvision is not installed.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt
from image_families import FAMILIES, pattern, spec_of, write_family

from nearfar.compiler.ir.images import ImageSpec
from nearfar.compiler.runtime.images.patches import prepare_image

VECTORS = Path(__file__).parent / "conformance/images.json"
# Pictures that a family's own processor refuses, or fails on.
REFUSED = {"qwen3_vl": [(3000, 14)], "lfm2_vl": [(20000, 20), (1461, 1)]}
SAMPLES = 5


def import_torchvision() -> Any:
    """Raises ImportError if it is not installed. Its compiled ops are not needed, and those of a wheel for CUDA cannot
    be loaded beside PyTorch for CPUs, so two of them are declared, without which the import fails.
    """
    import torch

    try:
        import torchvision
    except RuntimeError:
        # What the failed import left.
        for name in [name for name in sys.modules if name.startswith("torchvision")]:
            del sys.modules[name]
        for op in ("nms", "qnms"):
            torch.library.define(f"torchvision::{op}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        import torchvision
    return torchvision


def processor_of(name: str, folder: Path) -> tuple[Any, str]:
    """The processor of a family's folder, and the text that a chat template writes for a picture."""
    import transformers as hf
    from transformers.models.smolvlm import processing_smolvlm

    tokenizer = hf.PreTrainedTokenizerFast.from_pretrained(folder)
    match name:
        case "idefics3":
            images = hf.Idefics3ImageProcessor.from_pretrained(folder)
            return hf.Idefics3Processor(images, tokenizer, image_seq_len=64), "<image>"
        case "smolvlm":
            # It spells the number of a video's frames.
            processing_smolvlm.num2words = str
            images = hf.SmolVLMImageProcessor.from_pretrained(folder)
            return hf.SmolVLMProcessor(images, tokenizer, hf.SmolVLMVideoProcessor(), image_seq_len=4), "<image>"
        case "lfm2_vl":
            return hf.Lfm2VlProcessor(hf.Lfm2VlImageProcessor.from_pretrained(folder), tokenizer), "<image>"
        case "qwen3_vl" | "qwen3_5":
            images = hf.Qwen2VLImageProcessor.from_pretrained(folder)
            return hf.Qwen3VLProcessor(images, tokenizer, hf.Qwen3VLVideoProcessor()), "<|image_pad|>"
        case "gemma3":
            images = hf.Gemma3ImageProcessor.from_pretrained(folder)
            return hf.Gemma3Processor(images, tokenizer), "<start_of_image>"
        case "gemma4":
            images, sound = hf.Gemma4ImageProcessor.from_pretrained(folder), hf.Gemma4AudioFeatureExtractor()
            return hf.Gemma4Processor(sound, images, tokenizer, hf.Gemma4VideoProcessor()), "<|image|>"
        case "gemma4_unified":
            images = hf.Gemma4UnifiedImageProcessor.from_pretrained(folder)
            sound, video = hf.Gemma4UnifiedAudioFeatureExtractor(), hf.Gemma4UnifiedVideoProcessor()
            return hf.Gemma4UnifiedProcessor(sound, images, tokenizer, video), "<|image|>"
    raise AssertionError(name)


def processed(processor: Any, mark: str, picture: npt.NDArray[np.uint8]) -> Any:
    """What the processor returns for a prompt that is only the picture."""
    from PIL import Image

    return processor(images=[Image.fromarray(picture)], text=[mark], return_tensors="pt")


def their_patches(spec: ImageSpec, output: Any) -> npt.NDArray[np.float32]:
    """The processor's pixels as patches in our order: block by block, with the elements of a still picture."""
    patch = spec.patch
    pixels = output["pixel_values"]
    if "image_grid_thw" in output:
        frames = pixels.numpy().reshape(len(pixels), 3, 2, -1)
        np.testing.assert_array_equal(frames[:, :, 0], frames[:, :, 1])
        return np.ascontiguousarray(frames[:, :, 0]).reshape(len(pixels), -1)
    if "spatial_shapes" in output:
        parts = []
        for tile, mask, shape in zip(pixels, output["pixel_attention_mask"], output["spatial_shapes"], strict=True):
            down, across = shape.tolist()
            parts.append(_by_blocks(tile[: int(mask.sum())].numpy(), down, across, spec))
        return np.concatenate(parts)
    if "image_position_ids" in output:
        positions = output["image_position_ids"][0].numpy()
        real = (positions >= 0).all(-1)
        positions, patches = positions[real], pixels[0].numpy()[real]
        order = np.lexsort((positions[:, 0], positions[:, 1]))
        across, down = positions.max(0) + 1
        return _by_blocks(patches[order], int(down), int(across), spec)
    parts = []
    for tile in pixels.numpy().reshape(-1, *pixels.shape[-3:]):
        down, across = tile.shape[1] // patch, tile.shape[2] // patch
        tile = tile[:, : down * patch, : across * patch].reshape(3, down, patch, across, patch)
        parts.append(_by_blocks(tile.transpose(1, 3, 0, 2, 4).reshape(down * across, -1), down, across, spec))
    return np.concatenate(parts)


def _by_blocks(patches: npt.NDArray[np.float32], down: int, across: int, spec: ImageSpec) -> npt.NDArray[np.float32]:
    block = spec.block
    grid = patches.reshape(down // block, block, across // block, block, -1)
    return grid.transpose(0, 2, 1, 3, 4).reshape(down * across, -1)


def sha256(array: npt.NDArray[Any]) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<")).tobytes()).hexdigest()


def record() -> None:
    """Raises AssertionError where the pixels or tokens differ from ours."""
    import_torchvision()
    recorded: dict[str, Any] = {}
    for name, family in FAMILIES.items():
        with tempfile.TemporaryDirectory() as made:
            folder = write_family(family, Path(made))
            spec = spec_of(folder)
            processor, mark = processor_of(name, folder)
        cases = []
        for width, height in family.sizes:
            picture = pattern(width, height)
            output = processed(processor, mark, picture)
            patches, ours = their_patches(spec, output), prepare_image(spec, picture)
            np.testing.assert_array_equal(ours.patches, patches, err_msg=f"{name} {width} x {height}")
            tokens = processor.tokenizer(ours.text, add_special_tokens=False)["input_ids"]
            assert tokens == output["input_ids"][0].tolist(), name
            places = [patches.size * each // SAMPLES for each in range(SAMPLES)]
            cases.append(
                {
                    "width": width,
                    "height": height,
                    "features": ours.features,
                    "text": hashlib.sha256(ours.text.encode()).hexdigest(),
                    "samples": [[place, float(patches.flat[place])] for place in places],
                    "patches": sha256(patches),
                    "rows": sha256(ours.rows),
                    "weights": sha256(ours.weights),
                    "positions": sha256(ours.positions),
                    "key": ours.key,
                }
            )
            print(name, width, height, ours.features, flush=True)
        counts = [[*size, tokens_of(processor, mark, spec, *size)] for size in random_sizes()]
        recorded[name] = {"spec": asdict(spec), "cases": cases, "refused": REFUSED.get(name, []), "counts": counts}
    text = json.dumps(recorded, indent=1)
    # One line for each of the sizes.
    VECTORS.write_text(re.sub(r"\[\s+(\d+),\s+(\d+),\s+(\d+)\s+\]", r"[\1, \2, \3]", text) + "\n")


def random_sizes(count: int = 50) -> list[tuple[int, int]]:
    """Widths and heights, small and large ones alike."""
    random = Random(0)
    return [(int(2 ** random.uniform(0, 11.5)), int(2 ** random.uniform(0, 11.5))) for _ in range(count)]


def tokens_of(processor: Any, mark: str, spec: ImageSpec, width: int, height: int) -> int:
    """The placeholders in the prompt of a black picture; 0 if the processor refuses it."""
    try:
        output = processed(processor, mark, np.zeros((height, width, 3), np.uint8))
    except ValueError:
        return 0
    ids: list[int] = output["input_ids"][0].tolist()
    return ids.count(spec.prompt.placeholder_id)


if __name__ == "__main__":
    record()
