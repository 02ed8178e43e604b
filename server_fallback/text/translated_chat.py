"""A chat that another form of the API asks for, so that executors and the router know one form of chats."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from nearfar.compiler.runtime.errors import RequestError

from ..schema.chat import ChatCompletionRequest
from ..schema.tokenize import TokenizeRequest
from .thinking import thinking_variables


@dataclass(frozen=True, slots=True)
class TranslatedChat:
    """``paths``: parameters of the chat, such as "messages[2].content[0]" -> those of the request."""

    chat: ChatCompletionRequest
    paths: Mapping[str, str]

    def name_of(self, param: str) -> str:
        """The name that a parameter of the chat has in the request."""
        known = self._longest(param)
        return param if known is None else self.paths[known] + param.removeprefix(known)

    def text_of(self, message: str, param: str) -> str:
        """The message of an error with the first name of its parameter as in the request."""
        known = self._longest(param)
        if known is None:
            return message
        return re.sub(rf"(?<![\w.\]]){re.escape(known)}(?!\w)", lambda _: self.paths[known], message, count=1)

    def renamed(self, error: RequestError) -> RequestError:
        """The error with the name that its parameter has in the request."""
        param = error.details.get("param")
        if not isinstance(param, str):
            return error
        details = {**error.details, "param": self.name_of(param)}
        return type(error)(self.text_of(error.message, param), **details)

    def _longest(self, param: str) -> str | None:
        return max((path for path in self.paths if _is_in(param, path)), key=len, default=None)


def tokenize_request(chat: ChatCompletionRequest) -> TokenizeRequest:
    """The request for the tokens of a chat's prompt."""
    return TokenizeRequest.model_construct(
        model=chat.model,
        messages=chat.messages,
        tools=None if chat.tool_choice == "none" else chat.tools,
        chat_template_kwargs=thinking_variables(chat) or None,
    )


def _is_in(param: str, path: str) -> bool:
    return param == path or param.startswith((f"{path}.", f"{path}["))
