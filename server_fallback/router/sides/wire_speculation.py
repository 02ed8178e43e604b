"""Speculation across the wire: a near model guesses several tokens at a time, and a far model with the same tokenizer
checks them.

The tokens are those that the far model alone would give, greedy or sampled with a seed. The far side gains: it needs
fewer forwards per token. `schema/verify.py` defines the messages. Leviathan et al. 2023.
"""

from __future__ import annotations

import secrets
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException
from websockets.typing import Subprotocol

from nearfar.compiler.runtime.errors import DeviceError, NearfarError, QueueFull, RequestError, Unavailable

from ...engine.request import AnswerEnd, FinishReason, GeneratedToken, TokenRequest
from ...engine.verification import VerifyingSource
from ...executors.http_transport import tls_failure, trusting
from ...schema.common import NOT_NOW_STATUSES, ErrorDetail, Reply
from ...schema.verify import PROTOCOL, VERSION, VerifyAccepted, VerifyDraft, VerifyError, VerifyOpen, VerifyOpened
from .near_drafts import NearDrafts

PATH = "/v1/nearfar/verify"
# The size of a client's frame header: with the mask, and with two bytes of length for a longer message.
FRAME_BYTES, LONG_FRAME_BYTES, LONG_MESSAGE = 6, 8, 125
OPEN_SECONDS = 20.0
# This many tokens of the answer before the guesses are searched together with them.
SEARCHED_TOKENS = 256
# Larger numbers are not token ids of any tokenizer.
MAX_TOKEN_ID = 1 << 31
# Added to the HTTP status of an error, it is the server's close code.
CLOSE_CODES = 4000

MessageT = TypeVar("MessageT", VerifyOpened, VerifyAccepted)
MESSAGES: TypeAdapter[VerifyOpened | VerifyAccepted | VerifyError] = TypeAdapter(
    VerifyOpened | VerifyAccepted | VerifyError
)


@dataclass(frozen=True, slots=True)
class FarModel:
    """``url`` of the server, with or without /v1; ``model`` is the server's name for the model.

    ``tokenizer_sha256`` is the hash of the near tokenizer.json. ``ca``: see `make_upstream`.
    """

    url: str
    model: str
    tokenizer_sha256: str
    api_key: str | None = None
    ca: Path | None = None

    @property
    def address(self) -> str:
        return "ws" + self.url.removesuffix("/").removesuffix("/v1").removeprefix("http") + PATH


@dataclass(slots=True)
class WireCounts:
    """Totals of all answers: rounds, guessed tokens, accepted guesses, all tokens, and bytes on the wire with the
    frames' headers.
    """

    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    tokens: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0


