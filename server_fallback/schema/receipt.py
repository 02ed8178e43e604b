"""Receipts (extension): what a side states of an answer and signs, so that anyone with the bundle and the request can
compute the answer again. `web/src/shared/receipt.ts` has the text that is signed.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from .common import Exactly, LeftOut, Reply
from .limits import MAX_CHOICES, MAX_TEXTS
from .route import Side

Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
Word = Annotated[int, Field(ge=0, le=0xFFFFFFFF)]
Count = Annotated[int, Field(ge=0, le=1 << 53)]
Base64 = Annotated[str, Field(pattern="^[A-Za-z0-9+/]+={0,2}$", max_length=512)]


class Stated(Reply):
    """A part of a receipt. An unknown field is an error, because a reader would not know what was signed."""

    model_config = ConfigDict(extra="forbid", strict=True, json_schema_serialization_defaults_required=True)


class ReceiptSelfTest(Stated):
    """The bundle's self-test on the device. ``largest_deviation`` of a logit is relative to the largest one, null if it
    was not measured or not kept.
    """

    state: Literal["passed", "passed-with-switched-off", "untested"]
    largest_deviation: float | None
    switched_off: Annotated[list[str], Field(max_length=4096)]


class ReceiptDevice(Stated):
    """``activation`` is the dtype of activations, null if a framework of others chooses it."""

    name: Annotated[str, Field(max_length=1024)]
    target: str
    activation: str | None
    self_test: ReceiptSelfTest


class ReceiptSampling(Stated):
    """The sampling parameters of the request with their defaults. A logit bias is a part of the request only."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    frequency_penalty: float
    presence_penalty: float


class ReceiptChoice(Stated):
    """One answer. ``prompt`` and ``answer`` are the hashes of their token ids; the answer's include the token that
    ended it. ``token_ids`` are those of the answer, null unless the request has ``return_token_ids``.
    ``finish_reason`` is null for an answer that was broken off.
    """

    index: Count
    seed: Word
    prompt: Sha256
    prompt_tokens: Count
    answer: Sha256
    answer_tokens: Count
    finish_reason: str | None
    token_ids: list[Count] | None


class Receipt(Stated):
    """``runtime`` is the program and its version, ``time`` the end of the answer in seconds since 1970, ``bundle`` the
    id of the bundle (see `bundleText`), and ``request`` the hash of the request without what only says how its answer
    is delivered. ``adapter`` is the hash of a LoRA adapter's files (`peft.adapter_id`).
    """

    version: Exactly[Literal[1]]
    side: Side
    runtime: Annotated[str, Field(max_length=64)]
    time: Count
    model: Annotated[str, Field(max_length=1024)]
    bundle: Sha256
    adapter: LeftOut[Sha256] = None
    request: Sha256
    device: ReceiptDevice
    sampling: ReceiptSampling
    choices: Annotated[list[ReceiptChoice], Field(min_length=1, max_length=MAX_CHOICES * MAX_TEXTS)]


class AnswerPart(Reply):
    """What one side wrote of an answer of two sides: the text from character ``start`` (code points) up to the next
    part. ``receipt`` is the index in ``receipts`` of the side's own; None if the side was broken off before it signed.
    ``request`` is what the side received, which its receipt covers: it ends with the text before the part. ``changed``:
    the side received placeholders in place of private texts, or descriptions in place of media.
    """

    side: Side
    start: Count
    receipt: Count | None
    request: dict[str, Any] | None
    changed: LeftOut[list[Literal["masked", "described"]]] = None


class ReceiptSignature(Stated):
    """``public_key`` is a SubjectPublicKeyInfo in DER, and ``value`` 64 bytes (RFC 8032, or r and s of FIPS 186), both
    in base64.
    """

    algorithm: Literal["ed25519", "ecdsa-p256"]
    public_key: Base64
    value: Base64


class SignedReceipt(Stated):
    receipt: Receipt
    signature: ReceiptSignature
