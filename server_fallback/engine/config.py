"""The configuration of an engine, and of its scheduler."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from nearfar.compiler.ir.watermark import Watermark
from nearfar.compiler.runtime.page_groups import PageGroup
from nearfar.compiler.runtime.runner import Limits

from ..images.options import IMAGE_CACHE_BYTES
from ..kv_tiers.options import KvTierOptions
from .batching import Batching
from .model import TokenModel
from .speculation import Speculation


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """A step has at most ``max_tokens`` positions, and ``max_sequences`` run at once. The pages of each group must hold
    at least one sequence of ``context`` tokens.

    A step samples at most ``max_rows`` rows; None means one per sequence. Further rows can verify drafts. A sequence
    that had no row for ``patience_steps`` steps has precedence over all others from then on, in the order of arrival;
    with None it waits.

    ``states``: the slots for states of recurrent layers, 0 if the model has none. Those beyond ``max_sequences`` are
    for snapshots. ``whole_images``: no step ends inside an image, because each of its tokens sees all of it.
    """

    page_size: int
    groups: Sequence[PageGroup]
    max_tokens: int
    max_sequences: int
    context: int
    max_rows: int | None = None
    patience_steps: int | None = None
    states: int = 0
    whole_images: bool = False


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """``max_waiting`` requests can be queued besides the running ones; more are refused.

    ``lookahead``: how many steps are submitted before the first of them is read; 1 prepares a step only when the
    previous one is done. This is always the case for a model that ``gathers``. ``patience_steps``: see
    `SchedulerConfig`. ``speculation``: how tokens are drafted, None for no drafts. ``max_mask_wait_seconds`` limits the
    wait of one step for the masks of constrained answers; answers without a mask miss the step.
    ``image_cache_bytes`` of features of images are retained, and the images of unfinished requests may take
    ``max_image_bytes``. ``batching`` is for engines of embeddings and scores. ``watermark`` marks the answers to
    requests that ask for it, and with ``marks_all`` every answer. ``kv_tiers``: where pages go that the device evicts.
    """

    max_waiting: int = 256
    lookahead: int = 2
    patience_steps: int | None = 256
    speculation: Speculation | None = None
    max_mask_wait_seconds: float = 0.02
    image_cache_bytes: int = IMAGE_CACHE_BYTES
    max_image_bytes: int = 1 << 30
    batching: Batching = field(default_factory=Batching)
    watermark: Watermark | None = None
    marks_all: bool = False
    kv_tiers: KvTierOptions = field(default_factory=KvTierOptions)


def scheduler_config(
    limits: Limits, groups: Sequence[PageGroup], model: TokenModel, patience_steps: int | None
) -> SchedulerConfig:
    """The scheduler's configuration for a runner with these limits and page groups."""
    return SchedulerConfig(
        page_size=model.page_size,
        groups=groups,
        max_tokens=limits.tokens,
        max_sequences=max_sequences(limits),
        context=model.context,
        max_rows=limits.rows,
        patience_steps=patience_steps,
        states=limits.states or 0,
        whole_images=model.whole_images,
    )


def max_sequences(limits: Limits) -> int:
    """How many sequences run at once on a runner: each has a sampled row, and a slot for its states if it has any."""
    return min(limits.sequences, limits.rows, limits.states or limits.sequences)
