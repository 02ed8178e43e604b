"""Renders a model's chat template in a separate process with limits of time and memory.

A template that hangs delays only its own model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any

from nearfar.compiler.runtime.errors import CheckpointError, NearfarError, RequestError, Unavailable
from nearfar.compiler.runtime.text.chat_template import ChatTemplate, Message

from ..executors.circuit import Circuit
from ..processes.worker import WorkerEnded, WorkerLimits, WorkerProcess
from .fair_turns import FairTurns
from .template_worker import RenderJob
from .text_size import is_longer

TOO_MUCH_MEMORY = "it takes too much memory"


@dataclass(frozen=True, slots=True)
class RenderLimits:
    """A prompt may take ``seconds``, or ``long_seconds`` for a chat of more than ``small_characters``, and the process
    ``memory_bytes``.

    A process that holds more than ``keeps_bytes`` afterwards is replaced.

    After ``failures`` prompts in a row that reached a limit, requests fail at once: for 1 second at first, later for up
    to 30. Only chats of at most ``small_characters`` count. A longer one is slow because of its size, so it is the
    request that is wrong, and its sender must not close the model to others.
    """

    seconds: float = 2.0
    long_seconds: float = 12.0
    memory_bytes: int = 512 * 2**20
    keeps_bytes: int = 128 * 2**20
    failures: int = 3
    small_characters: int = 65_536


class TemplateProcess:
    """Used from one event loop. The process starts when it is first needed, and again after it was ended."""

    def __init__(self, template: ChatTemplate, limits: RenderLimits = RenderLimits()) -> None:
        self._job = RenderJob(template.source, template.special_tokens)
        self._limits = limits
        self._turns = FairTurns()
        self._circuit = Circuit(monotonic, failures=limits.failures)
        most = WorkerLimits(limits.memory_bytes, limits.keeps_bytes, int(limits.long_seconds) + 10)
        self._process = WorkerProcess(f"{__package__}.template_worker", most)

    @property
    def pid(self) -> int | None:
        """The id of the process, None before its first start."""
        return self._process.pid

    async def check(self) -> None:
        """Compile the template. Raises CheckpointError if it is not valid Jinja or takes too much time or memory, and
        Unavailable if the process was ended from outside twice.
        """
        try:
            async with self._turns.turn(""):
                await self._call(self._job, self._limits.seconds)
        except WorkerEnded as ended:
            reason = self._reason(ended, self._limits.seconds)
            if _is_own_fault(ended):
                raise _does_not_compile(reason) from ended
            raise self._unavailable(reason) from ended
        except MemoryError as error:
            raise _does_not_compile(TOO_MUCH_MEMORY) from error

    async def render(self, messages: Sequence[Message], options: Mapping[str, Any], client: str) -> str:
        """Like `ChatTemplate.render` with the keyword arguments ``options``.

        Other models' processes continue meanwhile.

        Raises also Unavailable if the template takes more than its time or memory, and RequestError if it does so for a
        long chat.
        """
        is_long = is_longer([messages, dict(options)], self._limits.small_characters)
        seconds = self._limits.long_seconds if is_long else self._limits.seconds
        job = replace(self._job, messages=messages, options=options)
        self._require_closed_circuit()
        async with self._turns.turn(client):
            # It may have opened meanwhile.
            self._require_closed_circuit()
            self._circuit.begin()
            try:
                text: str = await self._call(job, seconds)
                self._circuit.succeeded()
            except WorkerEnded as ended:
                reason = self._reason(ended, seconds)
                if _is_own_fault(ended):
                    raise self._reached(reason, is_long=is_long) from ended
                raise self._unavailable(reason) from ended
            except MemoryError as error:
                raise self._reached(TOO_MUCH_MEMORY, is_long=is_long) from error
            except (RequestError, CheckpointError):
                # The template refuses this chat, within its limits.
                self._circuit.succeeded()
                raise
            except RecursionError as error:
                raise RequestError("messages and tools must be plain JSON values: they are nested too deep") from error
            finally:
                self._circuit.ended()
        return text

    def close(self) -> None:
        self._process.close()

    async def _call(self, job: RenderJob, seconds: float) -> Any:
        """The same text comes of a second call, which is made if the process is ended from outside."""
        try:
            return await self._process.call(job, seconds)
        except WorkerEnded as ended:
            if _is_own_fault(ended):
                raise
        return await self._process.call(job, seconds)

    def _reached(self, reason: str, *, is_long: bool) -> NearfarError:
        """The error for a prompt that reached a limit."""
        if is_long:
            return RequestError(f"the chat is too long for this model's chat template: {reason}; send a shorter chat")
        self._circuit.failed()
        return self._unavailable(reason)

    def _require_closed_circuit(self) -> None:
        if not self._circuit.admits:
            raise self._unavailable("its last prompts took too much time or memory")

    def _reason(self, ended: WorkerEnded, seconds: float) -> str:
        if ended.timed_out:
            return f"it takes more than {seconds:g} seconds"
        return TOO_MUCH_MEMORY if ended.fault else "its process was ended"

    def _unavailable(self, reason: str) -> Unavailable:
        return Unavailable(
            f"this model's chat template cannot be rendered now: {reason}",
            code="chat_template",
            retry_after_seconds=max(1.0, self._circuit.seconds_until_trial),
        )


def _is_own_fault(ended: WorkerEnded) -> bool:
    return ended.timed_out or ended.fault


def _does_not_compile(reason: str) -> CheckpointError:
    return CheckpointError(f"chat template: {reason} to compile; correct the checkpoint's chat template")
