"""ControlTokens: prevents untrusted text, such as a message, from being read as control tokens of a chat template.

A tokenizer matches the text of control tokens ("<|im_end|>") anywhere in a prompt, so a message that contains one could
forge a turn. Before the template is rendered, `mark` inserts a sentinel wherever a message's text could be part of such
a match. In the rendered prompt, the template itself wrote each match without a sentinel.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import RequestError

# A Unicode noncharacter. It is reserved for internal use, and is neither white space nor part of a word.
SENTINEL = "\ufdd0"
_CLOSE = "\ufdd1"
# Templates search answers for tags such as <think>. Some models have words and white space as added tokens.
_NOT_A_MARKER = re.compile(r"</?[A-Za-z_]+>|[\w\s]*")


@dataclass(frozen=True, slots=True)
class Match:
    """A control token's text at ``start``, in characters."""

    start: int
    content: str


class ControlTokens:
    """``added``: the text of every added token of a tokenizer. ``controls``: the text of those that are control
    tokens.
    """

    def __init__(self, added: Iterable[str], controls: Collection[str]) -> None:
        # Empty tokens match nothing. All other added tokens are included, because the longest match wins.
        self._added = _any_of({*added, *controls} - {""})
        self._controls = frozenset(controls) - {""}
        self._any_control = _any_of(self._controls)
        self._prefixes = frozenset(token[:end] for token in self._controls for end in range(1, len(token)))
        self._suffixes = frozenset(token[start:] for token in self._controls for start in range(1, len(token)))
        self._longest = max((len(token) for token in self._controls), default=0)

    def mark(self, text: str) -> str:
        """The text with sentinels inside each control token, and at both ends if adjacent text could complete a control
        token.

        Raises RequestError for a text that contains the sentinel itself.
        """
        if SENTINEL in text:
            raise sentinel_refused()
        marked, end = [], 0
        match = self._any_control.search(text)
        while match is not None:
            # The search continues inside this match, because another match may overlap it.
            inside = match.start() + 1
            marked.append(text[end:inside])
            end = inside
            match = self._any_control.search(text, inside)
        marked.append(text[end:])
        # A template may trim the text, so its ends are checked without surrounding white space.
        lead, trail = len(text) - len(text.lstrip()), len(text.rstrip())
        core_start, core_end = text[lead : lead + self._longest], text[max(lead, trail - self._longest) : trail]
        result = SENTINEL.join(marked)
        if any(core_end[-size:] in self._prefixes for size in range(1, len(core_end) + 1)):
            cut = len(result) - (len(text) - trail)
            result = result[:cut] + SENTINEL + result[cut:]
        if any(core_start[:size] in self._suffixes for size in range(1, len(core_start) + 1)):
            result = result[:lead] + SENTINEL + result[lead:]
        return result

    def mark_infix(self, text: str) -> str:
        """Like `mark`, but also mark a text that is inside a control token, so that a template cannot complete it."""
        marked, core = self.mark(text), text.strip()
        if (
            marked != text
            or not core
            or len(core) >= self._longest
            or not any(core in token for token in self._controls)
        ):
            return marked
        return text.replace(core, SENTINEL + core, 1)

    def mark_value(self, value: Any) -> Any:
        """Mark all strings of a JSON value, including keys."""
        if isinstance(value, str):
            return self.mark(value)
        if isinstance(value, Mapping):
            return {self.mark_value(key): self.mark_value(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.mark_value(item) for item in value]
        return value

    def mark_messages(self, messages: Sequence[Any]) -> list[Any]:
        """Mark all strings of messages except roles and the types of calls.

        Arguments that are JSON text are parsed first, because JSON can escape any character.
        """
        return [self._message(message) if isinstance(message, Mapping) else message for message in messages]

    def mark_tools(self, tools: Sequence[Any]) -> list[Any]:
        """Mark all strings of tools except their types."""
        return [self._except_type(tool) for tool in tools]

    def find(self, text: str) -> list[Match]:
        """The control tokens that a tokenizer matches in a text: the leftmost match, and the longest of those."""
        return [Match(match.start(), match[0]) for match in self._added.finditer(text) if match[0] in self._controls]

    def unmark(self, marked: str) -> tuple[str, list[Match]]:
        """A rendered prompt without its sentinels, and the matches that the template itself wrote."""
        own, seen, end = [], 0, 0
        for match in self.find(marked):
            seen += marked.count(SENTINEL, end, match.start)
            end = match.start
            own.append(Match(match.start - seen, match.content))
        return marked.replace(SENTINEL, ""), own

    def replace_own(self, marked: str, token: str, texts: Sequence[str]) -> str | None:
        """A rendered prompt in which each ``token`` that the template itself wrote is replaced by the next of
        ``texts``; None if it wrote another number of them.
        """
        own = [match for match in self.find(marked) if match.content == token]
        if len(own) != len(texts):
            return None
        parts, end = list[str](), 0
        for match, text in zip(own, texts, strict=True):
            parts += [marked[end : match.start], text]
            end = match.start + len(token)
        return "".join([*parts, marked[end:]])

    def _message(self, message: Mapping[Any, Any]) -> dict[Any, Any]:
        marked = {}
        for key, value in message.items():
            if key == "role":
                marked[key] = value
            elif key == "tool_calls":
                calls = value if isinstance(value, list | tuple) else [value]
                marked[key] = [self._except_type(_parse_arguments(call)) for call in calls] if value else value
            else:
                marked[key] = self.mark_infix(value) if isinstance(value, str) else self.mark_value(value)
        return marked

    def _except_type(self, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return self.mark_value(value)
        return {key: item if key == "type" else self.mark_value(item) for key, item in value.items()}


def sentinel_refused() -> RequestError:
    return RequestError(
        "the text contains U+FDD0, a noncharacter that is reserved for internal use; remove it", code="invalid_text"
    )


def spells_marker(template: str, token: str) -> bool:
    """Whether a chat template contains an added token that marks a turn, such as DeepSeek's <｜User｜>.

    Such a token is not special in the tokenizer.
    Tags such as <think> are not markers, because templates search answers for them. Words and white space are not
    markers either.
    """
    return token in template and not _NOT_A_MARKER.fullmatch(token)


def private_spelling(index: int) -> str:
    """A text that represents a control token in a backend that reads the token's own text as plain text."""
    return f"{SENTINEL}{index}{_CLOSE}"


def _parse_arguments(call: Any) -> Any:
    """Parse the arguments of a call. Invalid arguments stay unchanged, and the chat template refuses them."""
    function = call.get("function") if isinstance(call, Mapping) else None
    arguments = function.get("arguments") if isinstance(function, Mapping) else None
    if not isinstance(arguments, str):
        return call
    try:
        parsed = json.loads(arguments)
    except (ValueError, RecursionError):
        return call
    return (
        {**call, "function": {**function, "arguments": parsed}}
        if isinstance(parsed, dict) and function is not None
        else call
    )


def _any_of(words: Collection[str]) -> re.Pattern[str]:
    """A pattern that matches the longest of the words. It factors out common prefixes, so that no text makes the search
    slow.
    """
    tree: dict[str, Any] = {}
    for word in words:
        node = tree
        for character in word:
            node = node.setdefault(character, {})
        node[""] = {}
    # Without words, the pattern matches nothing.
    return re.compile(_tree_pattern(tree) if tree else r"(?!)")


def _tree_pattern(node: dict[str, Any]) -> str:
    chain = ""
    while len(node) == 1 and "" not in node:
        [(character, node)] = node.items()
        chain += re.escape(character)
    branches = [re.escape(character) + _tree_pattern(child) for character, child in node.items() if character]
    if not branches:
        return chain
    return f"{chain}(?:{'|'.join(branches)}){'?' if '' in node else ''}"
