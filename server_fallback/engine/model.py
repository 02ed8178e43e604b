"""The properties of a model that the engine needs."""

from __future__ import annotations

from dataclasses import dataclass

from nearfar.compiler.bundle.manifest import Description
from nearfar.compiler.runtime.host_tables import gathers


@dataclass(frozen=True, slots=True)
class TokenModel:
    """``context``: the longest sequence in tokens. ``embeds``: it makes embeddings or scores, and
    generates nothing. Without pages (``paged``), a step holds complete texts.

    ``gathers``: a step needs the ids of its tokens on the host, so no step starts before the previous one was read.
    """

    vocab_size: int
    end_token_ids: frozenset[int]
    context: int
    page_size: int
    embeds: bool = False
    gathers: bool = False
    paged: bool = True
    num_token_types: int = 0

    @staticmethod
    def of(manifest: Description) -> TokenModel:
        spec = manifest.spec
        return TokenModel(
            vocab_size=spec.vocab_size,
            end_token_ids=frozenset(spec.eos_token_ids),
            context=manifest.context,
            page_size=manifest.page_size,
            embeds=not manifest.generates,
            gathers=gathers(manifest),
            paged=manifest.paged,
            num_token_types=spec.num_token_types,
        )
