"""The code that runs in the process that renders one model's chat template.

The template comes with the model, so it may hang or use all memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nearfar.compiler.runtime.text.chat_template import ChatTemplate, Message

from ..processes.worker_loop import Send, serve


@dataclass(frozen=True, slots=True)
class RenderJob:
    """A chat for a template, and the keyword arguments of `ChatTemplate.render`.

    Without messages, the template is only compiled.
    """

    source: str
    special_tokens: Mapping[str, str]
    messages: Sequence[Message] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


def main() -> None:
    serve(_open)


def _open(_: Send) -> Callable[[object], str]:
    template = ChatTemplate("", {})

    def answer(request: object) -> str:
        nonlocal template
        assert isinstance(request, RenderJob)
        if template.source != request.source:
            template = ChatTemplate(request.source, request.special_tokens)
        if request.messages is None:
            template.check()
            return ""
        return template.render(request.messages, **request.options)

    return answer
