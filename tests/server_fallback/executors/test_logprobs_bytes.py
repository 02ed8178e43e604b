"""The bytes of an answer's listed tokens join to its content."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fake_source import executor, reasoner
from local_requests import TOOL, chat, chunks

CALL = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'


@pytest.mark.parametrize(
    ("answer", "given", "content"),
    [
        ("aé😀b", {}, "aé😀b"),
        ("aé😀bc", {"stop": ["bx", "😀b"]}, "aé"),
        ("aé😀bc", {"stop": "b", "include_stop_str_in_output": True}, "aé😀b"),
        # Text that may begin a stop string is held back until the end.
        ("aé<", {"stop": "<stop>"}, "aé<"),
        # Half of a character becomes U+FFFD.
        ("aé😀", {"max_tokens": 5}, "aé\ufffd"),
        (f"Hé: {CALL}", {"tools": [TOOL]}, "Hé: "),
        (f"  {CALL}", {"tools": [TOOL]}, None),
        ("é <tool_", {"tools": [TOOL]}, "é <tool_"),
        ("é <tool_call>{}é", {"tools": [TOOL]}, "é <tool_call>{}é"),
        ("<think>\nHé\n</think>\n\nJé.", {}, "Jé."),
        ("<think>\nHé\n</think>\n\nJé: 😀 no", {"stop": "😀"}, "Jé: "),
        (f"<think>\nHé\n</think>\n\nJé {CALL}", {"tools": [TOOL]}, "Jé "),
        ("<think>\nHé", {}, None),
    ],
)
def test_the_bytes_of_the_tokens_join_to_the_content(
    tmp_path: Path, answer: str, given: dict[str, Any], content: str | None
) -> None:
    make = reasoner if "<think>" in answer else executor
    local, _ = make(tmp_path, answer)
    [choice] = chat(local, logprobs=True, top_logprobs=1, **given).choices
    assert choice.message.content == content
    assert choice.logprobs is not None
    assert choice.logprobs.content is not None
    listed = [bytes(token.bytes or ()) for token in choice.logprobs.content]
    assert b"".join(listed).decode() == (content or "")
    # Each token is listed once, also if it is not part of the content.
    local, source = make(tmp_path, answer)
    streamed = [choice for chunk in chunks(local, logprobs=True, **given) for choice in chunk.choices]
    tokens = [token for each in streamed if each.logprobs for token in each.logprobs.content or ()]
    assert [bytes(token.bytes or ()) for token in tokens] == listed
    assert "stop" in given or len(tokens) == source.tokens
