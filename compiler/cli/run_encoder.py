"""The answer of `nearfar run` for a bundle that generates no text: a text's vector, or the scores of its labels."""

from __future__ import annotations

from typing import Any

from ..bundle.manifest import Description
from ..errors import RequestError
from ..runtime.batch import FloatArray, Runner
from ..runtime.encoding import Text, classify, embed
from ..text.tokenizer import Tokenizer
from .output import print_json

# The numbers of a vector that are shown.
SHOWN = 8


def encode_text(manifest: Description, tokenizer: Tokenizer, text: str, passage: str | None) -> Text:
    """A text with the model's default prompt, or a query and a passage. Raises RequestError for a passage that the
    model does not take.
    """
    if passage is not None:
        if manifest.classifier is None or manifest.classifier.per_token:
            raise RequestError(f"--passage: {manifest.model} scores no pairs of texts; remove the option")
        return Text(*tokenizer.encode_pair(text, passage))
    spec = manifest.embedding
    prompts = {} if spec is None else {prompt.name: prompt.text for prompt in spec.prompts}
    prompt = "" if spec is None or spec.default_prompt is None else prompts[spec.default_prompt]
    return Text(tokenizer.encode(prompt + text))


def print_encoded(runner: Runner, tokenizer: Tokenizer, text: Text, *, as_json: bool) -> None:
    """Print a vector's first numbers, or each label with its probability, best first."""
    result = results(runner, tokenizer, text)
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
    for label, score in sorted(result["labels"].items(), key=lambda item: -item[1]):
        print(f"{score:.4f} {label}")


def results(runner: Runner, tokenizer: Tokenizer, text: Text) -> dict[str, Any]:
    spec = runner.manifest.classifier
    if spec is None:
        return {"embedding": embed(runner, text.token_ids).tolist()}
    (scores,) = classify(runner, [text])
    if not spec.per_token:
        return {"labels": by_label(spec.labels, scores)}
    tokens = [tokenizer.decode([token_id], skip_special_tokens=False) for token_id in text.token_ids]
    best = scores.argmax(axis=-1).tolist()
    return {
        "tokens_of_text": [
            {"token": token, "label": spec.labels[index], "score": float(row[index])}
            for token, index, row in zip(tokens, best, scores, strict=True)
        ]
    }


def by_label(labels: tuple[str, ...], scores: FloatArray) -> dict[str, float]:
    return dict(zip(labels, scores.tolist(), strict=True))
