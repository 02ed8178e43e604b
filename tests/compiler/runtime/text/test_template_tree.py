"""The page's evaluator of chat templates equals Jinja2: on drawn templates, on the families', and on known traps."""

from __future__ import annotations

import json
import re
import unicodedata
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import template_trees
from hypothesis import HealthCheck, given, seed, settings
from template_grammar import MESSAGES, VARIABLES, templates

from nearfar.compiler.runtime.errors import CheckpointError, RequestError
from nearfar.compiler.runtime.text.chat_template import ChatTemplate
from nearfar.compiler.runtime.text.template_check import template_notes
from nearfar.compiler.shared.script import SharedScript

FAMILIES = Path(__file__).parents[3] / "conformance" / "chat_templates"
DEMOS = Path(__file__).parents[4] / "compiler" / "demo"
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
# What the evaluator refuses by name, whatever Jinja2 renders.
REFUSED = re.compile("which Python writes with its address|complex numbers|is too (large|long)|nearly 0")
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
    template = ChatTemplate(source, SPECIAL)
    parts = {
        "source": source,
        "tree": template.tree().data,
        "content": template.content_form,
        "specialTokens": SPECIAL,
    }
    chat = {"messages": messages, "tools": tools, "variables": variables, "add_generation_prompt": True}
    return script.render(json.dumps(parts), chat, NOW)


def in_jinja(source: str, messages: Any = MESSAGES, variables: Any = VARIABLES) -> str | None:
    """None if the template fails or refuses."""
    try:
        return ChatTemplate(source, SPECIAL, clock=lambda: NOW).render(messages, variables=variables)
    except (CheckpointError, RequestError, MemoryError):
        return None


def require_equal(script: SharedScript, source: str) -> None:
    expected = in_jinja(source)
    try:
        actual = in_the_browser(script, source)
    except CheckpointError:  # Not valid Jinja, which compile refuses.
        assert expected is None
        return
    if actual.get("error") != "unsupported" or not REFUSED.search(actual["message"]):
        assert actual.get("text") == expected, source


def test_drawn_templates_render_as_in_jinja2(script: SharedScript) -> None:
    draw_templates(script, 120, 0)


@pytest.mark.exhaustive
@pytest.mark.parametrize("number", range(1, 4))
def test_thousands_of_drawn_templates_render_as_in_jinja2(script: SharedScript, number: int) -> None:
    draw_templates(script, 6000, number)


