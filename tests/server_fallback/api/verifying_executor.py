"""The hash model behind the API's models, with only the methods that check drafts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from fake_models import FakeExecutor, FakeModels
from hash_runner import MODEL, HashRunner
from live_server import LiveServer, live_server

from nearfar.compiler.ir.sampling import Sampling
from nearfar.compiler.runtime.errors import RequestError
from nearfar.compiler.runtime.runner import Limits
from nearfar.server_fallback.api.config import ApiConfig
from nearfar.server_fallback.engine.request import TokenRequest
from nearfar.server_fallback.engine.token_engine import TokenEngine
from nearfar.server_fallback.engine.verification import Verification
from nearfar.server_fallback.executors.executor import Call
from nearfar.server_fallback.schema.verify import VerifyOpen


@dataclass
class VerifyingExecutor(FakeExecutor):
    """A step takes longer if the test requires it; ``hold`` is that of `HashRunner`."""

    step_seconds: float = 0.0
    hold: Callable[[int], object] = lambda _: None
    max_drafts: int = 4
    engine: TokenEngine = field(init=False)

    def __post_init__(self) -> None:
        runner = HashRunner(
            Limits(tokens=24, sequences=4, rows=20, pages=24),
            threaded=True,
            step_seconds=self.step_seconds,
            hold=self.hold,
        )
        self.engine = TokenEngine(runner, MODEL)

    def verification(self, request: VerifyOpen, call: Call) -> Verification:
        self.calls.append(call)
        if request.tokenizer_sha256 != "5ha":
            raise RequestError("another tokenizer", param="tokenizer_sha256", code="tokenizer_differs")
        sampling = Sampling(temperature=request.temperature or 0.0, seed=request.seed)
        return Verification(
            self.engine, TokenRequest(request.prompt, request.max_tokens, sampling, deadline=call.deadline)
        )


@asynccontextmanager
async def served(executor: FakeExecutor | None = None, config: ApiConfig | None = None) -> AsyncIterator[LiveServer]:
    """Run ``work`` while the server runs."""
    executor = executor or VerifyingExecutor()
    with live_server(FakeModels(executor), config or ApiConfig()) as server:
        yield server
    if isinstance(executor, VerifyingExecutor):
        await executor.engine.close()
