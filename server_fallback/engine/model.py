"""The properties of a model that the engine needs."""

from __future__ import annotations

from dataclasses import dataclass

from nearfar.compiler.bundle.manifest import Description
from nearfar.compiler.runtime.host_tables import gathers


@dataclass(frozen=True, slots=True)
class TokenModel:
    """``context``: the longest sequence in tokens.

    ``gathers``: a step needs the ids of its tokens on the host, so no step starts before the previous one was read.
    ``is_recurrent``: layers have states of all tokens so far, from which no token can be taken away.
    ``image_token_id``: the placeholder of a picture's features, of ``feature_size`` numbers each, and
    ``sound_token_id`` that of a sound's; None if the model does not see or hear. ``whole_images``: each token of a
    picture sees all of it. ``rotates_by_columns``: tokens of a picture have positions by row and column. ``bundle``:
    the bundle's id, "" without one.
    """

    vocab_size: int
    end_token_ids: frozenset[int]
    context: int
    page_size: int
    gathers: bool = False
    is_recurrent: bool = False
    image_token_id: int | None = None
    sound_token_id: int | None = None
    feature_size: int = 0
    whole_images: bool = False
    rotates_by_columns: bool = False
    bundle: str = ""

    @staticmethod
    def of(manifest: Description) -> TokenModel:
        spec, images = manifest.spec, manifest.images if manifest.sees else None
        sounds = manifest.sounds if manifest.hears else None
        return TokenModel(
            vocab_size=spec.vocab_size,
            end_token_ids=frozenset(spec.eos_token_ids),
            context=manifest.context,
            page_size=manifest.page_size,
            gathers=gathers(manifest),
            is_recurrent=manifest.keeps_states,
            image_token_id=None if images is None else images.prompt.placeholder_id,
            sound_token_id=None if sounds is None else sounds.prompt.placeholder_id,
            feature_size=spec.feature_size,
            whole_images=images is not None and spec.vision is not None and spec.vision.both_ways != "none",
            rotates_by_columns=spec.vision is not None and bool(spec.vision.mrope_section),
        )
