"""The training of the demo finder: it never reads what is held out, and it is reproducible."""

from __future__ import annotations

import re
from dataclasses import replace

import name_corpus
import torch

from demo_finder.checkpoint import LABELS, labelled, read_checkpoint
from demo_finder.texts import KIND_OF_PLACE, Example, examples, frames, words
from demo_finder.train import PLANS, train
from nearfar.compiler.demo import FINDER_CHECKPOINT


def test_training_reads_no_held_out_word_or_frame_and_the_corpus_has_other_names() -> None:
    for section in ("private", "harmless"):
        assert not set(frames(section, held_out=True)) & set(frames(section, held_out=False))
    known: set[str] = set()
    for section in ("given", "family", "named in other scripts", "street", "city"):
        assert not set(words(section, held_out=True)) & set(words(section, held_out=False))
        known |= {*words(section, held_out=True), *words(section, held_out=False)}
    named = {word for name in (*name_corpus.NAMES, *name_corpus.OTHER_SCRIPTS) for word in (name, *name.split())}
    assert not named & known


def test_private_parts_have_the_words_that_are_written() -> None:
    _, tokenizer = read_checkpoint(FINDER_CHECKPOINT)
    for example in examples("spans", 200, held_out=False):
        for start, end, kind in example.spans:
            assert kind in KIND_OF_PLACE.values()
            assert example.text[start:end].strip() == example.text[start:end]
        ids, labels = labelled(tokenizer, example)
        assert len(ids) == len(labels)
        assert bool(example.spans) == any(labels)
    ids, labels = labelled(tokenizer, Example("I am Anna Lee.", ((5, 13, "private_person"),)))
    own = [LABELS[label][:1] for label in labels]
    assert re.fullmatch("O+(BI*E|S)O", "".join(own))


def test_the_same_plan_gives_the_same_weights() -> None:
    plan = replace(PLANS["first"], steps=2, texts=4)
    first, second = (train(plan, FINDER_CHECKPOINT)[0].state_dict() for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)
    other = train(replace(plan, seed=2), FINDER_CHECKPOINT)[0].state_dict()
    assert any(not torch.equal(first[name], other[name]) for name in first)


def test_the_checkpoint_has_the_labels_of_the_recipe() -> None:
    model, tokenizer = read_checkpoint(FINDER_CHECKPOINT)
    assert tuple(model.config.id2label[index] for index in range(len(LABELS))) == LABELS
    assert tokenizer.get_vocab_size() == model.config.vocab_size
