"""An executor of our own engine over a model that is a hash and whose tokens are bytes: everything is real but the device."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import numpy as np
from fake_source import END, VOCAB_SIZE, text_model
from hash_model import STOP, next_token
from hash_runner import PAGE, HashRunner

from nearfar.compiler.batch import Limits
from nearfar.compiler.sampling import MASK
from nearfar.server_fallback.engine.model import TokenModel
from nearfar.server_fallback.engine.token_engine import TokenEngine
from nearfar.server_fallback.executors.executor import Call
from nearfar.server_fallback.executors.local import LocalExecutor
from nearfar.server_fallback.schema.chat import ChatCompletionChunk, ChatCompletionRequest
from nearfar.server_fallback.schema.common import Usage

CONTEXT = 128
MODEL = TokenModel(vocab_size=VOCAB_SIZE, end_token_ids=frozenset({END}), context=CONTEXT, page_size=PAGE)
MASK_WORDS = -(-VOCAB_SIZE // 32)


class ByteRunner(HashRunner):
    """It says the letters a to o. ``wrong_every``: another letter after each so many tokens."""

    def __init__(self, *, verify: bool = True, wrong_every: int = 0) -> None:
        # Rows beyond one a sequence are for drafts.
        super().__init__(Limits(tokens=48, sequences=4, rows=20 if verify else 4, pages=64), threaded=True)
        self._states["token_mask"] = np.zeros((4, MASK_WORDS), np.int32)
        self._wrong_every = wrong_every

    def _sample(self, tokens: list[int], slot: int, flags: int, settings: list[float]) -> int:  # noqa: ARG002
        said = next_token(tokens)
        token = END if said == STOP else ord("a") + said - 1
        if self._wrong_every and len(tokens) % self._wrong_every == 0:
            token = ord("z")
        if flags & MASK:
            allowed = np.flatnonzero(np.unpackbits(self._states["token_mask"][slot].view(np.uint8), bitorder="little"))
            token = token if token in allowed else int(allowed[-1])
        if slot >= 0:
            self._sampled[slot] = token
        return token


class ByteExecutor(LocalExecutor):
    """``usages`` are those of its chats, in the order of their ends."""

    def __init__(self, folder: Path, **runner: Any) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.runner = ByteRunner(**runner)
        super().__init__(TokenEngine(self.runner, MODEL), text_model(folder))
        self.requests: list[ChatCompletionRequest] = []
        self.usages: list[Usage] = []

    async def chat(self, request: ChatCompletionRequest, call: Call) -> AsyncGenerator[ChatCompletionChunk, None]:
        self.requests.append(request)
        async for chunk in super().chat(request, call):
            if chunk.usage is not None:
                self.usages.append(chunk.usage)
            yield chunk