@dataclass(slots=True)
class WireSpeculation:
    """A `TokenSource`: the far model's answers, guessed by the near engine, which the caller still owns.

    ``may_send`` gets the end of the answer with the guesses after it, before the guesses are sent; None if all may be
    sent.
    """

    near: VerifyingSource
    far: FarModel
    draft_tokens: int = 4
    counts: WireCounts = field(default_factory=WireCounts)
    may_send: Callable[[Sequence[int]], Awaitable[bool]] | None = None

    async def generate(self, request: TokenRequest) -> AsyncGenerator[GeneratedToken | AnswerEnd, None]:
        """As `TokenEngine.generate`. Closing it early ends the answer on both sides.

        Raises RequestError for requests that cannot be guessed or checked: its details' ``code`` is
        "tokenizer_differs", "verify_version", "verify_unavailable" (the server, or its model, does not check drafts) or
        "wrong_key"; Unavailable if the server cannot be reached or breaks off.
        """
        request = checkable(request)
        started = time.monotonic()
        first_at: float | None = None
        count, cached = 0, 0
        answer = deque[int](maxlen=SEARCHED_TOKENS)
        async with self._connected(request) as (socket, opened):
            drafts = NearDrafts(self.near, request, min(self.draft_tokens, opened.max_drafts))
            try:
                while True:
                    guesses = await drafts.next()
                    if guesses and self.may_send is not None and not await self.may_send([*answer, *guesses]):
                        guesses = []
                    await self._send(socket, VerifyDraft(type="draft", tokens=guesses))
                    drafts.draft_ahead()
                    accepted = await self._receive(socket, VerifyAccepted)
                    if not all(0 <= token_id < MAX_TOKEN_ID for token_id in accepted.tokens):
                        raise Unavailable(f"{self.far.url}: sent an invalid token id; is it nearfar serve?")
                    answer.extend(accepted.tokens)
                    await drafts.accept(accepted.tokens)
                    self._count(guesses, accepted)
                    cached = cached if count else accepted.cached_tokens
                    first_at = first_at or time.monotonic()
                    reason: FinishReason | None = accepted.finish_reason
                    for token_id in accepted.tokens:
                        if token_id in request.stop_token_ids:
                            reason = "stop"
                            break
                        if count == request.max_tokens:
                            # Do not rely on the server to stop at the limit.
                            reason = "length"
                            break
                        count += 1
                        yield GeneratedToken(token_id)
                    if reason is not None:
                        now = time.monotonic()
                        first = first_at - started
                        yield AnswerEnd(reason, len(request.prompt_ids), count, cached, 0.0, first, now - started)
                        return
            finally:
                await drafts.close()

    @asynccontextmanager
    async def _connected(self, request: TokenRequest) -> AsyncIterator[tuple[ClientConnection, VerifyOpened]]:
        tls: dict[str, Any] = {}
        if self.far.ca is not None and self.far.address.startswith("wss:"):
            tls["ssl"] = trusting(self.far.ca)
        headers = {}
        if self.far.api_key is not None:
            headers["Authorization"] = f"Bearer {self.far.api_key}"
        if request.deadline is not None:
            headers["X-Request-Timeout-Ms"] = str(max(1, int((request.deadline - time.monotonic()) * 1000)))
        try:
            socket = await connect(
                self.far.address,
                additional_headers=headers,
                subprotocols=[Subprotocol(PROTOCOL)],
                compression=None,
                open_timeout=OPEN_SECONDS,
                **tls,
            )
        except InvalidStatus as error:
            # A server without this route responds 403 or 404. Our server reports errors after the connection is open.
            status, message = (
                error.response.status_code,
                "the server has no /v1/nearfar/verify, or refuses access to it",
            )
            code = "verify_unavailable" if status in (403, 404) else None
            raise far_error(self.far.url, status, ErrorDetail(message=message, type="", code=code)) from error
        except (OSError, TimeoutError, WebSocketException) as error:
            failure = tls_failure(error) or f"cannot be reached ({error}); is the server running?"
            raise Unavailable(f"{self.far.url}: {failure}") from error
        try:
            await self._send(socket, self._opening(request))
            opened = await self._receive(socket, VerifyOpened)
            if opened.version != VERSION:
                message = (
                    f"{self.far.url}: uses version {opened.version} of these messages, this client version {VERSION}; "
                    "update the older of them"
                )
                raise RequestError(message, code="verify_version")
            yield socket, opened
        finally:
            await socket.close()

    def _opening(self, request: TokenRequest) -> VerifyOpen:
        sampling = request.sampling
        return VerifyOpen(
            type="open",
            version=VERSION,
            model=self.far.model,
            tokenizer_sha256=self.far.tokenizer_sha256,
            prompt=list(request.prompt_ids),
            max_tokens=request.max_tokens,
            **sampling.changed(),
            seed=sampling.seed if sampling.temperature else None,
            priority=request.priority or None,
        )

    async def _send(self, socket: ClientConnection, message: VerifyOpen | VerifyDraft) -> None:
        text = message.model_dump_json(exclude_none=True)
        self.counts.sent_bytes += len(text) + (FRAME_BYTES if len(text) <= LONG_MESSAGE else LONG_FRAME_BYTES)
        try:
            await socket.send(text)
        except ConnectionClosed:
            # The server's last message has the reason.
            return

    async def _receive(self, socket: ClientConnection, kind: type[MessageT]) -> MessageT:
        try:
            text = await socket.recv()
        except ConnectionClosed as error:
            raise Unavailable(f"{self.far.url}: broke off ({error})", retryable=True) from error
        # The server's frames have no mask.
        self.counts.received_bytes += len(text) + (FRAME_BYTES if len(text) <= LONG_MESSAGE else LONG_FRAME_BYTES) - 4
        try:
            message: Reply = MESSAGES.validate_json(text)
        except ValidationError as error:
            raise Unavailable(
                f"{self.far.url}: sent an invalid message of /v1/nearfar/verify; is it nearfar serve?"
            ) from error
        if isinstance(message, VerifyError):
            await socket.wait_closed()
            raise far_error(self.far.url, (socket.close_code or 0) - CLOSE_CODES, message.error)
        if not isinstance(message, kind):
            raise Unavailable(f"{self.far.url}: sent {type(message).__name__} instead of {kind.__name__}")
        return message

    def _count(self, guesses: list[int], accepted: VerifyAccepted) -> None:
        counts = self.counts
        counts.rounds += 1
        counts.drafted += len(guesses)
        counts.tokens += len(accepted.tokens)
        counts.accepted += sum(guess == token for guess, token in zip(guesses, accepted.tokens, strict=False))


def checkable(request: TokenRequest) -> TokenRequest:
    """The request with a seed that both sides share.

    Raises RequestError for parameters that drafts cannot be checked with.
    """
    sampling = request.sampling
    options: Mapping[str, Any] = {
        "penalties": sampling.penalizes,
        "logit_bias": sampling.logit_bias,
        "constraint": request.constraint is not None,
        "when_full": request.when_full != "stop",
        "logprobs": request.logprobs is not None,
        "last_token_ids": bool(request.last_token_ids),
        "min_tokens": request.min_tokens > 0,
        "ignore_eos": request.ignore_eos,
        "prompt_logprobs": request.prompt_logprobs > 0,
        "adapter": request.adapter is not None,
        "watermark": request.watermark,
    }
    unsupported = ", ".join(name for name, is_set in options.items() if is_set)
    if unsupported:
        raise RequestError(
            f"{unsupported}: not supported when drafts are checked over the wire; "
            "send the request to the far side alone",
            param=unsupported,
        )
    seed = secrets.randbits(32) if sampling.seed is None else sampling.seed
    return replace(request, sampling=replace(sampling, seed=seed))


def far_error(url: str, status: int, error: ErrorDetail) -> NearfarError:
    """The server's refusal as one of our errors, by the HTTP status that it stands for."""
    message, param = f"{url}: {error.message}", {} if error.param is None else {"param": error.param}
    if status in (401, 403) and error.code != "verify_unavailable":
        return RequestError(f"{message}; use a valid API key", code="wrong_key")
    if status == 429:
        return QueueFull(message)
    if status in NOT_NOW_STATUSES:
        return Unavailable(message)
    if 400 <= status < 500:
        return RequestError(message, code=error.code, **param)
    return DeviceError(message)
