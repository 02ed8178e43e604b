"""Issues the receipts of a model on this machine: follows an answer's chunks, and adds the signed receipt to the last
one.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from importlib.metadata import version
from typing import Any

from nearfar.compiler.bundle.folder import Bundle, ExportBundle
from nearfar.compiler.bundle.manifest import MANIFEST_FILE, Manifest
from nearfar.compiler.ir.sampling import WORD
from nearfar.compiler.runtime.errors import RequestError
from nearfar.compiler.shared.script import SharedScript

from ..schema.chat import ChatCompletionChunk, ChatCompletionRequest, ChunkChoice
from ..schema.completions import AnswerRequest, CompletionChunk, CompletionChunkChoice
from ..schema.receipt import (
    Receipt,
    ReceiptChoice,
    ReceiptDevice,
    ReceiptSampling,
    ReceiptSelfTest,
    SignedReceipt,
)
from ..schema.route import Side
from ..text.output import Chunks, Output
from .signing import ReceiptKey


@dataclass(frozen=True, slots=True)
class Issuer:
    """Of one bundle on one device. ``bundle`` is its id, ``adapter`` that of a LoRA adapter."""

    key: ReceiptKey
    side: Side
    model: str
    bundle: str
    device: ReceiptDevice
    adapter: str | None = None

    @staticmethod
    def of(
        bundle: Bundle | ExportBundle,
        model: str,
        device: str,
        activation: str | None,
        key: ReceiptKey,
        side: Side = "far",
    ) -> Issuer:
        """The bundle runs on ``device``. A runner that has not passed its bundle's self-test does not open."""
        manifest = bundle.manifest
        tested = isinstance(manifest, Manifest) and manifest.self_test is not None
        test = ReceiptSelfTest(state="passed" if tested else "untested", largest_deviation=None, switched_off=[])
        described = ReceiptDevice(name=device, target=manifest.target, activation=activation, self_test=test)
        return Issuer(key, side, model, bundle_id(bundle), described)

    def issue(self, body: dict[str, Any], choices: Sequence[ReceiptChoice]) -> SignedReceipt:
        """``body`` is the request as it was sent. Raises RequestError for one that receipts do not cover."""
        receipt = Receipt(
            version=1,
            side=self.side,
            runtime=f"nearfar {version('nearfar')}",
            time=int(time.time()),
            model=self.model,
            bundle=self.bundle,
            adapter=self.adapter,
            request=request_hash(body),
            device=self.device,
            sampling=request_sampling(body),
            choices=list(choices),
        )
        return SignedReceipt(receipt=receipt, signature=self.key.sign(receipt.model_dump(mode="json")))


def bundle_id(bundle: Bundle | ExportBundle) -> str:
    """The id that pages know a bundle by; it covers all its files, whose hashes are in the manifest."""
    text = (bundle.path / MANIFEST_FILE).read_text(encoding="utf-8")
    return _hash(SharedScript.of_thread().ask("bundleText", text))


def request_hash(body: dict[str, Any]) -> str:
    """Raises RequestError for a request that receipts do not cover."""
    return _hash(SharedScript.of_thread().ask("requestText", body))


def request_sampling(body: dict[str, Any]) -> ReceiptSampling:
    # JSON writes a float without a fraction as an integer.
    given: dict[str, float] = SharedScript.of_thread().ask("requestSampling", body)
    return ReceiptSampling(**{name: int(value) if name == "top_k" else float(value) for name, value in given.items()})  # type: ignore[arg-type]


def tokens_hash(token_ids: Sequence[int]) -> str:
    """Of the ids as JSON without spaces, which is what `canonicalJson` makes of them."""
    return _hash(f"[{','.join(map(str, token_ids))}]")


def _hash(text: str) -> str:
    return sha256(text.encode()).hexdigest()


def with_receipt(request: AnswerRequest) -> AnswerRequest:
    """The request that is answered instead: with a seed, and with the ids of all tokens."""
    seed = secrets.randbits(32) if request.seed is None else request.seed
    return request.model_copy(update={"seed": seed, "return_token_ids": True})


@dataclass(slots=True)
class _Choice:
    prompt_ids: list[int] | None = None
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None


