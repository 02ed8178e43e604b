"""Go templates of Modelfiles: their translations write what Go's own text/template wrote, in Jinja and in a browser."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nearfar.compiler.runtime.errors import RequestError
from nearfar.compiler.runtime.text.chat_template import ChatTemplate
from nearfar.compiler.runtime.text.template_check import template_notes
from nearfar.compiler.runtime.text.tool_formats import tool_format
from nearfar.compiler.store.go_template import MAX_TEMPLATE_CHARACTERS, chat_template

VECTORS = json.loads((Path(__file__).parents[2] / "conformance/go_templates.json").read_text())
USER = {"role": "user", "content": "hi"}


def rendered(template: str, chat: dict[str, Any], **render: Any) -> str:
    variables = chat.get("variables", {}) | ({"enable_thinking": chat["think"]} if "think" in chat else {})
    given = {"tools": chat.get("tools"), "variables": variables, **render}
    return ChatTemplate(chat_template(template), {}).render(chat["messages"], **given)


@pytest.mark.parametrize("vector", VECTORS["templates"], ids=lambda vector: vector["name"])
def test_a_translation_writes_the_prompts_of_go(vector: dict[str, Any]) -> None:
    for name, expected in vector["prompts"].items():
        assert rendered(vector["template"], VECTORS["chats"][name]) == expected, name


@pytest.mark.parametrize("name", ["rounds with a system prompt", "tools by their parameters"])
def test_a_browser_renders_a_translation_as_python_does(name: str) -> None:
    [template] = [each["template"] for each in VECTORS["templates"] if each["name"] == name]
    notes = template_notes(chat_template(template), ())
    # These two write only what their names say, so they do lose messages.
    assert [note for note in notes if "it loses what messages" not in note] == []


def test_a_complete_conversation_ends_with_its_last_answer() -> None:
    template = "{{ .Prompt }}<a>{{ .Response }}</a>\n"
    messages = [USER, {"role": "assistant", "content": "hello"}]
    assert rendered(template, {"messages": messages}) == "hi<a>hello"
    assert rendered(template, {"messages": messages}, add_generation_prompt=False) == "hi<a>hello</a>\n"


def test_calls_of_a_translation_are_read_back() -> None:
    template = (
        "{{ range .Tools }}{{ . }}{{ end }}{{ range .Messages }}{{ range .ToolCalls }}<tool_call>\n"
        '{"name": "{{ .Function.Name }}", "arguments": {{ .Function.Arguments }}}\n</tool_call>{{ end }}{{ end }}'
    )
    found = tool_format(chat_template(template))
    assert found is not None
    assert found == tool_format('{% if tools %}{% endif %}<tool_call>\n{"name": "", "arguments": }\n</tool_call>')


def test_parts_of_a_message_become_text_and_the_marks_of_the_model() -> None:
    parts = [{"type": "image"}, {"type": "text", "text": "what is it?"}]
    messages = [{"role": "user", "content": parts}]
    jinja = chat_template("<u>{{ .Prompt }}</u>", marks={"image": "<image>"})
    assert ChatTemplate(jinja, {}).render(messages) == "<u><image>what is it?</u>"
    with pytest.raises(RequestError, match="has no place for an image"):
        ChatTemplate(chat_template("{{ .Prompt }}"), {}).render(messages)


def test_a_prompt_begins_with_the_token_that_the_model_needs() -> None:
    jinja = chat_template("{{ .Prompt }}", begins=True)
    assert ChatTemplate(jinja, {"bos_token": "<s>"}).render([USER]) == "<s>hi"


def test_jinja_stays_as_it_is() -> None:
    jinja = "{%- for message in messages %}{{ message.content }}{% endfor %}"
    assert chat_template(jinja) == jinja


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ .Prompt", "line 1, column 1: the action is not closed; end it with }}"),
        ("a\n{{ if .System }}b", "line 2, column 1: the if is not closed; add {{ end }}"),
        ("{{ end }}", "line 1, column 1: end without an if, with or range"),
        ("{{ if .System }}{{ else }}{{ else }}{{ end }}", "column 27: a second else"),
        ('{{ "a }}', "column 4: the text is not closed"),
        ('{{ "\\q" }}', r"column 5: \\q is not an escape of Go's texts"),
        ("{{ /* a }}", "column 1: the comment is not closed"),
        ("{{ .Promt }}", r".Promt is not a field of the template's values; did you mean 'Prompt'\?"),
        ("{{ range .Messages }}{{ .Rolle }}{{ end }}", r"column 25: .Rolle is not a field of a message; did you mean"),
        ("{{ if .First }}x{{ end }}{{ .Prompt }}", ".First is not a field .*; Ollama no longer sets it"),
        ("{{ $x }}", r"column 4: the variable \$x is not declared"),
        ("{{ range .Messages }}{{ $x := .Role }}{{ end }}{{ $x }}", r"column 51: the variable \$x is not declared"),
        ("{{ upper .Prompt }}", "column 4: the function 'upper' is not supported"),
        ('{{ template "x" . }}', "column 1: template is not supported; write its content in place"),
        ('{{ define "x" }}{{ end }}', "column 1: define is not supported"),
        ("{{ . }}", "column 4: all values of the template at once are not supported"),
        ("{{ range .Messages }}{{ . }}{{ end }}", "column 25: writing a message is not supported"),
        ("{{ range .Prompt }}{{ end }}", "column 10: a range over a text is not supported; it needs a list"),
        ("{{ eq .Prompt }}", "eq has 1 arguments; it needs at least 2"),
        ("{{ if gt (len .Prompt) 5 }}{{ end }}", "the length of a text, in bytes, can be compared with 0 only"),
        ("{{ .Prompt.Length }}", ".Length is not a field of a text"),
        ("{{ slice .Prompt 1 }}", "slice needs a list and whole numbers"),
        ("{{ 1.5 }}", "1.5 is not supported; write an integer in decimal"),
        ("{{ break }}", "break outside of a range"),
        ("{{ .Prompt 1 }}", "column 12: only functions have arguments"),
        ("{{ ((.Prompt }}", "the parenthesis is not closed"),
        ("{{ .Prompt ) }}", r"'\)' is not expected here"),
        ("{{ $a, $b := .Prompt }}", "only a range sets two variables"),
        ('{{ printf "%x" 1 }}', "printf: %x is not supported"),
        ('{{ printf "%d" .Prompt }}', "printf: %d does not write a text"),
        ("{{ if .Prompt }}" * 100, "more than 60 actions inside each other"),
        ("{{ " + "(" * 100 + " }}", "more than 60 parentheses inside each other"),
        ("{{ .Prompt" + " | print" * 9_000 + " }}", "more than 60 functions behind each other"),
        ("{{ " + ".a" * 9_000 + " }}", "more than 60 fields of each other"),
        ("{{ " + "1" * 5_000 + " }}", "1111 is not supported; write an integer in decimal, of at most 18 digits"),
        ("{{ if .System }}a{{ else if .System }}" + "b{{ else if .System }}" * 100, "more than 60 actions"),
    ],
)
def test_what_is_not_supported_is_refused_with_its_place(template: str, message: str) -> None:
    with pytest.raises(RequestError, match=f"^TEMPLATE: .*{message}") as refused:
        chat_template(template)
    assert refused.value.details["line"] == 2 if template.startswith("a\n") else 1


def test_a_gigantic_template_is_refused() -> None:
    with pytest.raises(RequestError, match="at most 262,144 are supported"):
        chat_template("x" * (MAX_TEMPLATE_CHARACTERS + 1))


def test_a_template_of_thousands_of_actions_is_read_in_time_that_grows_with_it() -> None:
    jinja = chat_template("{{ if .System }}{{ .Prompt }}{{ end }}\n" * 2_000)
    assert jinja.count("{%+ if") == 2 * 2_000
