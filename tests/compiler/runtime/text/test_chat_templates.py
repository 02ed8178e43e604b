"""The families' chat templates: transformers and we render the shared vectors that every runtime must reproduce."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nearfar.compiler.runtime.errors import NearfarError
from nearfar.compiler.runtime.text.chat_template import ChatTemplate
from nearfar.compiler.runtime.text.tool_formats import tool_format

FOLDER = Path(__file__).parents[3] / "conformance"
VECTORS: dict[str, Any] = json.loads((FOLDER / "chat_templates.json").read_text())
NAMES = sorted(path.stem for path in (FOLDER / "chat_templates").glob("*.jinja"))
FORMATS = {
    "llava": None, "smolvlm": None,
    "command_r7b": None, "ernie4_5": None, "exaone4": "hermes", "glm4": None, "hunyuan": None,
    "gemma2": None, "gemma3": None, "gemma4": "gemma4", "granite3": "granite", "llama3": "llama3",
    "mistral_v13": "mistral_named", "mistral_v3": "mistral", "olmo2": None, "phi3": None, "phi4_mini": "phi4_mini",
    "qwen3": "hermes", "qwen3_coder": "qwen3_coder", "smollm3": "hermes",
}  # fmt: skip
# The templates that read a list of parts, and lose a text.
READ_PARTS = ("llava", "smolvlm")


@pytest.mark.parametrize("name", NAMES)
def test_a_familys_template_renders_as_in_transformers(name: str) -> None:
    import tokenizers
    import transformers

    source = (FOLDER / "chat_templates" / f"{name}.jinja").read_text()
    template = ChatTemplate(source, VECTORS["special_tokens"])
    backend = tokenizers.Tokenizer(tokenizers.models.BPE({"<s>": 0, "</s>": 1}, []))
    reference = transformers.PreTrainedTokenizerFast(tokenizer_object=backend, **VECTORS["special_tokens"])
    cases = [case for case in VECTORS["cases"] if case["template"] == name]
    assert cases
    for case in cases:
        messages, variables = VECTORS["chats"][case["chat"]], VECTORS["variables"][case["variables"]]
        tools = VECTORS["tools"] if case["tools"] else None
        if case["text"] is None:
            with pytest.raises(NearfarError):
                template.render(messages, tools=tools, variables=variables)
            continue
        their_messages, their_tools, their_variables = by_hand(name, messages, tools)
        theirs = reference.apply_chat_template(
            their_messages,
            chat_template=source,
            tools=their_tools,
            tokenize=False,
            add_generation_prompt=True,
            **variables,
            **their_variables,
        )
        assert theirs == case["text"]
        assert template.render(messages, tools=tools, variables=variables) == case["text"]


def by_hand(name: str, messages: list[Any], tools: list[Any] | None) -> tuple[list[Any], list[Any] | None, Any]:
    """Adds tools in the way that callers of transformers do for templates that do not read the variable ``tools``, and
    lists of parts for templates that do not read texts.
    """
    if name in READ_PARTS:
        parts = [{**m, "content": [{"type": "text", "text": m["content"]}]} for m in messages]
        return parts, tools, {}
    if tools and name == "smollm3":
        return messages, None, {"xml_tools": tools}
    if tools and name == "phi4_mini":
        system = messages[0] if messages[0]["role"] == "system" else {"role": "system", "content": ""}
        functions = json.dumps([tool["function"] for tool in tools], ensure_ascii=False)
        return [{**system, "tools": functions}, *(m for m in messages if m["role"] != "system")], None, {}
    return messages, tools, {}


def test_each_familys_format_of_calls_is_found_in_its_template() -> None:
    found = {name: tool_format((FOLDER / "chat_templates" / f"{name}.jinja").read_text()) for name in NAMES}
    assert {name: None if form is None else form.name for name, form in found.items()} == FORMATS


@pytest.mark.parametrize("name", NAMES)
def test_the_form_of_content_that_a_template_reads_is_found_by_rendering(name: str) -> None:
    template = ChatTemplate((FOLDER / "chat_templates" / f"{name}.jinja").read_text(), VECTORS["special_tokens"])
    assert template.content_form == ("parts" if name in READ_PARTS else "text")
