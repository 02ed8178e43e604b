"""An executor that never answers, for tests of the code around it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from nearfar.server_fallback.executors.executor import ExecutorState


@dataclass
class FakeExecutor:
    context: int = 64
    now: ExecutorState = field(default_factory=lambda: ExecutorState(ready=True, detail="ready"))
    closed: bool = False
    adapters: dict[str, str] = field(default_factory=dict)

    async def answer(self, request: Any, call: Any, output: Any) -> None:
        raise AssertionError((request, call, output))

    async def embed(self, request: Any, call: Any) -> Any: ...

    async def tokenize(self, request: Any) -> Any: ...

    async def detokenize(self, request: Any) -> Any: ...

    def state(self) -> ExecutorState:
        return self.now

    async def close(self) -> None:
        self.closed = True
