"""The page's evaluator of chat templates equals Jinja2: on drawn templates, on the families', and on known traps."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import template_trees
from hypothesis import HealthCheck, given, settings
from template_grammar import MESSAGES, VARIABLES, templates

from nearfar.compiler.errors import CheckpointError, RequestError
from nearfar.compiler.shared.script import SharedScript
from nearfar.compiler.text.chat_template import ChatTemplate
from nearfar.compiler.text.template_check import template_notes

FAMILIES = Path(__file__).parents[2] / "conformance" / "chat_templates"
DEMOS = Path(__file__).parents[3] / "compiler" / "demo"
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
PAIRS = tuple(SPECIAL.items())
NOW = datetime(2026, 2, 3, 4, 5, 6)
# A warning of Python's own compiler about the code that Jinja2 makes of `none[0]`.
pytestmark = pytest.mark.filterwarnings("ignore::SyntaxWarning")


@pytest.fixture(scope="module")
def script() -> SharedScript:
    return SharedScript()


def in_the_browser(
    script: SharedScript, source: str, messages: Any = MESSAGES, variables: Any = VARIABLES, tools: Any = None
) -> dict[str, str]:
    parts = {"source": source, "tree": ChatTemplate(source, {}).tree().data, "specialTokens": SPECIAL}
    chat = {"messages": messages, "tools": tools, "variables": variables, "add_generation_prompt": True}
    return script.render(json.dumps(parts), chat, NOW)


def in_jinja(source: str, messages: Any = MESSAGES, variables: Any = VARIABLES) -> str | None:
    """None if the template fails or refuses."""
    try:
        return ChatTemplate(source, SPECIAL, clock=lambda: NOW).render(messages, variables=variables)
    except (CheckpointError, RequestError):
        return None


def require_equal(script: SharedScript, source: str) -> None:
    expected = in_jinja(source)
    try:
        actual = in_the_browser(script, source)
    except CheckpointError:  # Not valid Jinja, which compile refuses.
        assert expected is None
        return
    # Python writes such values with their address.
    if actual.get("error") != "unsupported" or " at 0x" not in (expected or ""):
        assert actual.get("text") == expected, source


def test_drawn_templates_render_as_in_jinja2(script: SharedScript) -> None:
    draw_templates(script, 300)


@pytest.mark.exhaustive
def test_thousands_of_drawn_templates_render_as_in_jinja2(script: SharedScript) -> None:
    draw_templates(script, 6000)


def draw_templates(script: SharedScript, count: int) -> None:
    @settings(
        max_examples=count, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
    )
    @given(templates())
    def check(source: str) -> None:
        require_equal(script, source)

    check()


TRAPS = (
    # Each was another text, or an error, in a browser.
    "{{ '\\n\\n  x'.lstrip('\\n') }}|{{ '.x.'.strip('.') }}|{{ 'xay'.rstrip('yx') }}",
    "{{ '😀é'|length }}{{ '😀é'[1:] }}",
    "{{ u.x }}",
    "{{ u.x is defined }}",
    "{{ u|length }}{{ u|list }}{{ u|upper }}",
    "{{ 'aba'.find('b') }}{{ 'aba'.count('a') }}",
    "{{ 'a b c'.rsplit(' ', 1) }}{{ 'a b c'.split(' ', 1) }}",
    "{{ ds|selectattr('k', 'in', ['x', 'y'])|list|length }}",
    "{{ '%s-%05.1f' % ('a', 2.25) }}",
    "{{ 3 is gt 2 }}{{ 3 is greaterthan(4) }}",
    "{% raw %}{{ x }}{% endraw %}",
    "{% for c in 'a😀' %}{{ loop.index }}{{ c }}{% endfor %}",
    "{{ 'a' * 2 }}{{ [1] * 2 }}",
    "{{ d.items }}",
    "{{ d['items'] }}",
    "{{ 7 // -2 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 2 ** 3 }} {{ 2 ** -1 }} {{ 1e16 }} {{ 1.0 }} {{ 10 ** 20 }}",
    "{{ [1.0, none, true, 'it\\'s', (1,)] }}{{ d }}",
    "{{ d|tojson(indent=2) }}{{ d|tojson(ensure_ascii=true, sort_keys=true) }}",
    "{% set ns = namespace(a=1) %}{% for x in xs %}{% set ns.a = ns.a + 1 %}{% endfor %}{{ ns.a }}",
    "{% for x in xs %}{% continue %}{% else %}none{% endfor %}",
    "{% for x in xs %}{% set s = x %}{% endfor %}{{ s }}",
    "{% macro m() %}{{ n }}{% endmacro %}{{ m() }}{% set n = 1 %}{{ m() }}",
    "{% set x %}a{% endset %}{{ x|safe + '<' }}",
    "{{ (s|e) ~ '<' }}{{ 'a<' | e | e }}",
    "{{ strftime_now('%d %B %Y %H:%M %-d %j %a') }}",
    "{{ raise_exception('no') }}",
    "{{ xs|map('upper')|map('trim')|join(',') }}",
    "{{ xs|sort|join }}{{ ds|groupby('k') }}{{ ds|map(attribute='i.j')|list }}",
    "{{ xs.append(1) }}",
    "{{ ''.__class__.__mro__ }}",
    "{{ messages[5].role }}",
    "{{ 'ß'.upper() }}{{ 'ǆ'.title() }}{{ 'a\\x1cb'.split() }}",
    "{% for x in range(10) recursive %}{{ x }}{% endfor %}{{ range(1000000) }}",
    "{{ '{:>5}|{0}'.format('a') }}",
    "{{ '{:>6}|{:,}|{}'.format(t, t, t) }}",
    "{{ 'a' < 'B' }}{{ 'a' < 1 }}",
    "{% for x in xs if x %}{{ loop.last }}{{ loop.nextitem }}{{ loop.previtem }}{% endfor %}",
    "{{ 0.1 + 0.2 }}{{ 2.5|round }}{{ 0.25|round(1) }}",
)


@pytest.mark.parametrize("source", TRAPS)
def test_a_trap_renders_as_in_jinja2(source: str, script: SharedScript) -> None:
    require_equal(script, source)


@pytest.mark.parametrize("path", sorted(FAMILIES.glob("*.jinja")), ids=lambda path: path.stem)
def test_a_familys_template_renders_alike_over_all_conversations(path: Path) -> None:
    assert template_notes(path.read_text(), PAIRS) == ()


@pytest.mark.parametrize("name", ["nearfar-demo", "nearfar-demo-far"])
def test_the_template_of_a_model_in_the_repository_renders_alike(name: str) -> None:
    config = json.loads((DEMOS / name / "tokenizer_config.json").read_text())
    assert template_notes(config["chat_template"], PAIRS) == ()


def test_numbers_of_arguments_and_the_order_of_their_keys_are_those_of_their_text(script: SharedScript) -> None:
    call = {
        "type": "function",
        "function": {"name": "f", "arguments": '{"b": 1.0, "2": 12345678901234567890, "1": 1e3}'},
    }
    messages = [{"role": "assistant", "content": None, "tool_calls": [call]}]
    source = "{{ messages[0].content }}{{ messages[0].tool_calls[0].function.arguments | tojson }}"
    assert in_jinja(source, messages, {}) == '{"b": 1.0, "2": 12345678901234567890, "1": 1000.0}'
    assert in_the_browser(script, source, messages, {})["text"] == in_jinja(source, messages, {})


@pytest.mark.parametrize("arguments", ['{"a": NaN}', "[1]", "{", '{"a": 1} x', "null", '{"a": 01}', "[" * 5000])
def test_arguments_that_are_not_a_json_object_are_refused(arguments: str, script: SharedScript) -> None:
    call = {"type": "function", "function": {"name": "f", "arguments": arguments}}
    messages = [{"role": "assistant", "content": None, "tool_calls": [call]}]
    assert in_jinja("a", messages, {}) is None
    assert in_the_browser(script, "a", messages, {})["error"] == "request"


def test_a_reserved_variable_is_refused(script: SharedScript) -> None:
    for name in ("messages", "tokenize", "pad_token", "range"):
        assert in_jinja("a", variables={name: 1}) is None
        assert in_the_browser(script, "a", variables={name: 1})["error"] == "request"


def test_what_a_browser_lacks_is_named() -> None:
    def notes(source: str) -> str:
        return "\n".join(template_notes(source, PAIRS))

    assert "the filter 'xmlattr'" in notes("{{ {}|xmlattr }}{{ messages[0].role | xmlattr if z }}")
    assert "the test 'odder'" in notes("{% if messages is odder %}{% endif %}")
    assert "the method 'encode'" in notes("{{ messages[0].role.encode() }}")
    assert "the function 'joiner'" in notes("{% set j = joiner() %}")
    assert "the tag 'include'" in notes("{% include 'a' %}")
    assert "for a question, a browser cannot render it" in notes(
        "{{ [messages[0].role|reverse] }}{{ messages[0]['role']['encode']() }}"
    )
    assert notes("{{ messages[0].role }}") == ""


def test_a_difference_between_the_engines_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SharedScript, "render", lambda *_: {"text": "another"})
    [note] = template_notes("{{ messages[0].role }}!", PAIRS)
    assert "for a question, a browser does not render the prompt of Jinja2" in note


def test_the_trees_of_the_typescript_tests_are_those_of_their_templates() -> None:
    assert template_trees.FILE.read_text() == template_trees.text_of(list(template_trees.read()))
