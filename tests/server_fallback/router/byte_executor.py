"""An executor with our own engine and a hash model whose tokens are bytes: only the device is fake."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from fake_source import END, TEMPLATE, VOCAB_SIZE, text_model
from hash_model import STOP, VOCAB, next_token
from hash_runner import PAGE, HashRunner

from nearfar.compiler.runtime.errors import RequestError
from nearfar.compiler.runtime.runner import Limits
from nearfar.server_fallback.engine.model import TokenModel
from nearfar.server_fallback.engine.token_engine import TokenEngine
from nearfar.server_fallback.engine.verification import Verification
from nearfar.server_fallback.executors.executor import Call
from nearfar.server_fallback.executors.local import LocalExecutor
from nearfar.server_fallback.schema.chat import ChatCompletionChunk, ChatCompletionRequest
from nearfar.server_fallback.schema.common import Usage
from nearfar.server_fallback.schema.completions import AnswerRequest
from nearfar.server_fallback.schema.verify import VerifyOpen
from nearfar.server_fallback.text.output import Changed, Output

CONTEXT = 128
MODEL = TokenModel(vocab_size=VOCAB_SIZE, end_token_ids=frozenset({END}), context=CONTEXT, page_size=PAGE)


class ByteRunner(HashRunner):
    """Generates the letters a to o. ``wrong_every``: every nth token is another letter."""

    def __init__(self, *, verify: bool = True, wrong_every: int = 0) -> None:
        # Rows beyond one per sequence are for drafts.
        super().__init__(Limits(tokens=48, sequences=4, rows=20 if verify else 4, pages=64), threaded=True)
        self._states["token_counts"] = np.zeros((4, VOCAB_SIZE), np.int32)
        self._states["logit_bias"] = np.zeros((4, VOCAB_SIZE), np.float32)
        self._wrong_every = wrong_every

    def _sample(self, tokens: list[int], slot: int, flags: int, settings: list[float]) -> int:  # noqa: ARG002
        temperature, draw = settings[0], settings[4]
        offset = (next_token(tokens) + int(draw * VOCAB) * (temperature > 0)) % VOCAB
        token = END if offset == STOP else ord("a") + offset - 1
        if self._wrong_every and len(tokens) % self._wrong_every == 0:
            token = ord("z")
        if slot >= 0:
            self._sampled[slot] = token
        return token


class ByteExecutor(LocalExecutor):
    """``requests`` and ``usages`` are those of its chats, the usages in the order in which the chats end.

    ``refusal``: it refuses to check drafts with this code; ``refused`` counts the refusals so far.
    """

    def __init__(self, folder: Path, *, template: str = TEMPLATE, refusal: str | None = None, **runner: Any) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        super().__init__(TokenEngine(ByteRunner(**runner), MODEL), text_model(folder, template))
        self._refusal, self.refused = refusal, 0
        self.requests: list[ChatCompletionRequest] = []
        self.usages: list[Usage] = []

    async def answer(self, request: AnswerRequest, call: Call, output: Output[Any]) -> None:
        def note(chunk: ChatCompletionChunk) -> ChatCompletionChunk:
            if chunk.usage is not None:
                self.usages.append(chunk.usage)
            return chunk

        if isinstance(request, ChatCompletionRequest):
            self.requests.append(request)
            # Grammars take seconds to load.
            request = request.model_copy(update={"response_format": None})
            output = Changed(output, note)
        await super().answer(request, call, output)

    def verification(self, request: VerifyOpen, call: Call) -> Verification:
        if self._refusal is not None:
            self.refused += 1
            raise RequestError("no", code=self._refusal)
        return super().verification(request, call)
