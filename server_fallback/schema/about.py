"""/v1/nearfar/about: what our client must know about a server before it shares an answer with it (extension)."""

from __future__ import annotations

from .common import Reply

# Incremented when an older client would misread the /v1/nearfar routes or our extensions.
API_VERSION = 1
# The header on this answer and on generated ones: how long a request would wait for the device now, in integer
# milliseconds.
QUEUE_HEADER = "X-Nearfar-Queue-Ms"


class ModelAbout(Reply):
    """``tokenizer_sha256`` is the hash of tokenizer.json. It, ``vocab_size`` and ``context`` are None if an upstream
    does not report them. ``model`` is its name in its manifest, None for upstreams and pairs.

    ``verify``: the model checks drafts over /v1/nearfar/verify. ``prefill``: it computes prompts over
    /v1/nearfar/prefill. ``vision``: it reads images. ``video``: it reads videos. ``sound``: it reads recordings in
    chats, which the server's transcriber writes down. ``transcribes``: it writes down sound, and answers no chats.
    """

    id: str
    model: str | None = None
    context: int | None = None
    tokenizer_sha256: str | None = None
    vocab_size: int | None = None
    tools: bool
    verify: bool = False
    prefill: bool = False
    vision: bool = False
    video: bool = False
    sound: bool = False
    transcribes: bool = False


class About(Reply):
    api_version: int
    models: list[ModelAbout]
