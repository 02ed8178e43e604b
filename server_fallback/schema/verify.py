"""/v1/nearfar/verify (extension): a client guesses tokens, the server says which hold. JSON messages over one WebSocket, one answer each.

    client  open      the prompt in token ids, and how to choose tokens
    server  opened    how many drafts a message may have
    client  draft     guesses at the next tokens, none to get one token
    server  accepted  the guesses that hold, and one token more; with finish_reason where the answer ends
    ...
    server  error     instead of any of these, as OpenAI's errors are; then it closes

The server closes with 1000 at the end of the answer and with 4000 plus the HTTP status of the error after an error. A client that has
enough closes.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from .common import Answer, ErrorDetail, Int64, Items, Request

# Raised where an older client would misread what the messages say.
VERSION = 1
# What a WebSocket is asked for with, beside the key of those that cannot set headers: KEY_PROTOCOL and the key in base64url, without "=".
PROTOCOL = "nearfar.verify"
KEY_PROTOCOL = "nearfar.key."
MAX_DRAFTS = 64


class VerifyOpen(Request):
    """``tokenizer_sha256`` is of the client's tokenizer.json, which must be the server's, for token ids mean nothing else.

    Greedy where no ``temperature`` is given; with one, tokens are those that the same ``seed`` gives without drafts.
    """

    type: Literal["open"]
    version: int
    model: str
    tokenizer_sha256: str
    prompt: Items[int]
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0)] | None = None
    min_p: Annotated[float, Field(ge=0, lt=1)] | None = None
    seed: Int64 | None = None
    priority: Int64 | None = None


class VerifyDraft(Request):
    type: Literal["draft"]
    tokens: Annotated[Items[int], Field(max_length=MAX_DRAFTS)]


class VerifyOpened(Answer):
    """``max_drafts``: of a message that has more, the rest is not checked. ``context``: the longest answer and its prompt, in tokens."""

    type: Literal["opened"] = "opened"
    version: int = VERSION
    context: int
    max_drafts: int


class VerifyAccepted(Answer):
    """``tokens`` are the answer's next. ``cached_tokens``: of the tokens before, those that were not computed again."""

    type: Literal["accepted"] = "accepted"
    tokens: list[int]
    finish_reason: Literal["stop", "length"] | None = None
    cached_tokens: int


class VerifyError(Answer):
    type: Literal["error"] = "error"
    error: ErrorDetail
