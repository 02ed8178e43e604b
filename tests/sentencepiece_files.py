"""Small SentencePiece models, trained on the texts of `texts.py`."""

from __future__ import annotations

import io
import json
from functools import cache
from typing import Any

from texts import CORPUS, TEXTS


def trained(**options: Any) -> bytes:
    """The file of a model. ``options``: those of sentencepiece's trainer."""
    return _trained(json.dumps({"minloglevel": 2, **options}))


@cache
def _trained(options: str) -> bytes:
    import sentencepiece

    stored = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([*CORPUS.read_text().splitlines(), *TEXTS[:5]]),
        model_writer=stored,
        **json.loads(options),
    )
    return stored.getvalue()
