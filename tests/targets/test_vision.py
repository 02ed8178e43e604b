"""Models that see pictures on every target: the features of their towers, and the logits of a prompt with two pictures,
in one piece, in chunks that begin and end inside a picture, and token by token.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from light_bundle import kernels_of_models
from plain_target import without_kernels
from test_runners import emulation_for, open_on
from tolerances import F32, INT8, relative_error
from video_families import make_video
from vision_families import FAMILIES, Expected, make_vision

from nearfar.compiler.bundle.check import parse_manifest
from nearfar.compiler.bundle.folder import Bundle, open_bundle
from nearfar.compiler.bundle.manifest import VISION
from nearfar.compiler.export.bundle_tensors import bundle_tensors
from nearfar.compiler.formats import load
from nearfar.compiler.ir.expr import evaluate
from nearfar.compiler.pipeline.compile import CompileOptions, compile_model
from nearfar.compiler.runtime.batch import Chunk, make_batch
from nearfar.compiler.runtime.errors import BundleError, DeviceError, RequestError, UnsupportedModel
from nearfar.compiler.runtime.generate import end_outside_pictures
from nearfar.compiler.runtime.images.patches import PreparedImage
from nearfar.compiler.runtime.limits import complete_limits
from nearfar.compiler.runtime.patches import PatchBatch, changed, image_features
from nearfar.compiler.runtime.placed_features import features_between, rope_positions_between
from nearfar.compiler.runtime.plan_runner import PlanRunner
from nearfar.compiler.runtime.runner import Limits
from nearfar.compiler.runtime.trust import check_runner

LIMITS = Limits(tokens=110, sequences=2, rows=110, pages=16, patches=512)
Floats = npt.NDArray[np.float32]


def compiled(folder: Path, output: Path, target: str = "cpu", **options: object) -> Bundle:
    """Without kernels for numpy."""
    on_device = target != "numpy"
    given = {"quantization": "f32", "context": 256, "activations": ("float32",), **options}
    given["target"] = target if on_device else "webgpu"
    with kernels_of_models(LIMITS) if on_device else without_kernels():
        compile_model(str(folder), output, CompileOptions(**given))  # type: ignore[arg-type]
    return open_bundle(output)


def features_of(runner: PlanRunner, expected: Expected) -> list[Floats]:
    return [image_features(runner, image) for image in expected.images]


def batch_of(*images: PreparedImage) -> PatchBatch:
    """The patches of several pictures."""
    counts = [np.diff(image.starts) for image in images]
    return PatchBatch(
        np.concatenate([image.patches for image in images]),
        np.concatenate([image.rows for image in images]),
        np.concatenate([image.weights for image in images]),
        np.cumsum([0, *np.concatenate(counts)]).astype(np.int32),
        np.concatenate([image.positions for image in images]),
        *changed(np.concatenate([image.changes for image in images])),
    )


def pictures_of(expected: Expected) -> list[tuple[int, int, int]]:
    """The first token of each picture, its tokens, and how many are side by side, if it is not cut into tiles."""
    found = []
    # Without places, the prompt is read as text.
    for place, image in zip(expected.places, expected.images, strict=False):
        patches, (_, across) = len(image.patches), image.positions.max(axis=0) + 1
        block = round((patches / sum(image.features)) ** 0.5)
        found.append((place, sum(image.features), int(across) // block))
    return found


def logits_of(runner: PlanRunner, expected: Expected, features: Sequence[Floats], size: int, length: int) -> Floats:
    """The logits of the first tokens, in chunks of ``size``."""
    placed = list(zip(expected.places, features, strict=True))
    found, stop, vision = [], 0, runner.manifest.spec.vision
    assert vision is not None
    while stop < length:
        start, stop = stop, min(stop + size, length)
        if vision.both_ways != "none":
            stop = end_outside_pictures(placed, start, stop, LIMITS.tokens)
        tokens = expected.token_ids[start:stop]
        pages = range(runner.manifest.pages_for(start + len(tokens)))
        own = features_between(placed, start, start + len(tokens))
        turns = rope_positions_between(pictures_of(expected), start, start + len(tokens))
        chunk = Chunk(tokens, start, pages, range(len(tokens)), state=(0, 0), features=own, rope_positions=turns)
        found.append(runner.forward(make_batch([chunk], runner.manifest.page_size)).logits)
    return np.concatenate(found)


def require_a_text_beside(runner: PlanRunner, expected: Expected, features: Sequence[Floats]) -> None:
    """A text and a prompt with pictures have the same logits in one batch as alone."""
    placed = list(zip(expected.places, features, strict=True))
    text, length = expected.token_ids[: expected.places[0]], len(expected.token_ids)
    manifest, chunks, first_page = runner.manifest, [], 0
    for slot, tokens in enumerate((text, expected.token_ids)):
        pages = range(first_page, first_page := first_page + manifest.pages_for(len(tokens)))
        own = features_between(placed, 0, len(tokens))
        turns = rope_positions_between(pictures_of(expected), 0, len(tokens)) if slot else None
        chunk = Chunk(tokens, 0, pages, range(len(tokens)), state=(slot, slot), features=own, rope_positions=turns)
        chunks.append(chunk)
    found = runner.forward(make_batch(chunks, manifest.page_size)).logits
    wanted = expected.logits[[*range(len(text)), *range(length)]]
    assert relative_error(found, wanted) < F32


WATCHED = {
    ("smolvlm", "cpu"),
    ("qwen3_vl", "numpy"),
    ("qwen3_5", "numpy"),
    ("gemma4", "cpu"),
    ("gemma4_bounded", "numpy"),
}


@pytest.mark.parametrize(
    ("family", "target"),
    [
        pytest.param(family, target, marks=() if (family, target) in WATCHED else pytest.mark.exhaustive)
        for family, values in FAMILIES.items()
        if values.video
        for target in ("numpy", "webgpu", "cpu", "cuda")
    ],
)
def test_videos_have_the_features_and_logits_of_transformers(
    family: str, target: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """In one piece, in chunks, and tile after tile."""
    emulated = emulation_for(target, request)
    expected = make_video(family, tmp_path / "checkpoint")
    bundle = compiled(tmp_path / "checkpoint", tmp_path / "bundle", target)
    runner = open_on(target, bundle, LIMITS, "float32", emulated)
    assert isinstance(runner, PlanRunner)
    try:
        check_runner(runner, runner.manifest)
        features = features_of(runner, expected)
        for found, wanted in zip(features, expected.features, strict=True):
            assert relative_error(found, wanted) < F32
        together = runner.features(batch_of(*expected.images))
        assert relative_error(together, np.concatenate(expected.features)) < F32
        for size in (LIMITS.tokens, 7):
            found = logits_of(runner, expected, features, size, len(expected.token_ids))
            assert relative_error(found, expected.logits) < F32
    finally:
        runner.close()


# The videos above have those of Qwen3-VL and of Gemma 4. tests/web/test_pictures.py runs a SmolVLM on WebGPU, and
# test_page_videos.py videos.
USUAL = {("gemma3", "cpu"), ("gemma4_unified", "numpy"), ("gemma4_unified", "cpu")}
USUAL |= {("smolvlm", "numpy"), ("smolvlm", "cuda"), ("lfm2_vl", "cpu")}
USUAL |= {("qwen3_5", "cpu"), ("gemma4_bounded", "numpy")}


@pytest.mark.parametrize(
    ("family", "target"),
    [
        pytest.param(family, target, marks=() if (family, target) in USUAL else pytest.mark.exhaustive)
        for family in FAMILIES
        for target in ("numpy", "webgpu", "cpu", "cuda")
    ],
)
def test_features_and_logits_are_those_of_transformers(
    family: str, target: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    emulated = emulation_for(target, request)
    expected = make_vision(family, tmp_path / "checkpoint")
    bundle = compiled(tmp_path / "checkpoint", tmp_path / "bundle", target)
    runner = open_on(target, bundle, LIMITS, "float32", emulated)
    assert isinstance(runner, PlanRunner)
    try:
        check_runner(runner, runner.manifest)
        features = features_of(runner, expected)
        for found, wanted in zip(features, expected.features, strict=True):
            assert relative_error(found, wanted) < F32
        length = len(expected.token_ids)
        for size in (length, 7):
            assert relative_error(logits_of(runner, expected, features, size, length), expected.logits) < F32, size
        require_a_text_beside(runner, expected, features)
        # Up to the second picture, so that tokens of text follow those of the first one.
        length = expected.places[1] + (0 if family.startswith("gemma") else 2)
        assert relative_error(logits_of(runner, expected, features, 1, length), expected.logits[:length]) < F32
    finally:
        runner.close()


@pytest.fixture(scope="module")
def smolvlm(tmp_path_factory: pytest.TempPathFactory) -> tuple[Bundle, Expected]:
    folder = tmp_path_factory.mktemp("smolvlm")
    expected = make_vision("smolvlm", folder / "checkpoint")
    return compiled(folder / "checkpoint", folder / "bundle"), expected


def test_pictures_together_have_the_features_of_each(smolvlm: tuple[Bundle, Expected]) -> None:
    bundle, expected = smolvlm
    runner = open_on("numpy", bundle, LIMITS, "float32", None)
    assert isinstance(runner, PlanRunner)
    together = runner.features(batch_of(*expected.images))
    assert relative_error(together, np.concatenate(expected.features)) < F32
    # A few tiles at a time.
    limits = replace(LIMITS, patches=75)
    runner = open_on("cpu", bundle, limits, "float32", None)
    try:
        assert isinstance(runner, PlanRunner)
        assert relative_error(np.concatenate(features_of(runner, expected)), np.concatenate(expected.features)) < F32
    finally:
        runner.close()


def test_a_tower_has_8_bits_beside_a_text_model_with_4(smolvlm: tuple[Bundle, Expected], tmp_path: Path) -> None:
    bundle, expected = smolvlm
    folder = bundle.path.parent / "checkpoint"
    four = compiled(folder, tmp_path / "q4", "numpy", quantization="q4f16", activations=None)
    forms = {name: weight.quantization for name, weight in four.manifest.weights.items() if len(weight.shape) == 2}
    assert {form for name, form in forms.items() if name.startswith(("vision_model", "connector"))} == {"q8f16"}
    assert forms["model.embed_tokens.weight"] == "q4f16"
    runner = open_on("numpy", four, LIMITS, "float32", None)
    assert isinstance(runner, PlanRunner)
    check_runner(runner, four.manifest)
    assert relative_error(features_of(runner, expected)[0], expected.features[0]) < INT8


def test_a_wrong_tower_fails_its_test(smolvlm: tuple[Bundle, Expected], monkeypatch: pytest.MonkeyPatch) -> None:
    bundle, _ = smolvlm
    runner = open_on("numpy", bundle, LIMITS, "float32", None)
    assert isinstance(runner, PlanRunner)
    features = runner.features

    def joined(batch: PatchBatch) -> Floats:
        return features(replace(batch, patch_starts=batch.patch_starts[[0, -1]]))

    monkeypatch.setattr(runner, "features", joined)
    with pytest.raises(DeviceError, match="the features of pictures are off by"):
        check_runner(runner, bundle.manifest)


def test_batches_that_do_not_fit_the_tower_are_refused(smolvlm: tuple[Bundle, Expected]) -> None:
    bundle, expected = smolvlm
    image = expected.images[1]
    good = batch_of(image)
    runner = open_on("cpu", bundle, LIMITS, "float32", None)
    assert isinstance(runner, PlanRunner)
    try:
        for wrong, message in (
            (replace(good, patches=good.patches[:, 1:]), "patches of pictures is .* the model needs"),
            (replace(good, patch_rows=good.patch_rows + 36), "names a position beyond the 36"),
            (replace(good, patch_starts=np.array([0, 5, 180], np.int32)), "complete blocks of 9 patches"),
            (replace(good, patch_starts=np.array([0, 180, 180], np.int32)), "complete blocks of 9 patches"),
        ):
            with pytest.raises(RequestError, match=message):
                runner.features(wrong)
        with pytest.raises(RequestError, match="the batch has V = 540, the runner was made for at most 512"):
            runner.features(batch_of(image, image, image))
        batch = make_batch([Chunk([1, 2], 0, [0], features=[(0, expected.features[1][:2])])], 16)
        assert batch.feature_rows is not None
        for rows in ([0, 0], [0, 2], [-1, 0]):
            with pytest.raises(RequestError, match="each must replace a row of its own"):
                runner.forward(replace(batch, feature_rows=np.array(rows, np.int32)))
        assert batch.features is not None
        with pytest.raises(RequestError, match="input 'features' of the batch is"):
            runner.forward(replace(batch, features=batch.features[:, 1:]))
    finally:
        runner.close()


def test_without_room_for_patches_a_model_reads_text(smolvlm: tuple[Bundle, Expected]) -> None:
    bundle, expected = smolvlm
    runner = open_on("cpu", bundle, replace(LIMITS, patches=0), "float32", None)
    assert isinstance(runner, PlanRunner)
    try:
        check_runner(runner, bundle.manifest)
        text = replace(expected, places=())
        assert relative_error(logits_of(runner, text, [], 5, 5), expected.logits[:5]) < F32
        with pytest.raises(RequestError, match="the runner was made for at most 0"):
            features_of(runner, expected)
    finally:
        runner.close()


def test_a_batch_holds_a_picture_that_is_seen_both_ways(smolvlm: tuple[Bundle, Expected]) -> None:
    manifest = smolvlm[0].manifest
    assert manifest.spec.vision is not None
    limits = Limits(tokens=2, sequences=2, rows=2)
    assert complete_limits(manifest, limits).tokens == 2
    both_ways = replace(manifest.spec.vision, both_ways="windows", tile_patches=90)
    seen = manifest.model_copy(update={"spec": replace(manifest.spec, vision=both_ways)})
    assert complete_limits(seen, limits).tokens == 10


def test_a_batch_of_text_has_no_workgroups_for_pictures(smolvlm: tuple[Bundle, Expected], tmp_path: Path) -> None:
    manifest = compiled(smolvlm[0].path.parent / "checkpoint", tmp_path / "gpu", "webgpu", self_test=False).manifest
    (step,) = [step for step in manifest.plan("generate").steps if step.op == "place_rows"]
    (variant,) = manifest.variants[step.variants]
    (kernel,) = [manifest.kernels[name] for name in variant.kernels]
    for features, workgroups in ((0, 0), (3, 6)):
        assert math.prod(evaluate(size, {"F": features, "S": 9}) for size in kernel.grid) == workgroups


def test_a_text_model_has_no_plan_for_pictures(smolvlm: tuple[Bundle, Expected], tmp_path: Path) -> None:
    bundle, expected = smolvlm
    text = compiled(bundle.path.parent / "checkpoint", tmp_path / "text", "numpy", text_only=True)
    assert VISION not in text.manifest.plans
    assert (text.manifest.spec.vision, text.manifest.images) == (None, None)
    assert not any(name.startswith(("vision_model", "connector")) for name in text.manifest.weights)
    runner = open_on("numpy", text, LIMITS, "float32", None)
    assert isinstance(runner, PlanRunner)
    with pytest.raises(RequestError, match="sees no pictures; use the bundle of a model that does"):
        features_of(runner, expected)
    batch = make_batch([Chunk([1, 2], 0, [0], features=[(0, expected.features[1][:2])])], 16)
    with pytest.raises(RequestError, match="which the model does not see"):
        runner.forward(batch)


def test_a_model_with_a_tower_is_not_exported(smolvlm: tuple[Bundle, Expected]) -> None:
    with pytest.raises(UnsupportedModel, match=r"sees pictures, which exported models do not; compile .* --text-only"):
        bundle_tensors(smolvlm[0])


def test_patches_beyond_the_largest_side_and_tokens_beyond_the_batch_are_refused(tmp_path: Path) -> None:
    expected = make_vision("qwen3_vl", tmp_path / "checkpoint")
    bundle = compiled(tmp_path / "checkpoint", tmp_path / "bundle", "numpy", self_test=False)
    runner = open_on("numpy", bundle, LIMITS, "float32", None)
    assert isinstance(runner, PlanRunner)
    batch = batch_of(expected.images[0])
    with pytest.raises(RequestError, match="a patch is at row or column 1013; a tile has at most 40"):
        runner.features(replace(batch, patch_positions=batch.patch_positions + 1000 - batch.patch_positions.min()))
    turned = make_batch([Chunk([1, 2], 0, [0], rope_positions=np.array([[0, 0, 0], [1, 1, 2]], np.int32))], 16)
    with pytest.raises(RequestError, match="rotate by positions 0 to 2; they must be 0 to 1"):
        runner.forward(turned)


def test_large_pictures_are_reduced_and_a_note_says_so(tmp_path: Path) -> None:
    make_vision("qwen3_vl", tmp_path)
    file = tmp_path / "preprocessor_config.json"
    values = json.loads(file.read_text())
    file.write_text(json.dumps(values | {"size": {"shortest_edge": 512, "longest_edge": 2**24}}))
    checkpoint = load(str(tmp_path))
    assert checkpoint.images is not None
    assert checkpoint.spec.vision is not None
    assert checkpoint.spec.vision.tile_patches == 2**20 // 16
    assert any(
        "pictures are reduced to 1048576 pixels; the processor allows 16777216" in each for each in checkpoint.notes
    )


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("qwen3_vl", {"mrope_section": []}, "rope_positions: is not for the tower of spec.vision"),
        ("gemma3", {"both_ways": "none"}, "reach: is not for the tower of spec.vision"),
    ],
)
def test_a_manifest_whose_tower_is_not_that_of_its_text_model_is_refused(
    name: str, change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    make_vision(name, tmp_path / "checkpoint")
    bundle = compiled(tmp_path / "checkpoint", tmp_path / "bundle", "numpy", self_test=False)
    values = json.loads((bundle.path / "manifest.json").read_text())
    parse_manifest(json.dumps(values).encode(), Path("manifest.json"))
    values["spec"]["vision"].update(change)
    with pytest.raises(BundleError, match=message):
        parse_manifest(json.dumps(values).encode(), Path("manifest.json"))
