"""What requests inherit from a stored model: its system message, its messages, and the parameters that they lack."""

from __future__ import annotations

from typing import Any

from nearfar.compiler.runtime.errors import RequestError
from nearfar.compiler.store.model import StoredModel

from ..schema.chat import ChatCompletionRequest, Message
from ..schema.completions import AnswerRequest


def inherited(request: AnswerRequest, stored: StoredModel | None) -> AnswerRequest:
    """Raises RequestError for a receipt, which would prove another request than the one that was sent."""
    if stored is None or not stored.inherits:
        return request
    if request.receipt:
        raise RequestError(
            f"receipt: requests to {stored.name} inherit messages or parameters, and a receipt proves an answer to the "
            f"request as it was sent; leave it out, or ask {stored.parent or 'its base'}",
            param="receipt",
        )
    update = missing_fields(request, stored)
    if isinstance(request, ChatCompletionRequest):
        update["messages"] = inherited_messages(request.messages, stored)
    return request.model_copy(update=update)


def missing_fields(request: AnswerRequest, stored: StoredModel) -> dict[str, Any]:
    """The parameters that the model has and the request does not."""
    fields = stored.parameters.fields()
    if isinstance(request, ChatCompletionRequest) and request.max_completion_tokens is not None:
        fields.pop("max_tokens", None)
    return {name: value for name, value in fields.items() if getattr(request, name) is None}


def inherited_messages(messages: list[Message], stored: StoredModel) -> list[Message]:
    """The model's messages come after the system message, which is the request's own if it has one."""
    begin = next(
        (index for index, each in enumerate(messages) if each.role not in ("system", "developer")), len(messages)
    )
    system = messages[:begin]
    if not system and stored.system:
        system = [Message(role="system", content=stored.system)]
    return [*system, *(Message(role=each.role, content=each.content) for each in stored.messages), *messages[begin:]]
