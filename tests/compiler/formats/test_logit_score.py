"""Rerankers that are language models: their scores are the differences of transformers' logits of two tokens."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from plain_target import compile_plain
from tiny_encoders import logits_of, write_json
from tiny_models import make_checkpoint
from tolerances import F32, relative_error

from nearfar.compiler.formats import load
from nearfar.compiler.ir.tasks import Task, task_of
from nearfar.compiler.pipeline.task import for_task
from nearfar.compiler.runtime.encoding import Text, classify, encode
from nearfar.compiler.runtime.errors import CheckpointError, NearfarError, RequestError, UnsupportedModel
from nearfar.compiler.runtime.reference import ReferenceRunner
from nearfar.compiler.runtime.text.pair_text import encode_in_template
from nearfar.compiler.runtime.text.tokenizer import Tokenizer

PAIRS = (
    "{% for m in messages %}{{ '<s>' + m['role'][0] + m['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}!{% endif %}"
)
TASKS: tuple[Task, ...] = ("embed", "classify")
# The tokens "y" and "n".
TRUE, FALSE = 88, 77


@pytest.fixture(scope="module", params=["qwen3", "llama"])
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a head of its own, and with the embedding as its head."""
    folder = tmp_path_factory.mktemp("reranker")
    make_checkpoint(request.param, folder)
    return folder


def write_score(folder: Path, true_id: int = TRUE, false_id: int | None = FALSE, **options: Any) -> None:
    """Write the files of a CrossEncoder with a LogitScore, as sentence-transformers 6 does."""
    modules = [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.base.modules.transformer.Transformer"},
        {"idx": 1, "name": "1", "path": "1_LogitScore",
         "type": "sentence_transformers.cross_encoder.modules.logit_score.LogitScore"},
    ]  # fmt: skip
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_LogitScore").mkdir(exist_ok=True)
    write_json(folder / "1_LogitScore/config.json", true_token_id=true_id, false_token_id=false_id,
               module_input_name="causal_logits")  # fmt: skip
    write_json(folder / "sentence_bert_config.json", transformer_task="text-generation", max_seq_length=90,
               processing_kwargs={"chat_template": options})  # fmt: skip
    write_json(folder / "tokenizer_config.json", chat_template=PAIRS)
    for file in folder.glob("chat_template*"):
        file.unlink()


