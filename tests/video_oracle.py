"""transformers' own processors of videos, which need torchvision and num2words: the frames that they choose, the tokens
of a prompt, and the pixels.

``python tests/video_oracle.py`` writes `tests/conformance/videos.json`, with which both languages are compared.
"""

from __future__ import annotations

import importlib
import json
import re
import tempfile
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt
from image_families import FAMILIES, marker_id, pattern, spec_of, write_family
from image_oracle import import_torchvision, sha256

from nearfar.compiler.ir.images import ImageSpec
from nearfar.compiler.runtime.errors import RequestError
from nearfar.compiler.runtime.images.videos import VideoFrames, prepare_video
from nearfar.compiler.shared.script import SharedScript

VECTORS = Path(__file__).parent / "conformance/videos.json"
# Width, height, frames, and frames a second: short and long videos, an odd number of frames, a rate of film.
VIDEOS = ((64, 48, 33, 10.0), (120, 30, 250, 25.0), (33, 90, 77, 24000 / 1001), (50, 50, 4, 2.0))
CLASSES = {
    "smolvlm": ("SmolVLM", "<video>", "<image>"),
    "qwen3_vl": ("Qwen3VL", "<|video_pad|>", "<|image_pad|>"),
    "qwen3_5": ("Qwen3VL", "<|video_pad|>", "<|image_pad|>"),
    "gemma4": ("Gemma4", "<|video|>", "<|image|>"),
}
SAMPLES = 5


def moving(width: int, height: int, index: int) -> npt.NDArray[np.uint8]:
    """A frame (height, width, 3), which TypeScript makes, too."""
    return np.roll(pattern(width, height), index * 5, axis=1)


def video_of(width: int, height: int, total: int, fps: float) -> VideoFrames:
    return VideoFrames(total, fps, width, height, lambda indices: (moving(width, height, index) for index in indices))


def processors_of(name: str, folder: Path) -> Any:
    """The processor of videos of a family, and that of prompts."""
    import transformers as hf
    from image_oracle import processor_of

    processor, _ = processor_of(name, folder)
    # processor_of replaces it, because tests of pictures do without num2words.
    num2words = importlib.import_module("num2words").num2words
    from transformers.models.smolvlm import processing_smolvlm

    processing_smolvlm.num2words = num2words
    processor.video_processor = getattr(hf, f"{CLASSES[name][0]}VideoProcessor").from_pretrained(folder)
    return processor


def metadata(width: int, height: int, total: int, fps: float) -> Any:
    from transformers.video_utils import VideoMetadata

    return VideoMetadata(total_num_frames=total, fps=fps, width=width, height=height, duration=total / fps)