def draw_templates(script: SharedScript, count: int, number: int) -> None:
    @seed(number)
    @settings(max_examples=count, database=None, suppress_health_check=list(HealthCheck))
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
    "{{ '%c' % 228512 }}{{ '%c' % t }}",
    "{{ '%c' % 1114112 }}",
    "{{ 'a' < 'B' }}{{ 'a' < 1 }}",
    "{% for x in xs if x %}{{ loop.last }}{{ loop.nextitem }}{{ loop.previtem }}{% endfor %}",
    "{{ 0.1 + 0.2 }}{{ 2.5|round }}{{ 0.25|round(1) }}",
    # Decimal digits of any script, and the letter that lower case makes a k.
    "{{ '١٢'|int }} {{ '１.５'|float }} {{ '\u212a'|int(-1, 36) }} {{ '²'|int(-1) }} {{ '0X1F'|int(base=16) }}",
    "{{ ('9' * n * 1000)|int(-1) }}",
    # Sigmas at the end of words, letters with a form for titles, and those that become two.
    "{{ 'ὈΔΥΣΣΕΎΣ ΑΣ'.title() }} {{ 'ΑΣ ΣΑ'.swapcase() }} {{ 'ΣΑΣ'.capitalize() }} {{ 'ŉǆ ᾳ ﬁ İI'.title() }}",
    "{{ 'ßſΣςẞᾳıİᎠꭰ'.casefold() }} {{ '①፩②'.isdigit() }} {{ '一万'.isnumeric() }} {{ 'A1b'.istitle() }}",
    "{{ '1\x85a\ufeffb'|title }}",
    # Ints beyond the precision, or the range, of floats.
    "{{ 10 ** 20 / 3 }} {{ (10 ** 20 + 1) / 7 }} {{ 0 / -5 }} {{ 9007199254740993 / 1 }} {{ 10 ** 400 / 10 ** 399 }}",
    "{{ 10 ** (n * 80) / 3 }}",
    "{{ 10 ** (n * 80) * 1.0 }}",
    "{{ 10 ** (n * 80)|float }}",
    "{{ (10 ** (n * 80))|round(1, 'ceil') }}",
    "{{ 10 ** (n * 900) }}",
    "{{ (10 ** (n * 900))|tojson }}",
    # Halves, powers of ten that shortest digits round up to, and decimals beyond the hundredth.
    "{{ '{:.3}|{:.1}|{:.3}|{:.3}|{:.0}'.format(0.0, 1.0, 123.0, 12.25, 0.1) }}",
    "{{ '%.0e|%e|%.20e|%.110f' % (2.5, 9.999999999999999e22, 1e23, 1e-20) }}",
    "{{ 25.0|round(-1) }} {{ -25.5|round(-1) }} {{ 1e-120|round(130) }} {{ 5|round(-1) }} {{ -15|round(-1) }}",
    # json.dumps() looks at the indent of lists and objects only.
    "{{ s|tojson(indent=1.5) }}",
    "{{ xs|tojson(indent=1.5) }}",
    # Constants that raise an error when Jinja2 folds them.
    "{% if not n %}{{ 1 // 0 }}{{ 'a' + 1 }}{{ [1][::0] }}{{ 'x'|round }}{% endif %}ok",
    "{{ 'k' if n else 1 // 0 }}",
    "{% if n %}{{ 1 // 0 }}{% endif %}",
    "{{ 1e999 }}{{ [1e999] }}",
    # Constants that are errors only when a template computes them.
    "{{ 1[0:] }}|{{ (1[0:])|default('a') }}|{{ [1, 2][0:1] }}|{{ {'a': (1, none)}['a'] }}",
    "{{ n[0:] }}",
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
    assert "the tag 'autoescape'" in notes("{% autoescape true %}{% endautoescape %}")
    assert "the tag 'from'" in notes("{% from 'a' import b %}")
    assert "the variable 'self'" in notes("{{ self }}")
    assert "a constant that is not a finite number" in notes("{% set x = 1e308 * 10 %}")
    assert "a generator is written" in notes("{{ 'ab'|unique }}")
    assert notes("{% for m in messages %}{{ m.content }}{% endfor %}") == ""


def test_a_constant_that_python_cannot_compile_is_a_checkpoint_error() -> None:
    with pytest.raises(CheckpointError, match="4300 digits"):
        ChatTemplate("{% set x = 10 ** 5000 %}", {}).check()


def test_the_tree_of_a_generator_has_no_address() -> None:
    source = "{{ 'ab'|unique }}{{ '%s' % ('ab'|unique) }}{% set x = 'ab'|unique|string %}"
    assert "0x" not in json.dumps(ChatTemplate(source, {}).tree().data)


# Their letter case or category has changed since Unicode 14, of Python 3.11. Browsers have later versions.
CHANGED = "ƛɤʕჼꟓꟕꟲꟳꟴꭩ\U0001171e"
OF_A_CHARACTER = (
    "c.lower()", "c.upper()", "c.title()", "c.capitalize()", "c.swapcase()", "c.casefold()", "c|title", "c|wordcount",
    "c|int(-1)", "c|int(-1, 36)", "c|float(-1)", "c|trim|length", "c.split()|length", "c.splitlines()|length", "[c]",
    "c is lower", "c is upper", "(c ~ 'A').title()", "('A' ~ c ~ 'A')|title", "(c ~ 'a').istitle()",
    "(c ~ 'Σ').lower()",
    "('A' ~ c).istitle()", "('aΣ' ~ c ~ 'aΣ').title()", "('aΣ' ~ c ~ 'Σ').capitalize()", "('Α' ~ c ~ 'ΑΣ').swapcase()",
    "c.isalnum()", "c.isalpha()", "c.isascii()", "c.isdecimal()", "c.isdigit()", "c.islower()", "c.isnumeric()",
    "c.isprintable()", "c.isspace()", "c.istitle()", "c.isupper()",
)  # fmt: skip


