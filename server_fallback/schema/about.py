"""/v1/nearfar/about: what a client of ours must know before it shares an answer with a server (extension)."""

from __future__ import annotations

from .common import Answer

# Raised where an older client would misread what /v1/nearfar routes or our extensions say.
API_VERSION = 1
# On this answer and on generated ones: what a request would wait for the device now, in whole milliseconds.
QUEUE_HEADER = "X-Nearfar-Queue-Ms"


class ModelAbout(Answer):
    """``tokenizer_sha256`` is of tokenizer.json. It, ``vocab_size`` and ``context`` are None where an upstream does not tell them.

    ``verify``: the model takes drafts over /v1/nearfar/verify.
    """

    id: str
    context: int | None = None
    tokenizer_sha256: str | None = None
    vocab_size: int | None = None
    tools: bool
    verify: bool = False


class About(Answer):
    api_version: int
    models: list[ModelAbout]