class Receipted(Chunks[Any]):
    """Sends an answer's chunks on, without the ids of tokens unless ``request`` wants them, and adds the receipt to the
    last, which has the usage. ``request`` is the one that the client sent as ``body``, and ``asked`` the result of
    `with_receipt`.
    """

    def __init__(
        self, issuer: Issuer, request: AnswerRequest, asked: AnswerRequest, body: dict[str, Any], output: Output[Any]
    ) -> None:
        super().__init__(self._send)
        self._issuer, self._asked, self._body, self._output = issuer, asked, body, output
        self._lists_ids = bool(request.return_token_ids)
        self._choices: dict[int, _Choice] = {}
        self._prompt_ids: list[int] | None = None

    @property
    def has_room(self) -> bool:  # type: ignore[override]
        has_room: bool = self._output.has_room
        return has_room

    async def room(self) -> None:
        await self._output.room()

    @property
    def has_tokens(self) -> bool:
        return any(choice.token_ids for choice in self._choices.values())

    def signed(self, *, is_whole: bool) -> SignedReceipt:
        """``is_whole`` is false for an answer that was broken off."""
        choices = [self._stated(index, is_whole=is_whole) for index in sorted(self._choices)]
        return self._issuer.issue(self._body, choices)

    def _send(self, chunk: ChatCompletionChunk | CompletionChunk) -> None:
        if isinstance(chunk, ChatCompletionChunk) and chunk.prompt_token_ids is not None:
            self._prompt_ids = chunk.prompt_token_ids
        for choice in chunk.choices:
            self._note(choice)
        if chunk.usage is not None:
            chunk = chunk.model_copy(update={"receipts": [self.signed(is_whole=True)]})
        elif not self._lists_ids:
            left: Sequence[Any] = [each for choice in chunk.choices if (each := without_ids(choice)) is not None]
            if not left:
                return
            update: dict[str, Any] = {"choices": left}
            if isinstance(chunk, ChatCompletionChunk):
                update["prompt_token_ids"] = None
            chunk = chunk.model_copy(update=update)
        self._output.chunk(chunk)

    def _note(self, choice: ChunkChoice | CompletionChunkChoice) -> None:
        known = self._choices.setdefault(choice.index, _Choice())
        known.token_ids += choice.token_ids or ()
        known.finish_reason = choice.finish_reason or known.finish_reason
        if isinstance(choice, CompletionChunkChoice) and choice.prompt_token_ids is not None:
            known.prompt_ids = choice.prompt_token_ids

    def _stated(self, index: int, *, is_whole: bool) -> ReceiptChoice:
        asked, choice = self._asked, self._choices[index]
        prompt_ids = self._prompt_ids if choice.prompt_ids is None else choice.prompt_ids
        assert prompt_ids is not None, "the request wants the ids of the prompt"
        assert asked.seed is not None
        return ReceiptChoice(
            index=index,
            seed=(asked.seed + index % (asked.n or 1)) & WORD,
            prompt=tokens_hash(prompt_ids),
            prompt_tokens=len(prompt_ids),
            answer=tokens_hash(choice.token_ids),
            answer_tokens=len(choice.token_ids),
            finish_reason=choice.finish_reason if is_whole else None,
            token_ids=choice.token_ids if self._lists_ids else None,
        )


def without_ids(choice: ChunkChoice | CompletionChunkChoice) -> ChunkChoice | CompletionChunkChoice | None:
    """None for a choice that has nothing else."""
    if isinstance(choice, ChunkChoice):
        left: ChunkChoice | CompletionChunkChoice = choice.model_copy(update={"token_ids": None})
        is_first = choice.delta.role is not None
        has_more = choice.has_text or is_first
    else:
        left = choice.model_copy(update={"token_ids": None, "prompt_token_ids": None})
        has_more = choice.has_text or choice.prompt_logprobs is not None
    return left if has_more or choice.logprobs is not None or choice.finish_reason is not None else None


def body_of(
    request: AnswerRequest, body: dict[str, Any] | None, issuer: Issuer | None
) -> tuple[Issuer, dict[str, Any]]:
    """The issuer, and the request as it was sent. Raises RequestError if there is none."""
    if issuer is None or body is None:
        raise RequestError(
            "receipt: this model signs no receipts; start the server with --receipt-key FILE, or leave it out",
            param="receipt",
        )
    if isinstance(request, ChatCompletionRequest) and request.functions is not None:
        raise RequestError(
            "receipt: is not supported with functions, the older form of tools; send tools", param="receipt"
        )
    return issuer, body
