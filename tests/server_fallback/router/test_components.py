"""Prompts' vectors in a fit, its policy and its evaluation."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_source import FakeEncoder, text_model
from made_pairs import made_pairs
from router_cases import situation_of

from nearfar.compiler.cli import main
from nearfar.compiler.ir.tasks import EmbeddingSpec
from nearfar.compiler.runtime.errors import RequestError
from nearfar.server_fallback.cli import router as router_cli
from nearfar.server_fallback.executors.encoder_executor import EncoderExecutor
from nearfar.server_fallback.router.decision.decide import decide
from nearfar.server_fallback.router.decision.policy import Policy
from nearfar.server_fallback.router.fitting.design import centre_of
from nearfar.server_fallback.router.fitting.fit import fit
from nearfar.server_fallback.router.fitting.pairs import Pair
from nearfar.server_fallback.router.fitting.refits import scores_of_refits
from nearfar.server_fallback.router.fitting.scores import all_scores
from nearfar.server_fallback.router.fitting.table import vectors_of


def embedded_pairs(count: int, seed: int = 0) -> list[Pair]:
    """Vectors (5,) that show which prompts are hard, in one direction among noise, and that fill four dimensions. The
    words say nothing, and near fails on every hard prompt.
    """
    rng = np.random.default_rng(seed)
    pairs = []
    for pair in made_pairs(count, seed=seed, near_when_hard=0.0, signals=False):
        a, b, c = rng.normal(size=3) * (0.3, 0.2, 0.1)
        hard = 1.0 if pair.prompt.startswith("solve") else -1.0
        vector = (hard + a, b - hard, 0.5 + c, c, a)
        pairs.append(pair.model_copy(update={"prompt": "the same words", "embedding": vector}))
    return pairs


PAIRS, NEW = embedded_pairs(120), embedded_pairs(40, seed=1)


def test_vectors_are_centred_and_of_the_same_length_from_every_encoder() -> None:
    vectors = vectors_of(PAIRS)
    centre = centre_of(vectors)
    values = centre.of(vectors)
    assert values.mean(0) == pytest.approx(0.0, abs=1e-9)
    assert np.mean(np.sum(values**2, axis=1)) == pytest.approx(1.0)
    # An encoder whose vectors nearly point the same way.
    assert centre_of(vectors / 100 + 1.0).of(vectors / 100 + 1.0) == pytest.approx(values)
    assert not centre_of(np.full((120, 2), 0.5)).of(np.full((1, 2), 0.5)).any()


def test_pairs_without_vectors_are_refused() -> None:
    with pytest.raises(RequestError, match="a pair has no vector"):
        fit([*PAIRS, PAIRS[0].model_copy(update={"embedding": None})], encoder="e")


def test_a_policy_with_vectors_decides_as_eval_says() -> None:
    result = fit(PAIRS, encoder="e")
    dumped = {"predictor": result.predictor.model_dump(mode="json"), "threshold": result.threshold}
    policy = Policy.read(json.loads(json.dumps({"version": 1, "mode": "auto", "quality": dumped})))
    assert policy.quality.predictor == result.predictor
    assert result.predictor.embedding is not None
    assert (result.predictor.embedding.model, len(result.predictor.embedding.components)) == ("e", 2)
    scores = all_scores(NEW, policy)["auto"]
    for pair, score in zip(NEW, scores, strict=True):
        assert pair.embedding is not None
        messages = [{"role": "user", "content": pair.prompt, "labels": []}]
        made = replace(situation_of({"messages": messages}), embedding=pair.embedding)
        found = decide(policy, made)
        assert found.scores["gain"] == pytest.approx(score)
        assert found.side == ("far" if score > result.threshold else "near")
    # The words are the same everywhere, so only the vectors can show this.
    hard = np.array([pair.embedding is not None and pair.embedding[0] > 0 for pair in NEW])
    assert scores[hard].min() > scores[~hard].max() + 0.2
    refits = scores_of_refits(PAIRS, result.predictor, NEW, 2)
    assert np.corrcoef(refits[0], scores)[0, 1] > 0.9


@pytest.fixture
def encoders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """--encoder NAME is a model of this name that counts the letters s and y; "chat" embeds nothing."""
    spec = EmbeddingSpec(pooling="last_token", normalize=False, size=2)

    async def opened(name: str, _: Any) -> object:
        if name == "chat":
            return Closing()
        encoder = FakeEncoder(lambda ids, _: [[1.0 + ids.count(ord("s")), ids.count(ord("y")), 1.0]])
        return EncoderExecutor(encoder, replace(text_model(tmp_path, embedding=spec), name=name))

    monkeypatch.setattr(router_cli, "open_model", opened)


class Closing:
    async def close(self) -> None: ...


def test_fit_and_eval_embed_the_prompts(
    encoders: None,  # noqa: ARG001
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    logged, policy = tmp_path / "pairs.jsonl", tmp_path / "policy.json"
    logged.write_text("".join(f"{pair.model_dump_json(exclude={'embedding'})}\n" for pair in made_pairs(60)))
    fitting = ["router", "fit", str(logged), "-o", str(policy)]
    assert main([*fitting, "--features", "signals", "embedding", "--encoder", "letters"]) == 0
    predictor = Policy.read(policy).quality.predictor
    assert predictor is not None
    assert predictor.embedding is not None
    assert predictor.embedding.model == "letters"
    assert "first_entropy" in predictor.features
    evaluation = ["router", "eval", str(logged), "--policy", str(policy)]
    refits = ["--fitted-on", str(logged), "--refits", "2"]
    assert main([*evaluation, *refits, "--json", "--encoder", "letters"]) == 0
    capsys.readouterr()
    assert main([*evaluation, "--encoder", "other"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "--encoder other: is other, but the policy reads embeddings of letters; give that model" in said
    assert main([*fitting, "--features", "embedding", "--encoder", "chat"]) == 2
    assert "--encoder chat: makes no embeddings" in " ".join(capsys.readouterr().err.split())
    # Without the feature no model is opened.
    assert main([*fitting, "--encoder", "chat"]) == 0
    assert "embedding" not in json.loads(policy.read_text())["quality"]["predictor"]
