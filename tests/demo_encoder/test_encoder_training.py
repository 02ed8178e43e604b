"""The training of the demo encoder: it never reads what is held out, and it is reproducible."""

from __future__ import annotations

import random
from itertools import islice

import pytest
import torch
from demo_model.two_runs import require_equal_weights
from rich.console import Console

from demo_encoder import pairs, train
from demo_encoder.bert import Bert, BertConfig
from demo_encoder.lexicon import alternatives, in_other_words
from demo_encoder.pairs import Sources, draw_batch, read_sources
from demo_encoder.questions import passage_of, questions
from demo_encoder.repository_text import (
    HELD_OUT_DOCUMENTS,
    described_names,
    documents,
    markdown_passages,
    passages_of,
)
from demo_encoder.start import begin, stem_of
from demo_encoder.train import TrainingPlan, contrastive_loss
from demo_encoder.wordpiece import CLS, SEP, make_wordpiece

TINY = TrainingPlan(
    BertConfig(vocab_size=600, hidden_size=16, num_attention_heads=2, intermediate_size=16), steps=2, pairs=8
)


@pytest.fixture(scope="module")
def sources() -> Sources:
    """A part of the sources, so that a training takes a second."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pairs, "GENERATED", 40)
        patch.setattr(pairs, "described_names", lambda: islice(described_names(), 100))
        return read_sources(random.Random(1))


def test_training_reads_no_held_out_document_and_question(sources: Sources) -> None:
    assert documents().keys() >= HELD_OUT_DOCUMENTS
    assert not {passage.document for passage in sources.passages} & HELD_OUT_DOCUMENTS
    asked = {question.text for question in questions("held-out")}
    assert len(asked) == 80
    assert not asked & {question for question, _ in sources.asked}
    # No passage is asked for in both.
    passages = [(passage.document, passage.text) for passage in sources.passages]
    held_out = {passage_of(question, passages) for question in questions("held-out")}
    assert len(held_out & {place for _, place in sources.asked}) < 20


def test_passages_have_their_headings_and_short_texts() -> None:
    found = list(
        passages_of("a.md", "# A\n\nOne two three four five six.\n\n## B\n\n- seven eight nine ten eleven twelve\n")
    )
    assert [(passage.headings, passage.text) for passage in found] == [
        (("A",), "One two three four five six."),
        (("A", "B"), "- seven eight nine ten eleven twelve"),
    ]
    assert max(len(passage.text) for passage in markdown_passages()) < 2500


# demo_model/test_train.py has runs that end alike bit for bit.
@pytest.mark.exhaustive
def test_the_same_seed_gives_the_same_weights(sources: Sources, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train, "read_sources", lambda _: sources)
    trained = [train.train(TINY, Console(quiet=True)) for _ in range(2)]
    (first, tokenizer), (second, other) = trained
    assert tokenizer.get_vocab() == other.get_vocab()
    require_equal_weights(first, second)


def test_the_vocabulary_has_frequent_words_whole_and_builds_others_from_their_parts() -> None:
    tokenizer = make_wordpiece(["compile compile compiling", "Compiler packs"], 200)
    assert tokenizer.encode("Compile compiler").tokens == ["[CLS]", "compile", "compile", "##r", "[SEP]"]
    assert tokenizer.encode("a").ids[0] == CLS
    assert tokenizer.encode("a").ids[-1] == SEP


def test_texts_of_one_label_are_no_negatives_of_each_other() -> None:
    queries = torch.eye(3)
    # The third text is that of the first query as well.
    texts = torch.eye(3)[[0, 1, 0]]
    apart = contrastive_loss(queries, texts, ["a", "b", "c"], 0.05)
    same = contrastive_loss(queries, texts, ["a", "b", "a"], 0.05)
    assert same < apart


def test_the_start_puts_texts_with_related_words_together() -> None:
    rng = random.Random(0)
    # Tokens 10 to 29 are of one topic and 30 to 49 of another; most of 50 to 59 are in every text.
    texts = [
        [*rng.sample(range(50, 60), 7), *rng.sample(range(start, start + 20), 8)]
        for start in (10, 30)
        for _ in range(100)
    ]
    torch.manual_seed(0)
    model = Bert(BertConfig(vocab_size=64, hidden_size=16, num_attention_heads=2, intermediate_size=16)).eval()
    begin(model, [f"piece{number}" for number in range(64)], texts, torch.Generator().manual_seed(0))
    halves = [[CLS, 50, *range(start, start + 10)] for start in (10, 20, 30)]
    one, other, third = model(torch.tensor(halves)).detach()
    assert one @ other > one @ third + 0.3


def test_forms_of_a_word_have_one_stem() -> None:
    assert len({stem_of(word) for word in ("compile", "compiles", "compiled", "compiling", "compiler")}) == 1
    assert stem_of("stopping") == stem_of("stopped") == "stop"


def test_the_lexicon_replaces_a_word_by_another_of_its_group() -> None:
    assert "phone" in alternatives()["device"]
    reworded = in_other_words("Does it run on devices?", 1.0, random.Random(1))
    assert reworded.startswith("Does it ")
    assert "devices" not in reworded


def test_batches_are_of_one_kind(sources: Sources) -> None:
    rng = random.Random(3)
    kinds = [{pair.label.split()[0] for pair in draw_batch(sources, rng, 20)} for _ in range(20)]
    assert all(found <= {"task", "fact"} or found <= {"passage", "described"} for found in kinds)
