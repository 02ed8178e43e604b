"""The reference that needs no bundle, compared with transformers; and divergences of known distributions."""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from decoder_families import TOKENS
from draft_heads import DraftHeads
from gguf_files import make_gguf
from plain_target import compile_plain
from tiny_models import ARCHITECTURES, VOCAB_SIZE
from tolerances import F32, relative_error

from nearfar.compiler.bundle.folder import Bundle
from nearfar.compiler.cli import main
from nearfar.compiler.demo import CHECKPOINT
from nearfar.compiler.formats import load
from nearfar.compiler.measure.checkpoint_reference import CheckpointReference
from nearfar.compiler.measure.quality import (
    Rows,
    RunnerCandidate,
    compare,
    counted_between,
    make_windows,
    measure,
    summarize,
)
from nearfar.compiler.runtime.errors import RequestError
from nearfar.compiler.runtime.reference import ReferenceRunner
from nearfar.compiler.runtime.runner import Limits
from nearfar.compiler.runtime.text.tokenizer import Tokenizer

TEXT = "A text of the tests, which is neither long nor short, and has 81 bytes and tokens."


@pytest.fixture(scope="module")
def tokenizer(tiny_checkpoints: Mapping[str, Path]) -> Tokenizer:
    return Tokenizer(load(str(tiny_checkpoints["qwen2"])).tokenizer)


