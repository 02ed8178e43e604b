"""The tasks of models, and the specs of those that make no text of a text: what becomes of the rows of the last layer.

`speech.py` has those of transcription.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from .expr import Count, Natural, Positive
from .speech import CtcSpec, SpeechSpec

# What a model does: it continues a text, or makes a vector of it, or scores its relevance to another, or its labels; or
# it answers typed questions by scores of its own; or it transcribes sound.
Task = Literal["generate", "embed", "rerank", "classify", "decide", "transcribe"]
QuestionKind = Literal["choice", "yes_no", "score"]
Pooling = Literal["last_token", "mean", "cls", "max", "mean_sqrt_len"]


@dataclass(frozen=True, slots=True)
class DenseSpec:
    """A layer after the pooling: ``module`` names its weights, (outputs, inputs) with a bias if ``bias``, and its
    results pass through ``activation``, one of `ops.op.ACTIVATIONS`.
    """

    module: str
    inputs: Count
    outputs: Count
    bias: bool
    activation: str


@dataclass(frozen=True, slots=True)
class PromptSpec:
    """A text that precedes every text of a kind, such as "query"."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class EmbeddingSpec:
    """How to compute a text's vector of ``size`` numbers from the rows of the last layer: ``pooling`` makes one row of
    those of all tokens, the ``dense`` layers follow, and the result is scaled to length 1 if ``normalize``.

    "last_token" and "cls" are the rows of the last and the first token; "mean_sqrt_len" is the sum divided by the
    square root of the number of tokens. ``prompts`` are those that the model was trained with, ``default_prompt`` the
    name of the one for texts of no kind. ``dimensions`` are the lengths to which a vector may be shortened, before it
    is scaled; empty if the model names none.
    """

    pooling: Pooling
    normalize: bool
    size: Count
    dense: tuple[DenseSpec, ...] = ()
    prompts: tuple[PromptSpec, ...] = ()
    default_prompt: str | None = None
    dimensions: tuple[Count, ...] = ()


@dataclass(frozen=True, slots=True)
class TransitionSpec:
    """What each kind of step from one token's label to the next adds to the scores, where labels form spans: they stay
    outside of spans (background), a span starts, continues inside or ends, and after its end the background or another
    span follows.
    """

    background_stay: float = 0.0
    background_to_start: float = 0.0
    inside_to_continue: float = 0.0
    inside_to_end: float = 0.0
    end_to_background: float = 0.0
    end_to_start: float = 0.0


@dataclass(frozen=True, slots=True)
class DecisionKindSpec:
    """The options of a kind of question: the scores from ``first`` on are theirs, in their order. ``labels`` are their
    names in the prompt, at least as many as a question may have options. The softmax of score / ``temperature`` makes
    probabilities.
    """

    kind: QuestionKind
    first: Natural
    labels: tuple[str, ...]
    temperature: Positive


@dataclass(frozen=True, slots=True)
class DecisionSpec:
    """How a model with a decision head answers typed questions (`web/src/shared/questions/head.ts`): its chat template
    writes a prompt for each, whose last token has the scores. ``yes_first``: whether "true" precedes "false" in the
    options of a question of yes or no. ``softcap``: scores are softcap * tanh(score / softcap).
    """

    kinds: tuple[DecisionKindSpec, ...]
    yes_first: bool
    softcap: Positive | None = None


@dataclass(frozen=True, slots=True)
class ClassifierSpec:
    """The scores of a classifier: one number for each of ``labels``, of a text, or with ``per_token`` of each of its
    tokens. ``activation`` makes probabilities of the scores. With ``transitions``, the labels of tokens form spans
    (`forms_spans`), and a text has the labels of the best spans (`web/src/shared/label_spans.ts`); without them, each
    token has its best label.

    ``relevance`` is the label whose probability says how relevant a passage is to a query, for models that score such
    pairs; None for others. ``pooling`` makes the row of a text, before the head's dense layers, or with ``pools_late``
    after them. ``template`` is the text of a pair, with {instruction},
    {query} and {document}; None if the tokenizer joins the two texts. ``instruction`` is the default one.
    ``decision``: its scores answer typed questions and nothing else.
    """

    labels: tuple[str, ...]
    activation: Literal["none", "sigmoid", "softmax"]
    per_token: bool = False
    pooling: Pooling = "cls"
    pools_late: bool = False
    relevance: Natural | None = None
    template: str | None = None
    instruction: str | None = None
    transitions: TransitionSpec | None = None
    decision: DecisionSpec | None = None


def forms_spans(labels: Sequence[str]) -> bool:
    """Whether labels are those of the BIOES scheme: "O", and for each kind of span its first (B-), inner (I-), last
    (E-) and single token (S-); or of BILOU, which writes L- and U- for the last two.
    """
    kinds = {label[2:] for label in labels if label != "O"}
    schemes = (["O", *(f"{part}-{kind}" for kind in kinds for part in parts)] for parts in ("BIES", "BILU"))
    return bool(kinds) and any(sorted(labels) == sorted(scheme) for scheme in schemes)


def task_of(spec: EmbeddingSpec | ClassifierSpec | SpeechSpec | CtcSpec | None) -> Task:
    """The task of a model; ``spec`` is None for one that generates text."""
    if spec is None:
        return "generate"
    if isinstance(spec, SpeechSpec | CtcSpec):
        return "transcribe"
    if isinstance(spec, EmbeddingSpec):
        return "embed"
    if spec.decision is not None:
        return "decide"
    return "classify" if spec.relevance is None else "rerank"
