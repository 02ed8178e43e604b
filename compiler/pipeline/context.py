"""Chooses a bundle's context: the longest sequence, in tokens, that it accepts."""

from __future__ import annotations

from ..formats.checkpoint import Checkpoint
from ..ir.kv_format import kv_format
from ..ir.spec import ModelSpec
from ..runtime.errors import RequestError
from ..runtime.variant import stored_dtype
from .graphs import PAGE_SIZE

DEFAULT_CONTEXT = 4096


def model_context(requested: int | None, spec: ModelSpec) -> int:
    """The requested number of tokens, or the default. Raises RequestError for more than the model's positions."""
    if requested is None:
        return default_context(spec)
    if requested < 1:
        raise RequestError(f"--context {requested}: must be at least 1")
    if requested > spec.max_position_embeddings:
        raise RequestError(
            f"--context {requested}: the model was trained for {spec.max_position_embeddings} positions "
            "('max_position_embeddings'); choose a context of at most that length"
        )
    return requested


def default_context(spec: ModelSpec) -> int:
    # Beyond its original length, such a model rotates all positions in another way.
    changes = spec.rope.scaling in ("dynamic", "longrope")
    original = spec.rope.original_max_position_embeddings if changes else DEFAULT_CONTEXT
    return min(DEFAULT_CONTEXT, spec.max_position_embeddings, original)


def rotation_notes(spec: ModelSpec, context: int) -> list[str]:
    """What a user should know of a RoPE whose factors the context selects, if transformers selects others for a short
    text.
    """
    rope = spec.rope
    differs = rope.scaling == "dynamic" or (rope.scaling == "longrope" and rope.short_factors != rope.long_factors)
    if not differs or context <= rope.original_max_position_embeddings:
        return []
    return [
        f"the context of {context} tokens is beyond the {rope.original_max_position_embeddings} of the model's RoPE "
        f"({rope.scaling}), so texts of every length rotate with the factors of long texts, while transformers rotates "
        f"short texts with others; --context {rope.original_max_position_embeddings} computes short texts as it does"
    ]


def paged_context(
    requested: int | None, spec: ModelSpec, activations: tuple[str, ...], max_binding_bytes: int, kv: str = "activation"
) -> int:
    """The longest sequence that the bundle accepts. Raises RequestError if the model or the target's bindings cannot
    hold it.
    """
    element_bytes = 4 if "float32" in map(stored_dtype, activations) else 2
    form = kv_format(kv)
    row_bytes = spec.head_dim * element_bytes if form is None else 4 * form.words(spec.head_dim)
    bytes_per_token = 2 * spec.num_kv_heads * row_bytes
    largest = min(
        spec.max_position_embeddings,
        max_binding_bytes // max(bytes_per_token, spec.head_dim * 4) // PAGE_SIZE * PAGE_SIZE,
    )
    if requested is None:
        return min(default_context(spec), largest)
    context = model_context(requested, spec)
    if context > largest:
        raise RequestError(
            f"--context {requested}: a layer's keys and values would exceed a binding "
            f"of {max_binding_bytes >> 20} MiB; the maximum is {largest}"
        )
    return context


def unpaged_context(requested: int | None, checkpoint: Checkpoint, max_binding_bytes: int) -> int:
    """The longest text that a bundle without pages accepts, whose rows must fit in a binding."""
    spec = checkpoint.spec
    widest = max(spec.intermediate_size, (spec.num_heads + 2 * spec.num_kv_heads) * spec.head_dim, spec.hidden_size)
    if spec.conformer is not None:
        # The first convolution makes half of a row's steps and bands, each with all channels.
        conformer = spec.conformer
        widest = max(widest, conformer.frames // 2 * (conformer.mel_bins // 2) * conformer.channels)
    largest = min(spec.max_position_embeddings, max_binding_bytes // (4 * widest))
    if requested is None:
        return min(default_context(spec), largest, checkpoint.max_tokens or largest)
    context = model_context(requested, spec)
    if context > largest:
        raise RequestError(
            f"--context {requested}: the rows of a text would exceed a binding of {max_binding_bytes >> 20} MiB; "
            f"the maximum is {largest}"
        )
    return context
