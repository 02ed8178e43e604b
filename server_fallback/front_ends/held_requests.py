"""The admitted requests of one front end, for the main process, which counts the requests of all front ends."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack

from ..api.limiter import Admission, Limiter
from .messages import Admit, Release, TakeAnswers, TakeBody


class HeldRequests:
    """``limiter`` is that of all front ends."""

    def __init__(self, limiter: Limiter) -> None:
        self._limiter = limiter
        self._held: dict[int, tuple[Admission, ExitStack]] = {}

    def take(self, message: Admit | TakeAnswers | TakeBody) -> Mapping[str, str]:
        """The headers of the admission. Raises ApiError as `Limiter.admit` and the methods of `Admission` do."""
        if isinstance(message, Admit):
            stack = ExitStack()
            admission = stack.enter_context(self._limiter.admit(message.client, message.key))
            self._held[message.request] = admission, stack
            return admission.headers
        admission, _ = self._held[message.request]
        if isinstance(message, TakeAnswers):
            admission.answers(message.count, message.capacity, message.param)
        else:
            admission.body(message.size)
        return admission.headers

    def release(self, message: Release) -> None:
        """A request that was never admitted is not held."""
        _, stack = self._held.pop(message.request, (None, ExitStack()))
        stack.close()

    def release_all(self) -> None:
        """The front end has ended."""
        held, self._held = self._held, {}
        for _, stack in held.values():
            stack.close()
