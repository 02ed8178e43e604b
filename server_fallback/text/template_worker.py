"""The code that runs in the process that renders one model's chat template.

The template comes with the model, so it may hang or use all memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nearfar.compiler.runtime.errors import CheckpointError, RequestError
from nearfar.compiler.runtime.text.chat_template import ChatTemplate, Message

from ..processes.worker_loop import serve


@dataclass(frozen=True, slots=True)
class RenderJob:
    """A chat for a template, and the keyword arguments of `ChatTemplate.render`.

    Without messages, the template is only compiled.
    """

    source: str
    special_tokens: Mapping[str, str]
    messages: Sequence[Message] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Failed:
    """A RequestError (``of_request``) or a CheckpointError."""

    of_request: bool
    message: str
    details: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """The template needs more memory than this process may use."""


def main() -> None:
    serve(_open)


def _open() -> Callable[[object], object]:
    template = ChatTemplate("", {})

    def answer(request: object) -> object:
        nonlocal template
        assert isinstance(request, RenderJob)
        if template.source != request.source:
            template = ChatTemplate(request.source, request.special_tokens)
        try:
            if request.messages is None:
                template.check()
                return ""
            return template.render(request.messages, **request.options)
        except (RequestError, CheckpointError) as error:
            return Failed(isinstance(error, RequestError), error.message, error.details)
        except MemoryError:
            return OutOfMemory()

    return answer
