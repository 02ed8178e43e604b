"""/v1/nearfar/verify (extension): a client drafts tokens, and the server returns those that it accepts. One answer is
one WebSocket with JSON messages.

    client  open      the prompt in token ids, and the sampling parameters
    server  opened    how many drafts a message may have
    client  draft     guesses at the next tokens; without any, one token is returned
    server  accepted  the accepted guesses and one token more; with finish_reason if the answer ends
    ...
    server  error     instead of any of these, in the form of OpenAI's errors; then the server closes

The server closes with 1000 at the end of the answer and with 4000 plus the HTTP status of the error after an error. A
client that needs no further tokens closes the socket.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from .common import ErrorDetail, Int64, Items, LeftOut, Reply, Request, SamplingParameters

# Incremented when an older client would misread the messages.
VERSION = 1
# The protocol of the WebSocket. Clients that cannot set headers send their key as a second one: KEY_PROTOCOL followed
# by the key in base64url, without "=".
PROTOCOL = "nearfar.verify"
KEY_PROTOCOL = "nearfar.key."
MAX_DRAFTS = 64


class VerifyOpen(SamplingParameters):
    """``tokenizer_sha256`` is the hash of the client's tokenizer.json, which must equal the server's, because otherwise
    the token ids differ.

    Greedy without a ``temperature``; with one, the tokens are those that the same ``seed`` gives without drafts.
    """

    type: Literal["open"]
    version: int
    model: str
    tokenizer_sha256: str
    prompt: Items[int]
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    priority: Int64 | None = None


class VerifyDraft(Request):
    type: Literal["draft"]
    tokens: Annotated[Items[int], Field(max_length=MAX_DRAFTS)]


class VerifyOpened(Reply):
    """``max_drafts``: further drafts of a message are not checked. ``context``: the most tokens of the prompt and the
    answer together.
    """

    type: Literal["opened"] = "opened"
    version: int = VERSION
    context: int
    max_drafts: int


class VerifyAccepted(Reply):
    """``tokens`` are the next ones of the answer. ``cached_tokens``: the number of earlier tokens that were not
    computed again.
    """

    type: Literal["accepted"] = "accepted"
    tokens: list[int]
    finish_reason: LeftOut[Literal["stop", "length"]] = None
    cached_tokens: int


class VerifyError(Reply):
    type: Literal["error"] = "error"
    error: ErrorDetail
