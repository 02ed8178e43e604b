"""Assistants that draft the tokens of Gemma 4: which ones fit a model, and what their logits are."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from decoder_families import TOKENS, make_family
from draft_assistant import DraftAssistant, require_assistant_guesses
from plain_target import compile_plain
from ragged import chunk_of
from tiny_models import VOCAB_SIZE

from nearfar.compiler.bundle.manifest import DRAFT
from nearfar.compiler.export.bundle_tensors import bundle_tensors
from nearfar.compiler.formats import load
from nearfar.compiler.formats.assistant import with_assistant
from nearfar.compiler.pipeline.compile import CompileOptions, require_export
from nearfar.compiler.runtime.batch import make_batch
from nearfar.compiler.runtime.errors import CheckpointError, NearfarError, RequestError, UnsupportedModel
from nearfar.compiler.runtime.reference import ReferenceRunner
from nearfar.compiler.runtime.runner import Limits


def test_the_logits_of_an_ordered_head_are_those_of_all_tokens(tmp_path: Path) -> None:
    """transformers computes those of 40 groups, here of one token each, and gives the others the least of them - 1. The
    bundle's tensors are those of the model alone.
    """
    assistant = DraftAssistant(
        tmp_path, use_ordered_embeddings=True, num_centroids=VOCAB_SIZE, centroid_intermediate_top_k=40
    )
    checkpoint = with_assistant(load(str(tmp_path / "checkpoint")), str(tmp_path / "assistant"))
    assert "reads the whole head" in checkpoint.notes[-1]
    assert checkpoint.assistant is not None
    assert checkpoint.assistant.num_layers == 3
    bundle = compile_plain(tmp_path / "checkpoint", tmp_path / "bundle", "f32", 64, assistant=tmp_path / "assistant")
    runner = ReferenceRunner(
        bundle, limits=Limits(tokens=len(TOKENS), sequences=1, rows=1, draft_pages=1), activation="float32"
    )
    pages, position = [0, 1, 2], len(TOKENS) - 2
    runner.forward(make_batch([chunk_of(runner, TOKENS[:-1], 0, pages, [position])], 16))
    chunk = replace(chunk_of(runner, TOKENS[-1:], position, pages, [0]), slot=0, state=None, kept_rows=[position])
    found = runner.submit(make_batch([chunk], 16), DRAFT).result().logits[0]
    expected = assistant.guessed(TOKENS)[0]
    chosen = expected > expected.min()
    assert chosen.sum() == 40
    np.testing.assert_allclose(found[chosen], expected[chosen], rtol=1e-4, atol=1e-4)
    assert not any(name.startswith("assistant.") for name in bundle_tensors(bundle))


@pytest.mark.parametrize("family", ["gemma4_experts", "gemma4_unified_text"])
def test_the_assistant_of_a_model_whose_values_are_its_keys_guesses_as_transformers_does(
    family: str, tmp_path: Path
) -> None:
    assistant = DraftAssistant(tmp_path, family=family)
    bundle = compile_plain(tmp_path / "checkpoint", tmp_path / "bundle", "f32", 64, assistant=tmp_path / "assistant")
    runner = ReferenceRunner(
        bundle, limits=Limits(tokens=len(TOKENS), sequences=3, rows=3, pages=10, draft_pages=1), activation="float32"
    )
    require_assistant_guesses(runner, assistant)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda config: config.update(backbone_hidden_size=61), UnsupportedModel, "'backbone_hidden_size' is 61"),
        (lambda config: config["text_config"].update(vocab_size=7), UnsupportedModel, "the assistant has 7 tokens"),
        (
            lambda config: config["text_config"].update(sliding_window=9),
            UnsupportedModel,
            "the model has no layer with a window of 9 tokens, as layer 0 has",
        ),
        (
            lambda config: config["text_config"].update(num_key_value_heads=1),
            UnsupportedModel,
            "layer 0 reads 1 kv heads of 16 elements, but the model's layers with a window of 11 tokens have 3 of 16",
        ),
        (
            lambda config: config["text_config"].update(num_kv_shared_layers=1),
            UnsupportedModel,
            "'num_kv_shared_layers' is 1; all 3 layers must read the model's keys and values",
        ),
        (lambda config: config.update(draft_length=4), UnsupportedModel, "draft_length"),
        (lambda config: config.pop("text_config"), CheckpointError, "'text_config' is missing"),
        (lambda config: config.update(model_type="gemma3"), UnsupportedModel, "is a model of type gemma3; supported"),
    ],
)
def test_an_assistant_that_does_not_fit_is_refused(
    change: Callable[[dict[str, Any]], Any], error: type[NearfarError], message: str, pair: Path, tmp_path: Path
) -> None:
    config = json.loads((pair / "assistant" / "config.json").read_text())
    change(config)
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(error, match=message):
        with_assistant(load(str(pair / "checkpoint")), str(tmp_path))


def test_only_models_with_assistants_and_targets_with_kernels_take_one(pair: Path, tmp_path: Path) -> None:
    make_family("qwen3_5_text", tmp_path / "other")
    with pytest.raises(UnsupportedModel, match=r"cannot have an assistant; those .* belong to models of gemma4_text"):
        with_assistant(load(str(tmp_path / "other")), str(pair / "assistant"))
    with pytest.raises(CheckpointError, match=r"has no config\.json"):
        with_assistant(load(str(pair / "checkpoint")), str(tmp_path))
    with pytest.raises(RequestError, match="--assistant: target onnx does not support this option"):
        require_export(CompileOptions(target="onnx", assistant=str(pair / "assistant")))


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pair")
    DraftAssistant(folder)
    return folder