def test_the_score_is_the_difference_of_two_logits_after_the_template(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch
    import transformers

    folder = tmp_path / "checkpoint"
    shutil.copytree(checkpoint, folder)
    write_score(folder, add_generation_prompt=True)
    prompts = {"prompts": {"query": "Judge"}, "default_prompt_name": "query"}
    write_json(folder / "config_sentence_transformers.json", **prompts)
    bundle = compile_plain(folder, tmp_path / "bundle", "f32", 90, self_test=True)
    classifier = bundle.manifest.classifier
    assert classifier is not None
    assert (bundle.manifest.task, classifier.labels, classifier.activation) == ("rerank", ("y",), "sigmoid")
    assert classifier.template == "<s>s{instruction}<s>q{query}<s>d{document}!"
    tokenizer, theirs = Tokenizer(bundle.tokenizer_files()), transformers.AutoTokenizer.from_pretrained(folder)
    ids = encode_in_template(tokenizer, classifier, "what?", "that", 90)
    messages = [{"role": role, "content": text} for role, text in
                (("system", "Judge"), ("query", "what?"), ("document", "that"))]  # fmt: skip
    assert ids == theirs.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    runner = ReferenceRunner(bundle)
    logits = logits_of(model, ids)[-1]
    (score,), (relevance,) = encode(runner, [Text(ids)]), classify(runner, [Text(ids)])
    assert relative_error(score, logits[TRUE : TRUE + 1] - logits[FALSE]) < F32
    assert relevance == pytest.approx(1 / (1 + np.exp(-score)), rel=1e-5)
    # A longer document is shortened to what the template leaves.
    assert len(encode_in_template(tokenizer, classifier, "what?", "that" * 30, 90)) == 90
    with pytest.raises(RequestError, match="leaves none for a document"):
        encode_in_template(tokenizer, classifier, "what?" * 20, "that", 90)
    # Texts that cannot fit are not encoded as a whole.
    read, encode_all = list[int](), tokenizer._encode

    def encode_some(backend: Any, text: str, add_special_tokens: bool) -> list[int]:
        read.append(len(text))
        return encode_all(backend, text, add_special_tokens)

    monkeypatch.setattr(tokenizer, "_encode", encode_some)
    assert len(encode_in_template(tokenizer, classifier, "what?", "that" * 30_000, 90)) == 90
    with pytest.raises(RequestError, match="the query and its template have more than 90 tokens"):
        encode_in_template(tokenizer, classifier, "what?" * 30_000, "that", 90)
    assert max(read) < 2000
    write_score(folder, false_id=None)
    write_json(folder / "config_sentence_transformers.json", activation_fn="torch.nn.modules.linear.Identity")
    alone = compile_plain(folder, tmp_path / "alone", "f32", 90)
    assert alone.manifest.classifier is not None
    assert alone.manifest.classifier.activation == "none"
    assert relative_error(encode(ReferenceRunner(alone), [Text(ids)])[0], logits[TRUE : TRUE + 1]) < F32


def test_a_task_says_what_a_model_is_for(checkpoint: Path, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    shutil.copytree(checkpoint, folder)
    for file in folder.glob("chat_template*"):
        file.unlink()
    write_json(folder / "tokenizer_config.json", chat_template="{{ messages[0]['content'] }}")
    generates = load(str(folder))
    assert for_task(generates, None) is for_task(generates, "generate") is generates
    for task in TASKS:
        with pytest.raises(RequestError, match=f"--task {task}: .* generates text"):
            for_task(generates, task)
    # This tokenizer's tokens are bytes.
    with pytest.raises(RequestError, match="has no tokens 'yes' and 'no'"):
        for_task(generates, "rerank")
    content = json.loads((folder / "tokenizer.json").read_text())
    content["model"]["vocab"] |= {"yes": 300, "no": 301}
    (folder / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(RequestError, match="no tokens for the text of Qwen3-Reranker"):
        for_task(load(str(folder)), "rerank")
    marks = ("<|im_start|>", "<|im_end|>", "<think>", "</think>")
    content["added_tokens"] += [
        {"id": 302 + index, "content": mark, "special": True, "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False} for index, mark in enumerate(marks)]  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(content))
    ranks = for_task(load(str(folder)), "rerank")
    assert task_of(ranks.task) == "rerank"
    assert ranks.classifier is not None
    assert ranks.classifier.template is not None
    assert ranks.classifier.template.endswith(
        "<Document>: {document}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )
    assert ranks.classifier.instruction == "Given a web search query, retrieve relevant passages that answer the query"


def test_a_score_that_cannot_be_computed_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    shutil.copytree(checkpoint, folder)
    cases: list[tuple[type[NearfarError], str]] = [
        (CheckpointError, "scores a token beyond the vocabulary of 509"),
        (CheckpointError, "its chat template does not write pairs"),
        (UnsupportedModel, "activation of scores is 'torch.nn.Tanh'"),
    ]
    for error, message in cases:
        write_score(folder, true_id=509 if "vocabulary" in message else TRUE)
        if "template" in message:
            write_json(folder / "tokenizer_config.json", chat_template="{{ messages[0]['content'] }}")
        if "activation" in message:
            write_json(folder / "config_sentence_transformers.json", activation_fn="torch.nn.Tanh")
        with pytest.raises(error, match=message):
            load(str(folder))


def test_the_modules_of_a_plain_cross_encoder_change_nothing_but_its_activation(tmp_path: Path) -> None:
    from tiny_encoders import make_encoder

    make_encoder("bert", "ForSequenceClassification", tmp_path, num_labels=1)
    write_score(tmp_path)
    modules = json.loads((tmp_path / "modules.json").read_text())[:1]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    write_json(tmp_path / "config_sentence_transformers.json", activation_fn="torch.nn.modules.linear.Identity")
    found = load(str(tmp_path))
    assert found.classifier is not None
    assert (found.classifier.relevance, found.classifier.activation, found.max_tokens) == (0, "none", 90)
