"""The answer of `nearfar run` for a bundle that generates no text: a text's vector, or the scores of its labels."""

from __future__ import annotations

import sys
from typing import Any

from ..bundle.manifest import Description
from ..runtime.batch import FloatArray
from ..runtime.encoding import Text, check_dimensions, classify, embed, encode, label_tokens, probabilities
from ..runtime.errors import RequestError
from ..runtime.runner import Runner
from ..runtime.text.pair_text import encode_in_template
from ..runtime.text.prompts import prompt_text
from ..runtime.text.tokenizer import Tokenizer
from ..runtime.zero_shot import Hypotheses, hypotheses_of, label_probabilities
from .options import Run
from .output import print_json

# The numbers of a vector that are shown.
SHOWN = 8


def refuse_encoder_options(options: Run, model: str) -> None:
    """Raises RequestError for options that a model that generates text does not support."""
    if options.passage is not None:
        raise RequestError(f"--passage: {model} generates text and scores no pairs; remove the option")
    for name in ("truncate", "dimensions", "labels"):
        if getattr(options, name):
            raise RequestError(f"--{name}: {model} generates text and makes no embeddings or scores; remove the option")


def encode_text(
    manifest: Description, tokenizer: Tokenizer, text: str, passage: str | None, *, truncate: bool = False
) -> Text:
    """A text with the model's default prompt, or a query and a passage. With ``truncate``, a text beyond the context is
    shortened at its end; of a pair, the passage is.

    Raises RequestError for an empty or too long text, a passage that the model does not take, and a missing one.
    """
    if not text or passage == "":
        raise RequestError(f"the {'passage' if text else 'text'} is empty; give at least one character")
    limit, classifier = manifest.context if truncate else sys.maxsize, manifest.classifier
    if classifier is not None and classifier.decision is not None:
        raise RequestError(
            f"{manifest.model} answers typed questions and generates no text; ask it with nearfar decide"
        )
    if passage is not None:
        if classifier is None or classifier.per_token:
            raise RequestError(f"--passage: {manifest.model} scores no pairs of texts; remove the option")
        if classifier.template is not None:
            return checked(manifest, Text(encode_in_template(tokenizer, classifier, text, passage, limit)))
        pair = tokenizer.encode_shortened(text, passage, limit)
        return checked(manifest, Text(pair.ids, pair.token_types))
    if classifier is not None and classifier.template is not None:
        raise RequestError(f"{manifest.model} scores pairs of a query and a passage; add --passage TEXT")
    spec = manifest.embedding
    text = ("" if spec is None else prompt_text(spec, None)) + text
    ids = tokenizer.encode(text)
    return checked(manifest, Text(ids if len(ids) <= limit else tokenizer.encode_shortened(text, None, limit).ids))


def encode_hypotheses(manifest: Description, tokenizer: Tokenizer, options: Run) -> tuple[Hypotheses, list[Text]]:
    """The prompt with a hypothesis for each of the labels. With ``truncate``, a long prompt is shortened at its end.

    Raises RequestError for labels that make no hypotheses, a model of another kind, and an empty or too long prompt.
    """
    if options.passage is not None:
        raise RequestError("--labels and --passage exclude each other; use one of them")
    if manifest.classifier is None:
        raise RequestError(f"--labels: {manifest.model} makes embeddings and has no classes; remove the option")
    if not options.prompt:
        raise RequestError("the text is empty; give at least one character")
    hypotheses = hypotheses_of(manifest.classifier, options.labels, options.hypothesis_template)
    limit = manifest.context if options.truncate else sys.maxsize
    pairs = [
        tokenizer.encode_shortened(options.prompt, hypothesis, limit, shortens_first=True)
        for hypothesis in hypotheses.texts
    ]
    return hypotheses, [checked(manifest, Text(pair.ids, pair.token_types)) for pair in pairs]


def print_labels(runner: Runner, options: Run, hypotheses: Hypotheses, texts: list[Text]) -> None:
    """Print each of the labels with its probability, best first."""
    probabilities = label_probabilities(hypotheses, encode(runner, texts), multi_label=options.multi_label)
    labels = by_label(options.labels, probabilities)
    if options.json:
        print_json({"labels": labels, "tokens": sum(len(text.token_ids) for text in texts), "device": runner.device})
    else:
        print_scores(labels)


def checked(manifest: Description, text: Text) -> Text:
    """The text, if it fits in the context, without types if the model has none. Raises RequestError."""
    length = len(text.token_ids)
    if length > manifest.context:
        raise RequestError(
            f"the text has {length} tokens, but the context of {manifest.model} is {manifest.context}; shorten it, or "
            "add --truncate"
        )
    return text if manifest.spec.num_token_types else Text(text.token_ids)


def require_dimensions(manifest: Description, dimensions: int | None) -> None:
    """Raises RequestError for a number of dimensions that the model lacks."""
    if dimensions is None:
        return
    if manifest.embedding is None:
        raise RequestError(f"--dimensions: {manifest.model} makes no embeddings; remove the option")
    check_dimensions(manifest.embedding, dimensions)


def print_encoded(
    runner: Runner, tokenizer: Tokenizer, text: Text, *, as_json: bool, dimensions: int | None = None
) -> None:
    """Print a vector's first numbers, or each label with its probability, best first."""
    result = results(runner, tokenizer, text, dimensions)
    if as_json:
        print_json({**result, "tokens": len(text.token_ids), "device": runner.device})
        return
    if "embedding" in result:
        numbers = result["embedding"]
        more = ", ..." if len(numbers) > SHOWN else ""
        print(f"{len(numbers)} numbers: {', '.join(f'{number:.4f}' for number in numbers[:SHOWN])}{more}")
        return
    if "tokens_of_text" in result:
        for each in result["tokens_of_text"]:
            print(f"{each['token']!r:24} {each['label']} {each['score']:.4f}")
        return
    print_scores(result["labels"])


def print_scores(labels: dict[str, float]) -> None:
    for label, score in sorted(labels.items(), key=lambda item: -item[1]):
        print(f"{score:.4f} {label}")


def results(runner: Runner, tokenizer: Tokenizer, text: Text, dimensions: int | None) -> dict[str, Any]:
    spec = runner.manifest.classifier
    if spec is None:
        return {"embedding": embed(runner, text.token_ids, dimensions=dimensions).tolist()}
    if not spec.per_token:
        (scores,) = classify(runner, [text])
        return {"labels": by_label(spec.labels, scores)}
    (scores,) = encode(runner, [text])
    probs = probabilities(scores, spec)
    tokens = [tokenizer.decode([token_id], skip_special_tokens=False) for token_id in text.token_ids]
    best, _ = label_tokens(scores, spec)
    return {
        "tokens_of_text": [
            {"token": token, "label": spec.labels[index], "score": float(row[index])}
            for token, index, row in zip(tokens, best, probs, strict=True)
        ]
    }


def by_label(labels: tuple[str, ...], scores: FloatArray) -> dict[str, float]:
    return dict(zip(labels, scores.tolist(), strict=True))
