"""Zero-shot classification: a model of natural language inference has the probabilities of transformers' pipeline."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from encoder_tokenizers import write_vectors_tokenizer
from plain_target import compile_plain
from tiny_encoders import CONTEXT, make_encoder

from nearfar.compiler.cli import main
from nearfar.compiler.ir.tasks import ClassifierSpec
from nearfar.compiler.runtime.errors import RequestError
from nearfar.compiler.runtime.zero_shot import hypotheses_of

TEXT, LABELS = "boats float", ["sea", "sky", "birds"]
# The first label is entailment, the last one, one in the middle, or one of two.
ORDERS = (
    ("entailment", "neutral", "contradiction"),
    ("contradiction", "neutral", "Entailment"),
    ("contradiction", "entailment", "neutral"),
    ("entailment", "not_entailment"),
)


@pytest.mark.parametrize("names", ORDERS)
def test_the_probabilities_are_those_of_transformers_pipeline(
    names: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import transformers

    folder = tmp_path / "checkpoint"
    labels = {"id2label": dict(enumerate(names)), "label2id": {name: index for index, name in enumerate(names)}}
    model = make_encoder("deberta-v2", "ForSequenceClassification", folder, **labels)
    write_vectors_tokenizer(folder, "deberta-v3")
    compile_plain(folder, tmp_path / "bundle", "f32", CONTEXT)
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"), pad_token="[PAD]", sep_token="[SEP]"
    )
    pipeline = transformers.pipeline("zero-shot-classification", model=model, tokenizer=tokenizer)
    for options, given in (
        ({"hypothesis_template": "This example is {}."}, []),
        ({"hypothesis_template": "of {}!", "multi_label": True}, ["--hypothesis-template", "of {}!", "--multi-label"]),
    ):
        expected = pipeline(TEXT, LABELS, **options)
        run = ["run", str(tmp_path / "bundle"), TEXT, "--runner", "numpy", "--json", *given, "--labels", *LABELS]
        assert main(run) == 0
        found = json.loads(capsys.readouterr().out)["labels"]
        assert list(found) == LABELS
        assert found == pytest.approx(dict(zip(expected["labels"], expected["scores"], strict=True)), rel=1e-4)


def test_a_long_text_is_shortened_and_its_hypothesis_is_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    labels = {"id2label": dict(enumerate(ORDERS[0])), "label2id": {}}
    make_encoder("bert", "ForSequenceClassification", tmp_path / "checkpoint", **labels)
    compile_plain(tmp_path / "checkpoint", tmp_path / "bundle", "f32", CONTEXT)
    run = ["run", str(tmp_path / "bundle"), "a" * CONTEXT, "--runner", "numpy", "--labels", "b"]
    assert main(run) != 0
    assert "the context of checkpoint is 64; shorten it, or add --truncate" in capsys.readouterr().err
    assert main([*run, "--truncate", "--json"]) == 0
    long = json.loads(capsys.readouterr().out)
    assert long["tokens"] == CONTEXT
    run[2] = "a" * (CONTEXT - len("This example is b."))
    assert main([*run, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == long
    for options, message in (
        (["--passage", "text"], "--labels and --passage exclude each other"),
        (["--truncate", "--hypothesis-template", "{}" + "b" * CONTEXT], "the hypothesis has"),
    ):
        assert main([*run, *options]) != 0
        assert message in capsys.readouterr().err
    assert main([*run[:-2], "--multi-label"]) != 0
    assert "--multi-label needs --labels" in capsys.readouterr().err


@pytest.mark.parametrize(("names", "labels", "template", "message"), [
    (("LABEL_0", "LABEL_1"), ["a"], None, '"LABEL_0", "LABEL_1"; labels of a request need a classifier of natural'),
    (("entailment", "neutral"), ["a"], None, "natural language inference"),
    (ORDERS[0], [], None, "labels is empty"),
    (ORDERS[0], ["a", ""], None, r"labels\[1\] is empty"),
    (ORDERS[0], ["a", "b", "a"], None, r'labels\[2\] is "a", as an earlier one is'),
    (ORDERS[0], ["a"], "nothing", "hypothesis_template has {} 0 times"),
    (ORDERS[0], ["a"], "{} or {}", "hypothesis_template has {} 2 times"),
    (ORDERS[0], ["a"], "{{}}", "hypothesis_template has a brace besides {}"),
    (ORDERS[0], ["a"], "{} of {kind}", "hypothesis_template has a brace besides {}"),
    (ORDERS[0], ["a", "\ud800"], None, "half of a surrogate pair"),
    (ORDERS[0], ["a"], "\udfff{}", "half of a surrogate pair"),
])  # fmt: skip
def test_what_makes_no_hypotheses_is_refused(
    names: tuple[str, ...], labels: list[str], template: str | None, message: str
) -> None:
    with pytest.raises(RequestError, match=message):
        hypotheses_of(ClassifierSpec(names, "softmax"), labels, template)
    with pytest.raises(RequestError, match="natural language inference"):
        hypotheses_of(ClassifierSpec(ORDERS[0], "softmax", per_token=True), ["a"])
