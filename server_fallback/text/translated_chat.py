"""A chat that another form of the API asks for, so that executors and the router know one form of chats."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nearfar.compiler.runtime.errors import RequestError

from ..schema.chat import ChatCompletionRequest
from ..schema.tokenize import TokenizeRequest
from .requests import with_name
from .thinking import thinking_variables


@dataclass(frozen=True, slots=True)
class TranslatedChat:
    """``paths``: parameters of the chat, such as "messages[2].content[0]" -> those of the request."""

    chat: ChatCompletionRequest
    paths: Mapping[str, str]

    def name_of(self, param: str) -> str:
        """The name that a parameter of the chat has in the request."""
        known = self._known(param)
        return param if known is None else self.paths[known] + param.removeprefix(known)

    def renamed(self, error: RequestError) -> RequestError:
        """The error with the name that its parameter has in the request."""
        param = error.details.get("param")
        known = self._known(param) if isinstance(param, str) else None
        if known is None or known == self.paths[known]:
            return error
        return with_name(error, known, self.paths[known])

    def _known(self, param: str) -> str | None:
        """The longest path that the parameter is or is part of."""
        return max((path for path in self.paths if _is_in(param, path)), key=len, default=None)


def tokenize_request(chat: ChatCompletionRequest) -> TokenizeRequest:
    """The request for the tokens of a chat's prompt."""
    return TokenizeRequest.model_construct(
        model=chat.model,
        messages=chat.messages,
        tools=None if chat.tool_choice == "none" else chat.tools,
        chat_template_kwargs=thinking_variables(chat) or None,
        add_generation_prompt=not chat.continue_final_message,
        continue_final_message=bool(chat.continue_final_message),
    )


def _is_in(param: str, path: str) -> bool:
    return param == path or param.startswith((f"{path}.", f"{path}["))
