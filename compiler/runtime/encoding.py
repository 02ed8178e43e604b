"""Run texts through a bundle that makes embeddings or scores: batches of complete texts if its plan has no pages, else
each text in chunks.

What a caller still has to do: shorten and scale an embedding (`finished`), make probabilities of scores
(`probabilities`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from ..bundle.manifest import CLASSIFY, EMBED, GENERATE
from ..ir.tasks import ClassifierSpec, EmbeddingSpec
from ..shared.script import SharedScript
from .audio.frame_rows import with_test_frames
from .batch import Chunk, FloatArray, make_batch
from .encoder_batch import make_text_batch
from .errors import RequestError
from .generate import PREFILL_CHUNK, check_tokens, not_finite
from .runner import Runner, require_plan


@dataclass(frozen=True, slots=True)
class Text:
    """A text's token ids, and the type of each token; () if all are of type 0. The two texts of a pair have types 0
    and 1.
    """

    token_ids: Sequence[int]
    token_types: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class LabelSpan:
    """The tokens from ``first`` to ``last``, both included, with the kind of their labels."""

    label: str
    first: int
    last: int


def embed(
    runner: Runner, token_ids: Sequence[int], *, chunk: int = PREFILL_CHUNK, dimensions: int | None = None
) -> FloatArray:
    """The vector (E,) of a text, shortened to ``dimensions`` and of length 1 if the bundle normalizes; this overwrites
    the runner's first pages.

    Raises RequestError for a bundle that makes no embeddings, no tokens, ids outside the vocabulary, more tokens than
    the bundle's context, or dimensions that the model lacks.
    """
    require_plan(runner.manifest, EMBED)
    spec = runner.manifest.embedding
    assert spec is not None
    check_dimensions(spec, dimensions)
    (vector,) = encode(runner, [Text(token_ids)], chunk=chunk)
    return finished(vector, spec, dimensions)


def check_dimensions(spec: EmbeddingSpec, dimensions: int | None) -> None:
    """Raises RequestError for a number of dimensions that the model was not trained for (Matryoshka representation
    learning, Kusupati et al. 2022). None: all.
    """
    if dimensions is not None and dimensions != spec.size and dimensions not in spec.dimensions:
        known = ", ".join(map(str, sorted({*spec.dimensions, spec.size})))
        raise RequestError(
            f"dimensions is {dimensions}; this model's vectors can have {known}; request one of these",
            param="dimensions",
        )


def classify(runner: Runner, texts: Sequence[Text]) -> list[FloatArray]:
    """The probabilities (L,) of each text's labels, or (T, L) of those of its tokens. Raises RequestError as `encode`,
    and for a bundle that is not a classifier.
    """
    require_plan(runner.manifest, CLASSIFY)
    assert runner.manifest.classifier is not None
    return [probabilities(scores, runner.manifest.classifier) for scores in encode(runner, texts)]


def label_tokens(scores: FloatArray, spec: ClassifierSpec) -> tuple[list[int], list[LabelSpan] | None]:
    """The label of each token for the scores (T, L) of a text, and the spans that they form; None if no label is
    outside of spans.
    """
    transitions = None if spec.transitions is None else asdict(spec.transitions)
    found = SharedScript.of_thread().ask("labelSpans", spec.labels, transitions, scores.ravel().tolist())
    if found is None:
        return [int(row.argmax()) for row in scores], None
    return found["best"], [LabelSpan(**span) for span in found["spans"]]


def encode(runner: Runner, texts: Sequence[Text], *, chunk: int = PREFILL_CHUNK) -> list[FloatArray]:
    """The plan's results for each text: its embedding (E,) or scores (L,), or the scores (T, L) of its tokens.

    Raises RequestError for a bundle that generates text, a text without tokens, ids outside the vocabulary, types that
    the model lacks, or more tokens than the bundle's context, and DeviceError for results that are not finite.
    """
    manifest = runner.manifest
    if GENERATE in manifest.plan_names:
        require_plan(manifest, EMBED)
    for text in texts:
        check_text(runner, text)
    if manifest.paged:
        found = [encode_in_chunks(runner, text.token_ids, chunk) for text in texts]
    else:
        found = _encode_whole(runner, texts)
    if not all(np.isfinite(rows).all() for rows in found):
        raise not_finite(runner)
    return found


def _encode_whole(runner: Runner, texts: Sequence[Text]) -> list[FloatArray]:
    manifest = runner.manifest
    found: list[FloatArray] = []
    for batch in batches(texts, runner.limits.tokens, runner.limits.sequences):
        types = [text.token_types for text in batch] if any(len(text.token_types) for text in batch) else None
        made = make_text_batch([text.token_ids for text in batch], types)
        # Of an encoder of sound, only its test has texts.
        conformer = manifest.spec.conformer
        results = runner.embed(made if conformer is None else with_test_frames(made, conformer))
        if conformer is not None or (manifest.classifier is not None and manifest.classifier.per_token):
            stops = np.cumsum([len(text.token_ids) for text in batch])
            found += np.split(results, stops[:-1])
        else:
            found += list(results)
    return found


def batches(texts: Sequence[Text], most_tokens: int, most_texts: int) -> Iterator[list[Text]]:
    """Texts in their order, in batches of at most so many tokens and texts. A longer text is a batch of its own."""
    batch: list[Text] = []
    tokens = 0
    for text in texts:
        if batch and (tokens + len(text.token_ids) > most_tokens or len(batch) == most_texts):
            yield batch
            batch, tokens = [], 0
        batch.append(text)
        tokens += len(text.token_ids)
    if batch:
        yield batch


def check_text(runner: Runner, text: Text) -> None:
    """Raises RequestError for a text that the bundle does not accept."""
    check_tokens(runner, text.token_ids)
    types, known = text.token_types, max(1, runner.manifest.spec.num_token_types)
    if len(types) not in (0, len(text.token_ids)):
        raise RequestError(f"the text has {len(text.token_ids)} tokens, but the types of {len(types)}")
    wrong = next((each for each in types if not 0 <= each < known), None)
    if wrong is not None:
        raise RequestError(f"token type {wrong} is unknown; this model has types 0 to {known - 1}")


def encode_in_chunks(runner: Runner, token_ids: Sequence[int], chunk: int) -> FloatArray:
    """The results (E,) or (L,) of a text's last token, whose keys and values are stored on the runner's first pages,
    and whose states in its first slot.
    """
    manifest = runner.manifest
    for start in range(0, len(token_ids), chunk):
        part = token_ids[start : start + chunk]
        length = start + len(part)
        last = [len(part) - 1] if length == len(token_ids) else []
        rows = runner.embed(
            make_batch([Chunk(part, start, range(manifest.pages_for(length)), last, state=(0, 0))], manifest.page_size)
        )
    vector: FloatArray = rows[0]
    return vector


def finished(vector: FloatArray, spec: EmbeddingSpec, dimensions: int | None = None) -> FloatArray:
    """A vector of a plan shortened to ``dimensions``, then scaled to length 1 if the model does that."""
    cut = vector[:dimensions]
    return normalized(cut) if spec.normalize else cut


def normalized(vector: FloatArray) -> FloatArray:
    """The vector scaled to length 1; zeros stay zeros."""
    scaled: FloatArray = vector / max(float(np.linalg.norm(vector)), 1e-12)
    return scaled


def probabilities(scores: FloatArray, spec: ClassifierSpec) -> FloatArray:
    """What the model's activation makes of scores (.., L)."""
    found: FloatArray = scores
    if spec.activation == "sigmoid":
        # Neither exponential overflows.
        falling = np.exp(-np.abs(scores))
        found = np.where(scores >= 0, 1, falling) / (1 + falling)
    if spec.activation == "softmax":
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        found = weights / weights.sum(axis=-1, keepdims=True)
    return found