@pytest.mark.parametrize("step", [17, pytest.param(1, marks=pytest.mark.exhaustive)])
def test_every_character_has_the_case_and_kind_of_python(step: int, script: SharedScript) -> None:
    known = [chr(code) for code in range(0x110000) if unicodedata.category(chr(code)) not in ("Cn", "Co", "Cs")]
    # Ideographs and syllables in order have no case; each hundredth stands for them.
    special = [c for c in known if unicodedata.category(c) != "Lo" or c.isnumeric() or c.upper() != c]
    chars = [c for c in (*special[::step], *known[:: 100 * step], *"ŉǆᾳᾷİıßΣς٣፩一\u212a\u2f89") if c not in CHANGED]
    for expression in OF_A_CHARACTER:
        source = f"{{% for c in chars %}}{{{{ {expression} }}}}\n\n{{% endfor %}}"
        expected = in_jinja(source, [], {"chars": chars})
        actual = in_the_browser(script, source, [], {"chars": chars})["text"]
        assert expected is not None
        rows = zip(chars, expected.split("\n\n"), actual.split("\n\n"), strict=False)
        assert [(c, theirs, ours) for c, theirs, ours in rows if theirs != ours] == [], expression


READS_PARTS = (
    "{% for m in messages %}{{ m.role }}:{% for p in m.content %}{% if p.type == 'text' %}{{ p.text }}{% endif %}"
    "{% endfor %};{% endfor %}"
)


@pytest.mark.parametrize(
    ("source", "form"),
    [
        (READS_PARTS, "parts"),
        ("{% for m in messages %}{{ m.content[0]['text'] }}{% endfor %}", "parts"),
        ("{% for m in messages %}{{ m.content[0].text + '!' }}{% endfor %}", "parts"),
        ("{% for m in messages %}{{ m.content }}{% endfor %}", "text"),
        ("{% for m in messages %}{{ m.content if m.content is string else m.content[0].text }}{% endfor %}", "text"),
        ("{{ messages[-1].content }}", "text"),
        ("{{ raise_exception('no') }}", "text"),
        ("", "text"),
    ],
)
def test_the_form_of_content_is_the_one_whose_text_the_template_keeps(source: str, form: str) -> None:
    assert ChatTemplate(source, {}).content_form == form


def test_a_text_becomes_a_part_for_a_template_that_reads_parts(script: SharedScript) -> None:
    call = {"type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "a<b"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": ""},
        {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "c"}]},
    ]
    assert in_jinja(READS_PARTS, messages) == "user:a<b;assistant:;tool:;user:c;"
    for source in (READS_PARTS, READS_PARTS + "{{ messages }}"):
        assert in_the_browser(script, source, messages)["text"] == in_jinja(source, messages)
    assert messages[0]["content"] == "a<b"


def test_a_template_that_loses_what_messages_say_has_a_note() -> None:
    def notes(source: str) -> str:
        return "\n".join(template_notes(source, PAIRS))

    both = "it loses what messages with the role user and assistant and system say, as a text and as a list of parts"
    assert both in notes("{% for m in messages %}{{ m.role }}{% endfor %}")
    assert "the role assistant say" in notes(
        "{% for m in messages %}{% if m.role != 'assistant' %}{{ m.content }}{% endif %}{% endfor %}"
    )
    assert notes(READS_PARTS) == ""
    assert notes("{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}" + READS_PARTS) == ""


def test_a_difference_between_the_engines_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SharedScript, "render", lambda *_: {"text": "another"})
    [note] = template_notes("{% for m in messages %}{{ m.content }}!{% endfor %}", PAIRS)
    assert "for a question, a browser does not render the prompt of Jinja2" in note


def test_the_trees_of_the_typescript_tests_are_those_of_their_templates() -> None:
    assert template_trees.FILE.read_text() == template_trees.text_of(list(template_trees.read()))
