"""Heads of decision models that are refused by name, and those on models inside others."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny_decisions import SLOTS, theirs, write_decider, write_judge, write_tokenizer

from nearfar.compiler.formats.huggingface import open_checkpoint
from nearfar.compiler.pipeline.graphs import graphs_of
from nearfar.compiler.runtime.errors import CheckpointError, NearfarError, UnsupportedModel

Change = Callable[[Path], object]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("heads")
    write_judge(folder / "judge")
    write_decider(folder / "decider")
    theirs(folder / "judge").save_pretrained(folder / "saved")
    write_tokenizer(folder / "saved")
    return folder


def changed(file: str, **values: Any) -> Change:
    def change(folder: Path) -> None:
        known = json.loads((folder / file).read_text())
        (folder / file).write_text(json.dumps({**known, **values}))

    return change


def template(text: str) -> Change:
    return lambda folder: (folder / "decision_template.jinja").write_text(text)


def without(file: str) -> Change:
    return lambda folder: (folder / file).unlink()


REFUSED: list[tuple[str, Change, type[NearfarError], str]] = [
    ("judge", lambda folder: (folder / "adapter").mkdir(), UnsupportedModel, "the LoRA adapter in 'adapter'; merge"),
    ("judge", without("judge_config.json"), CheckpointError, "neither judge_config.json nor decision_config.json"),
    ("judge", without("head.safetensors"), CheckpointError, "has 0 of the files head.safetensors and readout"),
    ("judge", changed("judge_config.json", slots={**SLOTS, "num_slots": 10}), CheckpointError, "have the shapes"),
    (
        "judge",
        changed("calibration.json", per_kind={"noul": 0}),
        CheckpointError,
        "temperature of noul must be above 0",
    ),
    (
        "decider",
        changed("decision_config.json", prompt="d9"),
        UnsupportedModel,
        "'prompt' is 'd9'; supported: pplx, d3",
    ),
    ("decider", changed("decision_config.json", codes=None), UnsupportedModel, "has no 'codes' of options"),
    ("saved", without("decision_template.jinja"), CheckpointError, "has no decision_template.jinja"),
    ("saved", template("{{ questions[0].name }}<|mark|>"), UnsupportedModel, "asks all questions in one prompt"),
    ("saved", template("{{ state }}<|split|><|mark|>"), UnsupportedModel, "splits prompts"),
    ("saved", template("<|mark|>{{ state }}"), UnsupportedModel, "marks another place than the end"),
    ("saved", template("{{ state }}{{ '<|ma' ~ 'rk|>' }}"), UnsupportedModel, "marks another place than the end"),
    ("saved", template("{{ nothing.at.all }}"), UnsupportedModel, "does not write a question of yes_no"),
    ("saved", changed("decision.json", sanitize_control_tokens=False), UnsupportedModel, "could write control tokens"),
    ("saved", changed("decision.json", noul_options=["yes"]), CheckpointError, "must order 'true' and 'false'"),
    ("saved", changed("config.json", offsets={"noul": 0}), CheckpointError, "questions of score have no scores"),
    ("saved", changed("config.json", dialect=1), UnsupportedModel, "dialect"),
]


@pytest.mark.parametrize(("form", "change", "kind", "message"), REFUSED, ids=[each[3][:40] for each in REFUSED])
def test_a_head_that_cannot_be_read_is_refused_by_name(
    form: str, change: Change, kind: type[NearfarError], message: str, written: Path, tmp_path: Path
) -> None:
    shutil.copytree(written / form, tmp_path / form)
    change(tmp_path / form)
    with pytest.raises(kind, match=message):
        open_checkpoint(tmp_path / form)


def test_a_head_may_read_a_model_whose_tokens_see_those_after_them(written: Path, tmp_path: Path) -> None:
    shutil.copytree(written / "decider", tmp_path / "decider")
    assert open_checkpoint(tmp_path / "decider").spec.causal
    changed("decision_config.json", attention_mode="noncausal_full_attention")(tmp_path / "decider")
    checkpoint = open_checkpoint(tmp_path / "decider")
    (graph,) = graphs_of(checkpoint, 64).values()
    attends = [node for node in graph.nodes if node.op == "ragged_attention"]
    assert attends
    assert not any(node.attrs["causal"] for node in attends)
