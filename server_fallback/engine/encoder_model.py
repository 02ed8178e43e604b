"""The properties of a model of embeddings or scores that the engine needs."""

from __future__ import annotations

from dataclasses import dataclass

from nearfar.compiler.bundle.manifest import Description


@dataclass(frozen=True, slots=True)
class EncoderModel:
    """``context``: the longest text in tokens. ``page_size`` is None for a model that computes whole texts, without
    pages. ``num_token_types``: 0 if the model does not know types of tokens.
    ``per_token``: it makes scores of each token, not of each text.
    """

    vocab_size: int
    context: int
    page_size: int | None = None
    num_token_types: int = 0
    per_token: bool = False

    @staticmethod
    def of(manifest: Description) -> EncoderModel:
        classifier = manifest.classifier
        return EncoderModel(
            manifest.spec.vocab_size,
            manifest.context,
            manifest.page_size if manifest.paged else None,
            manifest.spec.num_token_types,
            classifier is not None and classifier.per_token,
        )
