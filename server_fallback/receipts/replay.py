"""Replay: a source of tokens that has them from a receipt, and computes by teacher forcing what a runner would choose.

The prompt and the answer are computed in one pass, in blocks of positions. At each position of the answer, the logits
get the request's penalties, bias and masks, and the token is chosen with the receipt's seed, as an engine does it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from nearfar.compiler.bundle.manifest import Manifest
from nearfar.compiler.ir.sampling import (
    BIAS,
    COUNTS,
    MASK,
    FloatArray,
    Settings,
    adjust_logits,
    choose_token,
    token_counts,
)
from nearfar.compiler.runtime.errors import NearfarError, RequestError
from nearfar.compiler.runtime.generate import PREFILL_CHUNK, append, not_finite
from nearfar.compiler.runtime.runner import Runner

from ..engine.check_request import check_request
from ..engine.min_tokens import both_masks, end_ids, mask_without
from ..engine.model import TokenModel
from ..engine.request import AnswerEnd, FinishReason, GeneratedToken, PromptLogprobs, TokenRequest
from ..engine.resolved_sampling import dense_bias, resolve_sampling
from ..engine.stats import EngineStats
from ..schema.receipt import Receipt, ReceiptChoice
from .issuer import tokens_hash
from .rounding import may_choose


@dataclass(frozen=True, slots=True)
class Difference:
    """Position ``position`` of an answer has the token ``stated``, and this machine chooses ``computed``. Probabilities
    are those of the softmax of the logits with the request's penalties, bias and masks, at temperature 1.
    ``is_rounding``: other logits within the tolerances of the bundle's self-test choose ``stated``.
    """

    position: int
    stated: int
    computed: int
    stated_probability: float
    computed_probability: float
    is_rounding: bool

    @property
    def text(self) -> str:
        return (
            f"token {self.position} is {self.stated}, whose probability is {self.stated_probability:.3g}, and this "
            f"machine chooses {self.computed} ({self.computed_probability:.3g})"
        )


@dataclass(slots=True)
class Replayed:
    """``fault``: why the answer cannot be one to this request, whatever was computed. ``ties`` counts the differences
    that are rounding; ``first`` is the first difference, or the first that is not rounding.
    """

    tokens: int = 0
    ties: int = 0
    differences: int = 0
    first: Difference | None = None
    fault: str | None = None

    def add(self, difference: Difference) -> None:
        self.differences += 1
        self.ties += difference.is_rounding
        if self.first is None or (self.first.is_rounding and not difference.is_rounding):
            self.first = difference


class Unlike(NearfarError):
    """The tokens of a receipt are not those of an answer to the request."""


@dataclass(slots=True)
class Replay:
    """An `Engine` of `executors.local` for the answers of one receipt, whose tokens are ``answers`` by the order of the
    choices. It does not own the runner. ``adapter``: see `Chunk`.
    """

    runner: Runner
    model: TokenModel
    receipt: Receipt
    answers: Sequence[Sequence[int]]
    adapter: int = -1
    results: list[Replayed] = field(default_factory=list)

    @property
    def context(self) -> int:
        return self.model.context

    @property
    def max_drafts(self) -> int:
        return 0

    def arrive(self) -> int:
        return 0

    def stats(self) -> EngineStats:
        return EngineStats()

    async def close(self, drain_seconds: float = 0.0, reason: NearfarError | None = None) -> None:
        """Nothing is open."""

    async def generate(
        self, request: TokenRequest
    ) -> AsyncGenerator[PromptLogprobs | GeneratedToken | AnswerEnd, None]:
        """The requests of the choices arrive in their order. Raises Unlike at a fault, and DeviceError."""
        index = len(self.results)
        result = Replayed()
        self.results.append(result)
        choice, token_ids = self.receipt.choices[index], self.answers[index]
        try:
            self._check(request, choice)
            for item in self._items(request, token_ids, result, is_whole=choice.finish_reason is not None):
                yield item
        except Unlike as error:
            result.fault = error.message
            raise

    def _check(self, request: TokenRequest, choice: ReceiptChoice) -> None:
        check_request(request, self.model)
        if tokens_hash(request.prompt_ids) != choice.prompt:
            raise Unlike(
                f"the request's prompt has {len(request.prompt_ids)} tokens with another hash than the "
                f"{choice.prompt_tokens} of the receipt"
            )
        if request.sampling.seed != choice.seed:
            raise Unlike(f"the receipt has seed {choice.seed}, and the request has {request.sampling.seed}")

    def _items(
        self, request: TokenRequest, token_ids: Sequence[int], result: Replayed, *, is_whole: bool
    ) -> Iterator[GeneratedToken | AnswerEnd]:
        ends = request.stop_token_ids if request.ignore_eos else self.model.end_token_ids | request.stop_token_ids
        constraint, answer = request.constraint, list[int]()
        for position, (token_id, logits) in enumerate(zip(token_ids, self._logits(request, token_ids), strict=True)):
            if (reason := self._finish_reason(request, answer)) is not None:
                raise Unlike(f"the answer ends after {len(answer)} tokens ({reason}), and the receipt has more")
            self._compare(request, answer, logits, token_id, position, result)
            result.tokens += 1
            if token_id in ends:
                if position + 1 < len(token_ids):
                    raise Unlike(f"token {position} ends the answer, and the receipt has more")
                yield self._end(request, answer, "stop", GeneratedToken(token_id))
                return
            answer.append(token_id)
            if constraint is not None:
                try:
                    constraint.accept(token_id)
                except Exception as error:
                    raise Unlike(f"token {position} is not one that the request's format allows: {error}") from error
            yield GeneratedToken(token_id)
        finish_reason = self._finish_reason(request, answer)
        # The text layer closes this at a stop string, before it asks for more.
        if finish_reason is None and is_whole:
            raise Unlike(f"the receipt's answer breaks off after {len(answer)} tokens, where nothing ends it")
        yield self._end(request, answer, finish_reason or "length", None)

    def _finish_reason(self, request: TokenRequest, answer: Sequence[int]) -> FinishReason | None:
        """Why the answer ends after these tokens; None if it goes on."""
        if not answer:
            return None
        constraint, full = request.constraint, len(request.prompt_ids) + len(answer) > self.context
        if answer[-1] in request.last_token_ids or (constraint is not None and constraint.finished):
            return "stop"
        if full or (request.max_tokens is not None and len(answer) >= request.max_tokens):
            return "stop" if constraint is not None and constraint.complete else "length"
        return None

    def _end(
        self, request: TokenRequest, answer: Sequence[int], reason: FinishReason, end: GeneratedToken | None
    ) -> AnswerEnd:
        return AnswerEnd(reason, len(request.prompt_ids), len(answer), 0, 0.0, 0.0, 0.0, end)

    def _logits(self, request: TokenRequest, token_ids: Sequence[int]) -> Iterator[FloatArray]:
        """The logits (V,) before each token of the answer. The last token needs none of its own."""
        all_ids, first = [*request.prompt_ids, *token_ids[:-1]], len(request.prompt_ids) - 1
        start = 0
        while start < len(all_ids):
            stop = min(start + PREFILL_CHUNK, len(all_ids))
            rows = [position - start for position in range(max(first, start), stop)]
            output = append(self.runner, all_ids[start:stop], start, rows, Settings(), adapter=self.adapter)
            if rows and not np.isfinite(output.logits).all():
                raise not_finite(self.runner)
            yield from output.logits[: len(rows)]
            start = stop

    def _compare(
        self,
        request: TokenRequest,
        answer: Sequence[int],
        logits: FloatArray,
        token_id: int,
        position: int,
        result: Replayed,
    ) -> None:
        adjusted, settings = self._adjusted(request, answer, logits)
        computed = choose_token(adjusted, settings)
        if computed == token_id:
            return
        error = self._tolerance() * float(np.abs(logits).max())
        x = adjusted.astype(np.float64)
        weights = np.exp(x - x.max())
        probabilities = weights / weights.sum()
        result.add(
            Difference(
                position,
                token_id,
                computed,
                float(probabilities[token_id]),
                float(probabilities[computed]),
                is_rounding=may_choose(adjusted, settings, token_id, error),
            )
        )

    def _adjusted(
        self, request: TokenRequest, answer: Sequence[int], logits: FloatArray
    ) -> tuple[FloatArray, Settings]:
        model, sampling = self.model, request.sampling
        resolved = resolve_sampling(sampling)
        mask = None if request.constraint is None else request.constraint.mask()
        if len(answer) < request.min_tokens:
            no_end = mask_without(end_ids(request, model.end_token_ids), model.vocab_size)
            mask = no_end if mask is None else both_masks(mask, no_end)
        settings = Settings(*resolved.settings(len(answer)))
        nothing = np.zeros(0, np.int32)
        flags = resolved.flags | (0 if mask is None else MASK)
        counts = token_counts(model.vocab_size, request.prompt_ids, answer) if flags & COUNTS else nothing
        bias = dense_bias(model.vocab_size, sampling.logit_bias) if flags & BIAS else np.zeros(0, np.float32)
        return adjust_logits(logits, settings, flags, counts, bias, nothing if mask is None else mask), settings

    def _tolerance(self) -> float:
        """The error of a logit that the self-test of the bundle allows on both devices, relative to the largest."""
        manifest = self.runner.manifest
        test = manifest.self_test if isinstance(manifest, Manifest) else None
        if test is None:
            return 0.0
        most, least = max(test.tolerances.values()), min(test.tolerances.values())
        stated = self.receipt.device.activation
        own = getattr(self.runner, "activation", None)
        return sum(most if each is None else test.tolerances.get(each, least) for each in (stated, own))


def check_tokens(answers: Sequence[Sequence[int]], model: TokenModel) -> None:
    """Raises RequestError for ids that the model does not have."""
    wrong = next((each for answer in answers for each in answer if not 0 <= each < model.vocab_size), None)
    if wrong is not None:
        raise RequestError(f"the receipt has token {wrong}; ids of this model are 0 to {model.vocab_size - 1}")
