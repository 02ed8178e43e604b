"""How much of what is private the finder finds in held-out texts, and how often it finds something in harmless ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import name_corpus
from tokenizers import Tokenizer

from nearfar.compiler.ir.tasks import ClassifierSpec, TransitionSpec
from nearfar.compiler.runtime.encoding import label_tokens

from .checkpoint import LABELS, read_checkpoint, scores_of
from .texts import KINDS, Example, examples

PRIVATE, HARMLESS = 1000, 1000
CLASSIFIER = ClassifierSpec(LABELS, "softmax", per_token=True, transitions=TransitionSpec())


def found_in(model: Any, tokenizer: Tokenizer, text: str) -> list[tuple[int, int, str]]:
    """The private parts that the model finds in a text, as `Example.spans`."""
    encoding = tokenizer.encode(text)
    if not encoding.ids:
        return []
    scores = scores_of(model, [encoding.ids])[0].numpy()
    _, spans = label_tokens(scores, CLASSIFIER)
    assert spans is not None
    return [(encoding.offsets[each.first][0], encoding.offsets[each.last][1], each.label) for each in spans]


def measure(folder: Path) -> dict[str, Any]:
    """Percentages, on texts of held-out frames with held-out words. A kind's recall: the share of its parts whose
    characters are all found, whatever their kind. ``harmless``: the share of harmless texts with nothing found.
    ``corpus``: `name_corpus.measured`.
    """
    model, tokenizer = read_checkpoint(folder)
    private = list(examples("evaluate private", PRIVATE, held_out=True, private=True))
    harmless = list(examples("evaluate harmless", HARMLESS, held_out=True, private=False))
    counts, covered, precise, parts = Counter[str](), Counter[str](), 0, 0
    for example in private:
        found = found_in(model, tokenizer, example.text)
        characters = set(characters_of(found))
        for start, end, kind in example.spans:
            counts[kind] += 1
            covered[kind] += characters.issuperset(at for at in range(start, end) if not example.text[at].isspace())
        wanted = set(characters_of(example.spans))
        parts += len(found)
        precise += sum(any(at in wanted for at in range(start, end)) for start, end, _ in found)
    quiet = sum(not found_in(model, tokenizer, example.text) for example in harmless)
    return {
        "recall": {kind: round(100 * covered[kind] / counts[kind], 1) for kind in KINDS if counts[kind]},
        "recall of all": round(100 * covered.total() / counts.total(), 1),
        "precision": round(100 * precise / max(1, parts), 1),
        "harmless": round(100 * quiet / HARMLESS, 1),
        "parts": counts.total(),
        "corpus": name_corpus.measured(folder),
    }


def characters_of(spans: Iterable[tuple[int, int, str]]) -> Iterable[int]:
    return (at for start, end, _ in spans for at in range(start, end))


def show(model: Any, tokenizer: Tokenizer, example: Example) -> str:
    """A text with what is found in brackets."""
    text = example.text
    for start, end, kind in sorted(found_in(model, tokenizer, text), reverse=True):
        text = f"{text[:start]}[{kind}: {text[start:end]}]{text[end:]}"
    return text
