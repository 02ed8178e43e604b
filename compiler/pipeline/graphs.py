"""The graph of each plan of a checkpoint: what generates text and drafts it, reads sound, makes vectors or computes
scores.

Encoders, and decoders that make vectors or scores, read complete texts without pages. A decoder whose layers cannot do
without pages or recurrent states makes the vector or the scores of a text's last token, which arrives in chunks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ..arch import by_model_type, ctc_of, drafting, encoder_of, gemma4_assistant, listening
from ..arch.draft_heads import keep_last_rows, keep_sampled_rows
from ..arch.encoder import EncoderGraph, HeadLayout, finish
from ..arch.gemma4_text import LAYOUT
from ..arch.hearing import ear_of
from ..arch.vision import tower_of
from ..bundle.manifest import AUDIO, CLASSIFY, CTC, DRAFT, EMBED, ENCODERS, GENERATE, HEARING, VISION
from ..formats.checkpoint import Checkpoint, StoredMatrix
from ..ir.graph import Graph
from ..ir.speech import CtcSpec, SpeechSpec
from ..ir.tasks import ClassifierSpec, EmbeddingSpec
from ..passes.drop_pages import FormOf, drop_pages
from ..runtime.errors import UnsupportedModel
from .stored_forms import round_activations

PAGE_SIZE = 16
# The plans that make features.
TOWERS = (VISION, HEARING)
# The weights of a tower beside those of a text model.
EIGHT_BITS, FOUR_BITS = "q8f16", "q4f16"
# A classifier on a decoder.
HEAD = HeadLayout(classifier="score", classifier_bias=False, token_classifier="score")
DECISION_HEAD = replace(HEAD, classifier_bias=True)


def graphs_of(
    checkpoint: Checkpoint, context: int, *, page_size: int = PAGE_SIZE, whole: bool = False
) -> dict[str, Graph]:
    """The graph of each plan, by the plan's name. ``whole``: recurrent layers read complete texts as well, from zeros,
    as in the graphs of frameworks. Raises UnsupportedModel for a decoder that cannot do what the checkpoint is for.
    """
    spec, task = checkpoint.spec, checkpoint.task
    encoder = encoder_of(spec.model_type)
    # Of a config.json alone, the tokens of speech are not known.
    if spec.audio is not None:
        family = listening(spec.model_type)
        return {GENERATE: family.forward(spec, page_size, context), AUDIO: family.listen(spec, page_size)}
    assert not isinstance(task, SpeechSpec)
    sound = ctc_of(spec.model_type)
    if sound is not None:
        return {CTC: sound.encode_sound(spec, context)}
    assert not isinstance(task, CtcSpec)
    if task is None:
        graph = round_activations(by_model_type(spec.model_type).forward(spec, page_size, context), checkpoint)
        see = {} if spec.vision is None else {VISION: vision_graph(checkpoint)}
        if spec.hearing is not None:
            see[HEARING] = ear_of(spec.hearing.model_type).hear(spec)
        if checkpoint.assistant is not None:
            own = gemma4_assistant.draft_tokens(spec, checkpoint.assistant, page_size, context)
            return {GENERATE: keep_sampled_rows(graph, LAYOUT.final_norm, page_size), DRAFT: own, **see}
        if not spec.draft_layers:
            return {GENERATE: graph, **see}
        heads = round_activations(drafting(spec.model_type).draft_tokens(spec, page_size, context), checkpoint)
        return {GENERATE: keep_last_rows(graph, page_size), DRAFT: heads, **see}
    name = EMBED if isinstance(task, EmbeddingSpec) else CLASSIFY
    if encoder is not None:
        return {name: encoder.encode(spec, context, task)}
    paged = by_model_type(spec.model_type).forward(spec, page_size, context, embeds=True)
    paged = round_activations(paged, checkpoint)
    # A factor by position applies only to long contexts, but it must not decide whether a plan has pages.
    needs_pages = spec.rope.query_beta or (spec.states is not None and not whole)
    unpaged = None if needs_pages else drop_pages(paged, causal=spec.causal, form_of=stored_form(checkpoint))
    if unpaged is None:
        require_last_token(checkpoint, task)
    graph = paged if unpaged is None else unpaged
    (rows,) = graph.outputs.values()
    decides = isinstance(task, ClassifierSpec) and task.decision is not None
    head = DECISION_HEAD if decides else HEAD
    return {name: finish(EncoderGraph(spec, context, graph=graph), rows, task, head)}


def vision_graph(checkpoint: Checkpoint) -> Graph:
    """The graph of the tower of a model that sees pictures."""
    spec, images = checkpoint.spec, checkpoint.images
    assert spec.vision is not None
    assert images is not None
    return tower_of(spec.vision.model_type).see(spec, images.positions.taps)


def with_eight_bits(graphs: Mapping[str, Graph]) -> dict[str, Graph]:
    """The graphs of all plans, those of towers and of encoders of sound with 8 bits a weight, as beside a text model
    with about 4: pictures and sound become features once, and their errors reach every token of an answer.
    """
    found = dict(graphs)
    for plan in (each for each in ENCODERS if each in graphs):
        parameters = {
            name: each if each.columns is None else replace(each, form=EIGHT_BITS)
            for name, each in graphs[plan].parameters.items()
        }
        found[plan] = replace(graphs[plan], parameters=parameters)
    return found


def reads_complete_texts(checkpoint: Checkpoint) -> bool:
    """Whether the checkpoint's plan has no pages."""
    if checkpoint.task is None or isinstance(checkpoint.task, SpeechSpec):
        return False
    (graph,) = graphs_of(checkpoint, checkpoint.spec.max_position_embeddings).values()
    return "page_ids" not in graph.inputs


def stored_form(checkpoint: Checkpoint) -> FormOf:
    """The form in which the checkpoint stores a tensor of a name; None for floats and missing tensors."""

    def form_of(name: str) -> str | None:
        tensor = checkpoint.tensors.get(name)
        return tensor.form.name if isinstance(tensor, StoredMatrix) else None

    return form_of


def require_last_token(checkpoint: Checkpoint, task: EmbeddingSpec | ClassifierSpec) -> None:
    """Raises UnsupportedModel for what a plan with pages cannot compute: it has the row of a text's last token."""
    spec, per_token = checkpoint.spec, isinstance(task, ClassifierSpec) and task.per_token
    if spec.causal and task.pooling == "last_token" and not per_token:
        return
    does = "makes vectors" if isinstance(task, EmbeddingSpec) else "computes scores"
    of = "each token" if per_token else f"texts by pooling {task.pooling}"
    seen = "" if spec.causal else ", whose tokens see those after them"
    raise UnsupportedModel(
        f"{checkpoint.path}: this {spec.model_type} model {does} of {of}{seen}, but its layers, or the formats of its "
        "weights, need pages of keys and values or recurrent states, with which only the last token has a result",
        model_type=spec.model_type,
    )