def their_frames(output: Any, spec: ImageSpec) -> npt.NDArray[np.float32]:
    """The processor's pixels (frames, patches of a frame, elements), block by block, with a picture's elements."""
    block, patch = spec.block, spec.patch
    if "video_grid_thw" in output:
        (pairs, down, across) = output["video_grid_thw"][0].tolist()
        pixels = output["pixel_values_videos"].numpy().reshape(pairs, down * across, 3, 2, -1)
        return np.ascontiguousarray(pixels.transpose(0, 3, 1, 2, 4)).reshape(2 * pairs, down * across, -1)
    if "video_position_ids" in output:
        real = (output["video_position_ids"][0].numpy() >= 0).all(-1)
        across, down = output["video_position_ids"][0].numpy()[real].max(0) + 1
        pixels = output["pixel_values_videos"].numpy()[:, real]
    else:
        frames = output["pixel_values"][0].numpy()
        down, across = frames.shape[2] // patch, frames.shape[3] // patch
        frames = frames[:, :, : down * patch, : across * patch].reshape(len(frames), 3, down, patch, across, patch)
        pixels = frames.transpose(0, 2, 4, 1, 3, 5).reshape(len(frames), down * across, -1)
    grid = pixels.reshape(len(pixels), down // block, block, across // block, block, -1)
    return np.ascontiguousarray(grid.transpose(0, 1, 3, 2, 4, 5)).reshape(len(pixels), down * across, -1)


def our_frames(spec: ImageSpec, patches: npt.NDArray[np.float32], changes: Any, tiles: int) -> npt.NDArray[np.float32]:
    per_tile = patches.reshape(tiles, -1, patches.shape[-1])
    if spec.video is None or spec.video.frames == 1:
        return per_tile
    half = changes.reshape(per_tile.shape)
    both = np.stack([per_tile + half, per_tile - half], 1)
    return both.reshape(2 * tiles, *per_tile.shape[1:])


def record() -> None:
    """Raises AssertionError where frames, pixels or tokens differ from ours."""
    import_torchvision()
    recorded: dict[str, Any] = {}
    for name, (_, mark, placeholder) in CLASSES.items():
        family = FAMILIES[name]
        with tempfile.TemporaryDirectory() as made:
            folder = write_family(family, Path(made))
            notes: list[str] = []
            spec = spec_of(folder, notes)
            assert spec.video is not None, notes
            processor = processors_of(name, folder)
        cases = []
        for width, height, total, fps in VIDEOS:
            if name == "gemma4" and total < spec.video.sampling.count:  # type: ignore[union-attr]
                continue
            whole = np.stack([moving(width, height, index) for index in range(total)])
            output = processor(
                text=[f"a{mark}b"],
                videos=[whole],
                video_metadata=[metadata(width, height, total, fps)],
                do_sample_frames=True,
                return_tensors="pt",
            )
            ours = prepare_video(spec, video_of(width, height, total, fps))
            video_id = marker_id(mark)
            theirs = [marker_id(placeholder) if each == video_id else each for each in output["input_ids"][0].tolist()]
            tokens = processor.tokenizer(f"a{ours.text}b", add_special_tokens=False)["input_ids"]
            assert tokens == theirs, (name, processor.tokenizer.decode(theirs), ours.text)
            frames = our_frames(spec, ours.patches, getattr(ours, "changes", None), len(ours.features))
            expected = their_frames(output, spec)
            np.testing.assert_allclose(frames, expected, atol=1e-6, rtol=0, err_msg=f"{name} {width} x {height}")
            places = [ours.patches.size * each // SAMPLES for each in range(SAMPLES)]
            cases.append(
                {
                    "video": [width, height, total, fps],
                    "features": ours.features,
                    "text": ours.text.replace(placeholder, "*"),
                    "samples": [[place, float(ours.patches.flat[place])] for place in places],
                    "patches": sha256(ours.patches),
                    "changes": None if getattr(ours, "changes", None) is None else sha256(ours.changes),
                    "key": ours.key,
                }
            )
            print(name, width, height, total, fps, ours.features, flush=True)
        layouts = [layout_of(spec, processor, *shape) for shape in random_videos()]
        recorded[name] = {"spec": asdict(spec), "cases": cases, "layouts": layouts}
    text = json.dumps(recorded, indent=1)
    # One line for each list of numbers.
    VECTORS.write_text(re.sub(r"\[\s+([^][{}]*?)\s+\]", lambda found: f"[{' '.join(found[1].split())}]", text) + "\n")


def random_videos(count: int = 60) -> list[tuple[int, int, int, float]]:
    """Width, height, frames, and frames a second."""
    random = Random(0)
    rates = (1.0, 5.0, 24000 / 1001, 25.0, 30000 / 1001, 30.0, 60.0)
    sides = [int(2 ** random.uniform(2, 11)) for _ in range(2 * count)]
    shapes = list[tuple[int, int, int, float]]()
    for index in range(count):
        fps = random.choice(rates)
        width, height = sides[2 * index : 2 * index + 2]
        shapes.append((width, height, max(1, int(fps * 2 ** random.uniform(-1, 9))), fps))
    return shapes


def layout_of(spec: ImageSpec, processor: Any, width: int, height: int, total: int, fps: float) -> list[Any]:
    """The video, the processor's frames, and the placeholders of each tile; 0 if it refuses it. Raises AssertionError
    if ours are others.
    """
    videos = processor.video_processor
    shape = {"total": total, "fps": fps, "width": width, "height": height}
    try:
        found = videos.sample_frames(metadata(width, height, total, fps), num_frames=videos.num_frames, fps=videos.fps)
        indices = [int(each) for each in found]
    except ValueError:
        # transformers refuses videos of fewer frames than it chooses.
        indices = list(range(total))
    try:
        features = features_of(spec, videos, width, height, len(indices))
    except ValueError:
        features = 0
    try:
        ours = SharedScript.of_thread().ask("videoLayout", asdict(spec), shape)
    except RequestError:
        if features:
            raise
        return [width, height, total, fps, 0, 0, 0, 0]
    assert ours["indices"] == indices, (shape, indices, ours["indices"])
    # A frame is no larger than a picture, which the processor of Qwen3-VL does not bound.
    bound = spec.size.most // (spec.patch * spec.block) ** 2 if spec.size.rule == "area_bounds" else features
    assert ours["features"] == features or (features > bound and ours["features"] <= bound), (shape, features, ours)
    return [width, height, total, fps, len(indices), sum(indices), features, ours["features"]]


def features_of(spec: ImageSpec, videos: Any, width: int, height: int, count: int) -> int:
    side = spec.patch * spec.block
    if spec.video is not None and spec.video.size.rule == "edge":
        return (spec.video.size.side // side) ** 2
    if spec.video is not None and spec.video.size.rule == "area":
        from transformers.models.gemma4.video_processing_gemma4 import get_aspect_ratio_preserving_size

        patches = videos.max_soft_tokens * spec.block**2
        down, across = get_aspect_ratio_preserving_size(height, width, spec.patch, patches, spec.block)
        return int(down // side * (across // side))
    kwargs = {"cap_pixels_per_frame": videos.cap_pixels_per_frame}
    patches = int(videos.get_num_of_video_patches(count, height, width, kwargs))
    return patches // -(-count // 2) // spec.block**2


if __name__ == "__main__":
    record()
