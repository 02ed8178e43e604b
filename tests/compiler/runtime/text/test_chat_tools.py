"""Chats with tools: transformers and we render the shared vectors that every runtime must reproduce."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nearfar.compiler.runtime.errors import RequestError
from nearfar.compiler.runtime.text.chat_template import ChatTemplate

VECTORS: dict[str, Any] = json.loads((Path(__file__).parents[3] / "conformance/chat_tools.json").read_text())
CASES = VECTORS["cases"]
TEMPLATE = (
    "{% for m in messages %}{{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ c.function.arguments | tojson }}{% endfor %}{% endfor %}"
)


@pytest.mark.parametrize("case", CASES, ids=[f"{case['template']}-{case['chat']}-{case['tools']}" for case in CASES])
def test_chats_with_tools_render_as_in_transformers(case: dict[str, Any]) -> None:
    import tokenizers
    import transformers

    template, messages = VECTORS["templates"][case["template"]], VECTORS["chats"][case["chat"]]
    tools = VECTORS["tools"] if case["tools"] else None
    backend = tokenizers.Tokenizer(tokenizers.models.BPE({"<s>": 0, "</s>": 1}, []))
    reference = transformers.PreTrainedTokenizerFast(tokenizer_object=backend, **VECTORS["special_tokens"])
    theirs = reference.apply_chat_template(
        messages, chat_template=template, tools=tools, tokenize=False, add_generation_prompt=True
    )
    assert theirs == case["text"]
    assert ChatTemplate(template, VECTORS["special_tokens"]).render(messages, tools=tools) == case["text"]


@pytest.mark.parametrize("arguments", ['{"a": 1}', {"a": 1}])
def test_the_template_receives_arguments_as_an_object(arguments: object) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    messages = [{"role": "assistant", "content": None, "tool_calls": [call]}]
    assert ChatTemplate(TEMPLATE, {}).render(messages) == '{"a": 1}'
    assert call["function"] == {"name": "f", "arguments": arguments}


@pytest.mark.parametrize(
    "calls", [[{"function": {"name": "f", "arguments": "{"}}], [{"function": {"name": "f"}}], [1], "x"]
)
def test_invalid_calls_are_refused(calls: object) -> None:
    with pytest.raises(RequestError, match=r"messages\[0\]\.tool_calls must be of"):
        ChatTemplate(TEMPLATE, {}).render([{"role": "assistant", "tool_calls": calls}])


def test_additional_variables_reach_the_template_and_reserved_names_are_refused() -> None:
    template = ChatTemplate("{{ bos_token }}{{ enable_thinking }} {{ levels | tojson }}", {"bos_token": "<s>"})
    messages = [{"role": "user", "content": "hi"}]
    assert template.render(messages, variables={"enable_thinking": False, "levels": [1], "self": 1}) == "<s>False [1]"
    for name in ("messages", "tools", "add_generation_prompt", "bos_token", "raise_exception", "chat_template"):
        with pytest.raises(RequestError, match=name) as refused:
            template.render(messages, variables={name: 1})
        assert refused.value.details["param"] == "chat_template_kwargs"