@pytest.fixture(scope="module")
def bundles(tiny_checkpoints: Mapping[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Bundle]:
    """Bundles of the tiny Qwen2 for 256 tokens, by quantization."""
    folder = tmp_path_factory.mktemp("bundles")
    return {name: compile_plain(tiny_checkpoints["qwen2"], folder / name, name, 256) for name in ("f32", "q4f16")}


def test_heads_that_draft_tokens_are_no_part_of_the_reference(tmp_path: Path) -> None:
    logits = DraftHeads(tmp_path).logits
    reference = CheckpointReference(load(str(tmp_path)), len(TOKENS))
    (hidden,) = reference.hidden([TOKENS])
    assert relative_error(reference.logits(hidden), logits) < F32


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_checkpoints_logits_are_those_of_transformers_in_every_grouping_of_windows(
    name: str,
    tiny_checkpoints: Mapping[str, Path],
    transformers_logits: Callable[[str], np.ndarray],
    prompt_token_ids: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Windows of 75 tokens beside other windows, which must not affect them: a group of two windows, then a group of
    # one.
    monkeypatch.setattr("nearfar.compiler.measure.checkpoint_reference.TOKENS_AT_ONCE", 160)
    reference = CheckpointReference(load(str(tiny_checkpoints[name])), 75)
    seen: list[int] = []
    windows = [[5, 1, 2], prompt_token_ids, prompt_token_ids[:40]]
    hidden = list(reference.hidden(windows, seen.append))
    assert seen == [2, 3]
    expected = transformers_logits(name)
    assert relative_error(reference.logits(hidden[1]), expected) < F32
    assert relative_error(reference.logits(hidden[2]), expected[:40]) < F32


def test_a_model_that_embeds_has_no_quality(tiny_checkpoints: Mapping[str, Path]) -> None:
    with pytest.raises(RequestError, match="no next tokens to compare"):
        CheckpointReference(load(str(tiny_checkpoints["embedding"])), 16)


def test_divergence_and_perplexity_of_known_distributions() -> None:
    expected, found = (
        np.log(np.array([[0.5, 0.5], [0.8, 0.2]], np.float32)),
        np.log(np.array([[0.9, 0.1], [0.2, 0.8]], np.float32)),
    )
    # Logits are distributions up to a constant.
    rows = compare(expected + np.float32(3), found, [0, 1])
    kl = [0.5 * math.log(0.5 / 0.9) + 0.5 * math.log(0.5 / 0.1), 0.8 * math.log(0.8 / 0.2) + 0.2 * math.log(0.2 / 0.8)]
    np.testing.assert_allclose(rows.kl, kl, rtol=1e-6)
    assert rows.agrees.tolist() == [True, False]
    result = summarize([rows])
    assert result.kl_interval is None
    assert result.perplexity == pytest.approx(math.exp(-(math.log(0.9) + math.log(0.8)) / 2))
    assert result.reference_perplexity == pytest.approx(math.exp(-(math.log(0.5) + math.log(0.2)) / 2))
    assert result.perplexity_ratio == pytest.approx(result.perplexity / result.reference_perplexity)
    assert result.top1_agreement == 0.5


def test_equal_logits_are_no_distance_apart() -> None:
    logits = np.random.default_rng(0).normal(size=(7, 300)).astype(np.float32) * 20
    rows = compare(logits, logits, [3] * 7)
    assert (rows.kl == 0).all()
    assert rows.agrees.all()
    assert summarize([rows, rows]).kl_interval == (0, 0)


def test_the_interval_is_that_of_windows_means() -> None:
    def window(*kl: float) -> Rows:
        return Rows(np.array(kl), np.ones(len(kl), bool), np.zeros(len(kl)), np.zeros(len(kl)))

    result = summarize([window(0.1, 0.3), window(0.4), window(0.6, 0.6)])
    assert result.kl_mean == pytest.approx(0.4)
    spread = 1.96 * np.std([0.2, 0.4, 0.6], ddof=1) / 3**0.5
    assert result.kl_interval == pytest.approx((0.4 - spread, 0.4 + spread))


def test_a_bundle_in_float32_is_its_checkpoint_and_one_of_another_is_not(
    bundles: Mapping[str, Bundle], tiny_checkpoints: Mapping[str, Path], tokenizer: Tokenizer, tmp_path: Path
) -> None:
    checkpoint = load(str(tiny_checkpoints["qwen2"]))
    windows = make_windows(tokenizer, TEXT, 30)
    reference = CheckpointReference(checkpoint, 30)
    hidden = list(reference.hidden(windows))
    # A head whose row for token 65 was changed after training; the embedding is the same matrix.
    changed = tmp_path / "changed"
    shutil.copytree(tiny_checkpoints["qwen2"], changed)
    tensor = checkpoint.tensors["model.embed_tokens.weight"]
    with (changed / "model.safetensors").open("r+b") as file:
        file.seek(tensor.offset_bytes + 65 * 72 * 4)  # type: ignore[attr-defined]
        file.write(np.full(72, 0.3, np.float32).tobytes())
    other = compile_plain(changed, tmp_path / "bundle", "f32", 64)
    found = {
        name: measure(RunnerCandidate(ReferenceRunner(bundle, limits=Limits(rows=64))), reference, windows, hidden)
        for name, bundle in (("same", bundles["f32"]), ("other", other))
    }
    assert found["same"].tokens == sum(len(window) - 1 for window in windows)
    assert found["same"].kl_mean < 1e-9
    assert found["same"].top1_agreement == 1
    assert found["same"].perplexity_ratio == pytest.approx(1, abs=1e-5)
    assert found["other"].kl_mean > 1e-3


def test_windows_cover_the_text_and_begin_as_the_models_texts_do(
    tokenizer: Tokenizer, tiny_checkpoints: Mapping[str, Path]
) -> None:
    token_ids = tokenizer.encode(TEXT)
    windows = make_windows(tokenizer, TEXT, 30)
    assert [token for window in windows for token in window] == token_ids
    assert [len(window) for window in windows] == [30, 30, len(token_ids) - 60]
    assert len(make_windows(tokenizer, TEXT, 30, 2)) == 2
    # A last window of one token has nothing to predict.
    assert [len(window) for window in make_windows(tokenizer, TEXT[:61], 30)] == [30, 30]
    files = load(str(tiny_checkpoints["qwen2"])).tokenizer
    leading = Tokenizer(type(files)(files.where, files.content, bos_token="<s>", add_bos_token=True))
    windows = make_windows(leading, TEXT, 30)
    assert {window[0] for window in windows} == {256}
    assert [token for window in windows for token in window[1:]] == token_ids


def test_only_tokens_between_two_texts_count_the_end_included(tokenizer: Tokenizer) -> None:
    windows = make_windows(tokenizer, "ask<s>yes</s>ask<s>no</s>and<s>", 40)
    (counted,) = counted_between(tokenizer, windows, "<s>", "</s>")
    assert (
        tokenizer.decode([token for token, counts in zip(windows[0], counted, strict=True) if counts], False)
        == "yes</s>no</s>"
    )
    (counted,) = counted_between(tokenizer, windows, "sk<s>", "</s>a")
    assert (
        tokenizer.decode([token for token, counts in zip(windows[0], counted, strict=True) if counts], False)
        == "yes</s>ano</s>a"
    )
    with pytest.raises(RequestError, match="no token of the text lies between"):
        counted_between(tokenizer, windows, "nowhere", "</s>")
    with pytest.raises(RequestError, match="at least one token"):
        counted_between(tokenizer, windows, "", "</s>")


def test_the_command_prints_json_and_a_table(
    bundles: Mapping[str, Bundle],
    tiny_checkpoints: Mapping[str, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "text").write_text(TEXT + "<s>" + TEXT + "</s>")
    arguments = [
        "quality", *(str(bundle.path) for bundle in bundles.values()), str(tiny_checkpoints["qwen2"]),
        "--reference", str(tiny_checkpoints["qwen2"]), "--text", str(tmp_path / "text"), "--window", "40",
        "--runner", "numpy",
    ]  # fmt: skip
    assert main([*arguments, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    exact, quantized, model = answer["bundles"]
    assert model["kl_mean"] < 1e-9
    assert (model["model"], model["quantization"]) == (str(tiny_checkpoints["qwen2"]), None)
    assert model["weight_bytes"] == (tiny_checkpoints["qwen2"] / "model.safetensors").stat().st_size
    assert exact["kl_mean"] < 1e-9 < 1e-4 < quantized["kl_mean"] < quantized["kl_p99"]
    assert exact["weight_bytes"] == sum(shard.size for shard in bundles["f32"].manifest.shards)
    assert (quantized["target"], quantized["quantization"], quantized["kv"]) == ("webgpu", "q4f16", "activation")
    assert quantized["perplexity_ratio"] == pytest.approx(quantized["perplexity"] / exact["reference_perplexity"])
    assert main([*arguments, "--windows", "3", "--between", "<s>", "</s>"]) == 0
    printed = capsys.readouterr().out
    assert "webgpu, q4f16" in printed
    assert "model, floats" in printed
    # The third window contains the beginning of the text between the markers.
    assert f"{3 * 40 - len(TEXT) - 1} tokens in windows of 40" in printed
    assert "computed by numpy" in printed
    within, beyond = quantized["kl_mean"] * 1.01, quantized["kl_mean"] * 0.99
    assert main([*arguments, "--fail-above", str(within)]) == 0
    capsys.readouterr()
    assert main([*arguments, "--fail-above", str(beyond), "--json"]) == 2
    failed = capsys.readouterr()
    assert len(json.loads(failed.out)["bundles"]) == 3
    assert f"farther from the checkpoint than --fail-above {beyond:g}: {bundles['q4f16'].path.name} " in failed.err


def test_each_model_ignores_those_of_the_keys_that_it_has(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, file = tmp_path / "folder", make_gguf("llama", tmp_path / "folder", llama__odd_size=3)[0]
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "odd": 7}))
    (folder / "tokenizer.json").write_bytes(load(str(file), ["llama.odd_size"]).tokenizer.content)
    file = file.rename(tmp_path / "model.gguf")
    (tmp_path / "text").write_text("abc" * 20)
    command = ["quality", str(file), "--reference", str(folder), "--text", str(tmp_path / "text"), "--json"]
    keys = ["--ignore-key", "odd", "--ignore-key", "llama.odd_size"]
    assert main([*command, *keys]) == 0
    assert json.loads(capsys.readouterr().out)["bundles"][0]["kl_mean"] < 1e-9
    for missing in ("odd", "llama.odd_size"):
        assert main([*command, "--ignore-key", missing]) != 0
    capsys.readouterr()
    assert main([*command, *keys, "--ignore-key", "oddest"]) != 0
    assert "--ignore-key oddest: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"--reference": str(CHECKPOINT)}, f"has a vocabulary of {VOCAB_SIZE}, .* of 1024"),
        ({"--text": "{empty}"}, "the text has 0 tokens"),
        ({"--text": "{missing}"}, "--text .*missing: cannot be read"),
        ({"--text": "{binary}"}, "pass a file of UTF-8 text"),
        ({"--window": "1"}, "--window 1: must hold a token and one to predict"),
        ({"--window": "300"}, "maximum context length is 256 tokens"),
        ({"--windows": "0"}, "--windows 0: must be at least 1"),
        ({"--fail-above": "-1"}, "--fail-above -1.0: must be a number of at least 0"),
        ({"--reference": "{other}"}, "has another tokenizer than"),
    ],
)
def test_bundles_that_cannot_be_compared_are_refused(
    changes: dict[str, str],
    message: str,
    bundles: Mapping[str, Bundle],
    tiny_checkpoints: Mapping[str, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "empty").touch()
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    (tmp_path / "text").write_text(TEXT * 4)
    shutil.copytree(tiny_checkpoints["qwen2"], tmp_path / "other")
    tokenizer = tmp_path / "other/tokenizer.json"
    tokenizer.write_text(tokenizer.read_text() + "\n")
    given = {"--reference": str(tiny_checkpoints["qwen2"]), "--text": "{text}", "--runner": "numpy", **changes}
    places = {name: str(tmp_path / name) for name in ("empty", "binary", "text", "missing", "other")}
    flags = [part.format(**places) for flag in given.items() for part in flag]
    assert main(["quality", str(bundles["f32"].path), *flags, "--json"]) == 2
    found = json.loads(capsys.readouterr().err)["error"]["message"]
    assert re.search(message, found), found
