"""Hybrid: OpenAI's chat client over a pair of sides. Questions flow in, answers with their route flow out.

hybrid = await Hybrid.create(near="demo", far=Far("http://host:8000"), policy={"version": 1, "mode": "prefer-near"})
answer = await hybrid.chat.completions.create(messages=[{"role": "user", "content": "what is 27 + 58?"}])
answer.choices[0].message.content, answer.route.side
await hybrid.close()
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, overload
from uuid import uuid4

from pydantic import BaseModel, ValidationError

from nearfar.compiler.errors import RequestError

from ..executors.bundle_cache import cache_folder
from ..executors.executor import Call, Executor
from ..executors.registry import default_name
from ..schema.chat import ChatCompletion, ChatCompletionChunk
from ..schema.fold import fold_chat
from ..schema.routed import RoutedChatRequest
from .budget import FileLedger, Ledger
from .far import Far, FarSide
from .hybrid_executor import HybridExecutor
from .near import NearSide
from .pair import DeviceHints, Pair
from .policy import Policy


class Hybrid:
    """``chat.completions.create`` takes OpenAI's parameters and ours. Made by `create`, used in one event loop, closed by `close`."""

    def __init__(self, executor: HybridExecutor, name: str) -> None:
        self.executor = executor
        self.chat = Chat(Completions(executor, name))

    @classmethod
    async def create(
        cls,
        *,
        near: str | Path | Executor | None = None,
        far: Far | None = None,
        policy: Policy | Mapping[str, Any] | Path | str,
        ledger: Ledger | None = None,
        hints: Callable[[], DeviceHints] = DeviceHints,
    ) -> Hybrid:
        """``near``: a bundle, a Hugging Face folder or name, "demo", or an executor, which is closed in the end.

        ``ledger`` None: what the policy's budget allows is counted in a file of the cache folder, for each far server. ``hints`` tells of
        this machine's battery and temperature before each decision. Raises RequestError with the code "bad_policy", "api_version",
        "invalid_api_key" or "model_not_found", and what opening the near model raises. That the far side is offline is no error where near
        may answer.
        """
        name = near if isinstance(near, str) else near.name if isinstance(near, Path) else "hybrid"
        executor = await open_hybrid(near, far, Policy.read(policy), default_name(name), ledger, hints)
        return cls(executor, default_name(name))

    async def close(self) -> None:
        await self.executor.close()

    async def __aenter__(self) -> Hybrid:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class Chat:
    def __init__(self, completions: Completions) -> None:
        self.completions = completions


class Completions:
    def __init__(self, executor: HybridExecutor, name: str) -> None:
        self._executor, self._name = executor, name

    @overload
    async def create(self, *, stream: Literal[True], **parameters: Any) -> AsyncGenerator[ChatCompletionChunk, None]: ...

    @overload
    async def create(self, *, stream: Literal[False] | None = None, **parameters: Any) -> ChatCompletion: ...

    async def create(
        self, *, stream: bool | None = None, timeout_seconds: float | None = None, **parameters: Any
    ) -> ChatCompletion | AsyncGenerator[ChatCompletionChunk, None]:
        """A ChatCompletion, or with ``stream`` its chunks, the usage last; closing them ends the answer.

        ``parameters`` are those of `RoutedChatRequest`: OpenAI's, ``labels`` and ``pin`` of the request, and ``labels`` in messages;
        ``model`` may be left out. Raises RequestError for wrong ones, and what stops the answer.
        """
        request = read_request({"model": self._name, **parameters})
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        chunks = self._executor.chat(request, Call(str(uuid4()), request.priority or 0, deadline))
        return chunks if stream else await fold_chat(chunks)


async def open_hybrid(
    near: str | Path | Executor | None,
    far: Far | None,
    policy: Policy,
    name: str,
    ledger: Ledger | None = None,
    hints: Callable[[], DeviceHints] = DeviceHints,
    progress: Callable[[str, str, int, int], None] = lambda *_: None,
) -> HybridExecutor:
    """As `Hybrid.create`."""
    require_sides(policy, near=near is not None, far=far)
    async with AsyncExitStack() as opened:
        far_side = FarSide(far) if far is not None else None
        if far_side is not None:
            opened.push_async_callback(far_side.close)
        if far is not None and ledger is None and counts(policy):
            ledger = FileLedger(ledger_place(far))
        # What may be wrong with the far side is told before the near model takes its time.
        pair = Pair(None, far_side, policy, ledger, hints)
        await pair.check(near_may_answer=near is not None)
        if near is not None:
            executor = await open_near(near, name, progress) if isinstance(near, str | Path) else near
            pair.near = NearSide(executor, name)
        opened.pop_all()
    return HybridExecutor(pair, name)


async def open_near(model: str | Path, name: str, progress: Callable[[str, str, int, int], None]) -> Executor:
    # It brings the engine and its libraries.
    from ..executors.local_opener import LocalOpener, LocalOptions

    opening = await LocalOpener(LocalOptions(), progress).prepare(str(model), name)
    return await opening.open()


def require_sides(policy: Policy, *, near: bool, far: Far | None) -> None:
    """Raises RequestError with the code "bad_policy" for a policy that these sides cannot follow."""
    if policy.mode == "near-only" and not near:
        raise RequestError("the policy's mode is near-only, but there is no near side; give near", code="bad_policy", param="mode")
    if policy.mode == "far-only" and far is None:
        raise RequestError("the policy's mode is far-only, but there is no far side; give far", code="bad_policy", param="mode")
    if not near and far is None:
        raise RequestError("there is neither a near nor a far side; give near, far or both", code="bad_policy")
    if policy.escalation.then == "continue" and far is not None and far.dialect == "openai":
        raise RequestError(
            "the policy's escalation.then is continue, which OpenAI's own parameters cannot ask for; let it restart, or use a far server "
            "of the dialect nearfar or vllm",
            code="bad_policy", param="escalation.then",
        )  # fmt: skip


def counts(policy: Policy) -> bool:
    return policy.budget.far_requests_per_day is not None or policy.budget.far_usd_per_day is not None


def ledger_place(far: Far) -> Path:
    """By server and key: who pays is known by it."""
    digest = sha256(f"{far.base_url.rstrip('/')} {far.api_key}".encode()).hexdigest()
    return cache_folder() / f"far-spent-{digest[:16]}.json"


def read_request(parameters: Mapping[str, Any]) -> RoutedChatRequest:
    """Messages may be those of an answer, as OpenAI's client takes them back. Raises RequestError whose ``param`` names the place."""
    messages = parameters.get("messages")
    if isinstance(messages, Sequence):
        plain = [message.model_dump(exclude_none=True) if isinstance(message, BaseModel) else message for message in messages]
        parameters = {**parameters, "messages": plain}
    try:
        return RoutedChatRequest.model_validate(parameters)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise RequestError(f"{place or 'the request'}: {first['msg']}", param=place) from None
