"""Models that hear on every target: the features of their towers, and the logits of a prompt with a picture between two
sounds, in one piece, in chunks that begin and end inside a sound, and token by token.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hearing_families import AUDIO, FAMILIES, Floats, Heard, make_hearing, sound
from light_bundle import kernels_of_models
from plain_target import without_kernels
from test_runners import emulation_for, open_on
from tolerances import F32, relative_error

from nearfar.compiler.bundle.check import parse_manifest
from nearfar.compiler.bundle.folder import Bundle, open_bundle
from nearfar.compiler.bundle.manifest import HEARING
from nearfar.compiler.export.bundle_tensors import bundle_tensors
from nearfar.compiler.formats import load
from nearfar.compiler.pipeline.compile import CompileOptions, compile_model
from nearfar.compiler.runtime.audio.prepared_sound import prepare_sound
from nearfar.compiler.runtime.encoder_batch import make_frame_batch
from nearfar.compiler.runtime.errors import BundleError, CheckpointError, DeviceError, RequestError, UnsupportedModel
from nearfar.compiler.runtime.generate import score
from nearfar.compiler.runtime.media import encode_media, placed_features
from nearfar.compiler.runtime.placed_features import PlacedFeatures
from nearfar.compiler.runtime.plan_runner import PlanRunner
from nearfar.compiler.runtime.runner import Limits
from nearfar.compiler.runtime.text.tokenizer import Tokenizer
from nearfar.compiler.runtime.trust import check_runner

LIMITS = Limits(tokens=110, sequences=2, rows=110, pages=16, patches=512)


def compiled(folder: Path, output: Path, target: str = "cpu", **options: object) -> Bundle:
    """Without kernels for numpy."""
    on_device = target != "numpy"
    given = {"quantization": "f32", "context": 256, "activations": ("float32",), **options}
    given["target"] = target if on_device else "webgpu"
    with kernels_of_models(LIMITS) if on_device else without_kernels():
        compile_model(str(folder), output, CompileOptions(**given))  # type: ignore[arg-type]
    return open_bundle(output)


def logits_of(runner: PlanRunner, heard: Heard, placed: list[PlacedFeatures], size: int, length: int) -> Floats:
    """The logits of the first tokens, in chunks of at least ``size``."""
    return np.concatenate(list(score(runner, heard.token_ids[:length], size, placed)))


# tests/web/test_page_hearing.py runs a Gemma 4 that hears on WebGPU.
USUAL = {("gemma4_unified", "cpu"), ("gemma4", "cpu")}


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
    heard = make_hearing(family, tmp_path / "checkpoint")
    bundle = compiled(tmp_path / "checkpoint", tmp_path / "bundle", target)
    runner = open_on(target, bundle, LIMITS, "float32", emulated)
    assert isinstance(runner, PlanRunner)
    try:
        check_runner(runner, runner.manifest)
        placed = placed_features(runner, heard.token_ids, [heard.picture], heard.sounds)
        assert [each.first for each in placed] == list(heard.places)
        for each, wanted in zip((placed[0], placed[2]), heard.features, strict=True):
            assert relative_error(each.features, wanted) < F32
        length = len(heard.token_ids)
        for size in (length, 7):
            assert relative_error(logits_of(runner, heard, placed, size, length), heard.logits) < F32, size
        # Up to the picture, which some models read at once.
        length = heard.places[1]
        assert relative_error(logits_of(runner, heard, placed, 1, length), heard.logits[:length]) < F32
    finally:
        runner.close()


@pytest.fixture(scope="module")
def unified(tmp_path_factory: pytest.TempPathFactory) -> tuple[Bundle, Heard]:
    folder = tmp_path_factory.mktemp("unified")
    heard = make_hearing("gemma4_unified", folder / "checkpoint")
    return compiled(folder / "checkpoint", folder / "bundle"), heard


def test_a_chat_has_its_sounds_and_pictures_in_order(unified: tuple[Bundle, Heard]) -> None:
    bundle, heard = unified
    tokenizer, sounds = Tokenizer(bundle.tokenizer_files()), bundle.manifest.sounds
    assert sounds is not None
    kinds = ("audio", "image", "audio")
    content = [*({"type": kind} for kind in kinds), {"type": "text", "text": "what<|audio|>?"}]
    ids = encode_media(
        tokenizer, bundle.manifest, [{"role": "user", "content": content}], [heard.picture], heard.sounds
    )
    first, second = (each.features for each in heard.sounds)
    picture = sum(heard.picture.features)
    begin, end = (tokenizer.token_id(each) for each in ("<|audio>", "<audio|>"))
    image = tokenizer.token_id("<|image|>")
    expected = [begin, *[AUDIO] * first, end, None, *[image] * picture, None, begin, *[AUDIO] * second, end]
    found = ids[: len(expected)]
    assert [None if each is None else one for each, one in zip(expected, found, strict=True)] == expected
    # What a user spells is text.
    assert ids.count(AUDIO) == first + second


def test_sounds_of_the_wrong_length_are_refused(unified: tuple[Bundle, Heard]) -> None:
    sounds = unified[0].manifest.sounds
    assert sounds is not None
    assert sounds.most == 750 * 32
    assert prepare_sound(sounds, sound(sounds.most)).features == 750
    with pytest.raises(RequestError, match=r"has 1.5 s, and this model hears at most 1.5 s at once"):
        prepare_sound(sounds, sound(sounds.most + 1))
    with pytest.raises(RequestError, match="0 samples, which is too short"):
        prepare_sound(sounds, sound(0))


def test_a_wrong_tower_fails_its_test(unified: tuple[Bundle, Heard], monkeypatch: pytest.MonkeyPatch) -> None:
    bundle, _ = unified
    runner = open_on("numpy", bundle, LIMITS, "float32", None)
    assert isinstance(runner, PlanRunner)
    listen = runner.listen
    monkeypatch.setattr(runner, "listen", lambda batch: listen(batch)[::-1])
    with pytest.raises(DeviceError, match="the features of sound are off by"):
        check_runner(runner, bundle.manifest)


def test_frames_that_do_not_fit_the_tower_are_refused(unified: tuple[Bundle, Heard]) -> None:
    bundle, heard = unified
    runner = open_on("cpu", bundle, LIMITS, "float32", None)
    assert isinstance(runner, PlanRunner)
    frames = heard.sounds[0].rows.frames
    try:
        for wrong, message in (
            (frames[:, 1:], r"input 'frames' of the batch is \[12, 31\] of float32"),
            (frames[:0], "has no new token"),
            (np.zeros((111, 32), np.float32), "the batch has S = 111"),
            (frames + np.float32(np.inf), "frames of sound that are not finite"),
        ):
            with pytest.raises(RequestError, match=message):
                runner.listen(make_frame_batch([wrong]))
        batch = make_frame_batch([frames])
        with pytest.raises(RequestError, match="each from position 0 on"):
            runner.listen(replace(batch, positions=batch.positions + 1))
    finally:
        runner.close()


def test_a_text_model_alone_does_not_hear(unified: tuple[Bundle, Heard], tmp_path: Path) -> None:
    checkpoint = unified[0].path.parent / "checkpoint"
    text = compiled(checkpoint, tmp_path / "text", text_only=True)
    assert HEARING not in text.manifest.plans
    assert (text.manifest.sounds, text.manifest.hears, unified[0].manifest.hears) == (None, False, True)
    runner = open_on("numpy", text, LIMITS, "float32", None)
    with pytest.raises(RequestError, match="reads no sound"):
        runner.listen(make_frame_batch([np.zeros((1, 32), np.float32)]))


def test_gguf_files_have_no_ears(unified: tuple[Bundle, Heard]) -> None:
    with pytest.raises(UnsupportedModel, match="sees pictures"):
        bundle_tensors(unified[0])


def test_without_the_settings_of_sound_a_model_only_sees(unified: tuple[Bundle, Heard], tmp_path: Path) -> None:
    checkpoint = unified[0].path.parent / "checkpoint"
    for file in checkpoint.iterdir():
        if file.name != "processor_config.json":
            (tmp_path / file.name).hardlink_to(file)
    loaded = load(str(tmp_path))
    assert loaded.spec.hearing is None
    assert loaded.spec.vision is not None
    assert any("does not say how sound is prepared" in note for note in loaded.notes)


def test_settings_that_are_not_known_are_refused(unified: tuple[Bundle, Heard], tmp_path: Path) -> None:
    import json

    checkpoint = unified[0].path.parent / "checkpoint"
    own = json.loads((checkpoint / "processor_config.json").read_text())
    for key, value in (("sampling_rate", 8000), ("dither", 0.1), ("audio_samples_per_token", 64)):
        folder = tmp_path / key
        folder.mkdir()
        for file in checkpoint.iterdir():
            if file.name != "processor_config.json":
                (folder / file.name).hardlink_to(file)
        changed = {**own, "feature_extractor": {**own["feature_extractor"], key: value}}
        (folder / "processor_config.json").write_text(json.dumps(changed))
        with pytest.raises((UnsupportedModel, CheckpointError), match=key):
            load(str(folder))


def test_manifests_whose_sounds_do_not_fit_are_refused(unified: tuple[Bundle, Heard]) -> None:
    manifest = unified[0].manifest
    assert manifest.sounds is not None
    assert manifest.spec.hearing is not None
    assert manifest.images is not None
    same = replace(manifest.sounds.prompt, placeholder_id=manifest.images.prompt.placeholder_id)
    for change, message in (
        ({"sounds": None}, "is null, but the model hears"),
        ({"sounds": replace(manifest.sounds, samples=33)}, "has rows of 32, but sounds of 33"),
        ({"sounds": replace(manifest.sounds, most=10**9)}, "has 750 rows, but sounds up to"),
        ({"sounds": replace(manifest.sounds, prompt=same)}, "has the token of a picture"),
        ({"hearing_test": None, "spec": replace(manifest.spec, hearing=None)}, r"hearing.*models that hear"),
    ):
        changed = manifest.model_copy(update=change)
        with pytest.raises(BundleError, match=message):
            parse_manifest(changed.model_dump_json().encode(), Path("manifest.json"))
