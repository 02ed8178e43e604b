"""ChatTemplate: renders messages to a prompt's text with a checkpoint's Jinja template, as transformers does.

A template is untrusted code: it runs in Jinja's sandbox and receives only plain JSON values.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any, Literal, NoReturn

import jinja2
import jinja2.exceptions
import jinja2.ext
import jinja2.meta
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox
import jinja2.utils

from ..errors import CheckpointError, RequestError
from .control_tokens import SENTINEL
from .template_tree import TemplateTree, write_tree

Message = Mapping[str, Any]
ContentForm = Literal["text", "parts"]
# The name of a request's own template variables.
VARIABLES = "chat_template_kwargs"
# Names of values that a template always receives, here or in transformers.
RESERVED = frozenset(
    {"messages", "tools", "documents", "add_generation_prompt", "continue_final_message", "chat_template", "tokenize"}
    | {f"{name}_token" for name in ("bos", "eos", "pad", "unk")}
)  # fmt: skip
# The maximum number of characters of a prompt. The longest contexts, of a million tokens, have fewer.
MAX_PROMPT_CHARACTERS = 16 * 2**20
# A text that no template writes itself.
_PROBE = "Zebra7"
# A message's own tools.
_SYSTEM_TOOLS = re.compile(r"""message(\[['"]tools['"]\]|\.tools\b)""")
# If an even number of backslashes precedes it, they are literal backslashes.
_ESCAPED_SENTINEL = re.compile(r"(?<!\\)((?:\\\\)*)\\ufdd0")


class ChatTemplate:
    """A template, and the special tokens that it may use. It is compiled when it is first rendered.

    Compiling and rendering run the template's code, which may need unlimited time and memory. A server does both in a
    separate process.
    """

    def __init__(
        self, source: str, special_tokens: Mapping[str, str], clock: Callable[[], datetime] = datetime.now
    ) -> None:
        self.source = source
        self._clock = clock
        self.special_tokens = dict(special_tokens)

    def check(self) -> None:
        """Compile it. Raises CheckpointError if the source is not valid Jinja."""
        _ = self._template

    def check_syntax(self) -> None:
        """Parse it, without running any of it. Raises RequestError."""
        try:
            self._environment.parse(self.source)
        except (jinja2.TemplateError, RecursionError, ValueError) as error:
            where = f"line {error.lineno}: " if isinstance(error, jinja2.TemplateSyntaxError) else ""
            raise RequestError(f"template: {where}{error}; correct it", param="template") from error

    def tree(self) -> TemplateTree:
        """Its syntax tree. Raises CheckpointError as `check` does."""
        self.check()
        return write_tree(self._environment.parse(self.source))

    def variables(self) -> set[str]:
        """The names of values that it reads. Raises CheckpointError as `check` does."""
        self.check()
        return jinja2.meta.find_undeclared_variables(self._environment.parse(self.source))

    @cached_property
    def _environment(self) -> jinja2.Environment:
        return _environment(self._clock)

    @cached_property
    def _template(self) -> jinja2.Template:
        try:
            return self._environment.from_string(self.source)
        except jinja2.TemplateSyntaxError as error:
            raise CheckpointError(
                f"chat template: line {error.lineno}: {error.message}; correct the checkpoint's chat template",
                line=error.lineno,
            ) from error
        # Python's own compiler refuses `break` inside a block that is a function, too many nested blocks, and
        # constants of more than 4,300 digits.
        except (jinja2.TemplateError, RecursionError, SyntaxError, AssertionError, ValueError) as error:
            raise CheckpointError(f"chat template: {error}; correct the checkpoint's chat template") from error

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt's text, with special tokens spelled out. ``variables`` are additional variables of the template
        (enable_thinking).

        Raises RequestError for messages, tools or variables that the template refuses or that are not plain JSON, and
        for a variable with a reserved name; CheckpointError if the template is not valid Jinja, fails, or writes more
        than MAX_PROMPT_CHARACTERS.
        """
        own = self._checked(variables or {})
        values = _plain_json({"messages": list(messages), "tools": None if tools is None else list(tools)})
        for index, message in enumerate(values["messages"]):
            if not isinstance(message, dict) or not isinstance(message.get("role"), str):
                raise RequestError(f"messages[{index}] must be an object with a string 'role'", index=index)
            _open_arguments(message, index)
            if self.content_form == "parts" and isinstance(message.get("content"), str):
                message["content"] = _parts(message["content"])
        return self._written({**own, "add_generation_prompt": add_generation_prompt, **values})

    @cached_property
    def content_form(self) -> ContentForm:
        """The form in which it reads a message's content: "text", or "parts" for the templates that iterate over a list
        of parts and write nothing of a text, such as those of SmolVLM and LLaVA. Found by rendering, as minja does.
        """
        return "parts" if not self._keeps(_PROBE) and self._keeps(_parts(_PROBE)) else "text"

    def _keeps(self, content: Any) -> bool:
        message = {"role": "user", "content": content}
        try:
            return _PROBE in self._written({"add_generation_prompt": False, "messages": [message], "tools": None})
        except (CheckpointError, RequestError):
            return False

    def _written(self, given: dict[str, Any]) -> str:
        """Its output. Raises the errors of `render`."""
        template = self._template
        try:
            # Like transformers, pass `documents` too, and only the special tokens that exist.
            inputs = {"documents": None, **given, **self.special_tokens}
            return _joined(template.generate(_with_tools(self.source, inputs)))
        except _Refusal as error:
            raise RequestError(f"the chat template refuses these messages: {error}") from error
        except MemoryError:
            raise
        except Exception as error:  # A template can raise any error of Python's operators.
            line = _template_line(error)
            location = f"line {line}: " if line else ""
            raise CheckpointError(
                f"chat template: {location}{type(error).__name__}: {error}; correct the checkpoint's chat template",
                line=line,
            ) from error

    def _checked(self, variables: Mapping[str, Any]) -> dict[str, Any]:
        """The variables as plain JSON. Raises RequestError for reserved names."""
        reserved = RESERVED | self._template.environment.globals.keys()
        wrong = next((name for name in variables if name in reserved), None)
        if wrong is not None:
            raise RequestError(
                f"chat_template_kwargs cannot set {wrong!r}, which the chat template has already", param=VARIABLES
            )
        return _plain_json(dict(variables))


def _with_tools(source: str, inputs: dict[str, Any]) -> dict[str, Any]:
    """The inputs, with the tools also in the variables or messages that a template without the variable ``tools``
    reads.

    SmolLM3 has the variable ``xml_tools``; its ``python_tools`` are a caller's own. Phi-4-mini reads the functions as
    JSON from the system message. Callers of transformers must add both themselves.
    """
    tools = inputs["tools"]
    if not tools:
        return inputs
    if re.search(r"\bxml_tools\b", source) and "xml_tools" not in inputs:
        return {**inputs, "xml_tools": tools}
    if _SYSTEM_TOOLS.search(source):
        first, rest = {"role": "system", "content": ""}, inputs["messages"]
        if rest and rest[0]["role"] == "system":
            first, *rest = rest
        functions = [tool.get("function", tool) for tool in tools]
        return {**inputs, "messages": [{"tools": _to_json(functions), **first}, *rest]}
    return inputs


def _parts(text: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text}]


def _joined(parts: Iterable[str]) -> str:
    texts, size = [], 0
    for part in parts:
        texts.append(part)
        size += len(part)
        if size > MAX_PROMPT_CHARACTERS:
            raise OverflowError(f"it writes more than {MAX_PROMPT_CHARACTERS:,} characters")
    return "".join(texts)


class _Refusal(jinja2.TemplateError):
    """Raised by a template's own `raise_exception`."""


class _GenerationBlock(jinja2.ext.Extension):
    """`{% generation %}` marks the assistant's text for training. Here, its body is rendered as if the tags did not
    exist.
    """

    tags = {"generation"}  # noqa: RUF012, the base class declares it so

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        # A call block has its own scope, as in transformers: variables that the body sets are not visible after it.
        return jinja2.nodes.CallBlock(self.call_method("_render_body"), [], [], body).set_lineno(line)

    def _render_body(self, caller: Any) -> str:
        return str(caller())


class _Namespace(jinja2.utils.Namespace):
    """Jinja's `namespace` without names that start with an underscore, which could shadow Python's own attributes."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, *rest = args
        for name in dict(*rest, **kwargs):
            _require_public(name)
        jinja2.utils.Namespace.__init__(self, *rest, **kwargs)

    def __setitem__(self, name: str, value: Any) -> None:
        _require_public(name)
        super().__setitem__(name, value)


def _environment(clock: Callable[[], datetime]) -> jinja2.Environment:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, jinja2.ext.loopcontrols], finalize=_printed
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda pattern: clock().strftime(pattern)
    environment.globals["dict"] = _make_dict
    environment.globals["namespace"] = _Namespace
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes HTML and sorts keys, but models are trained without either.
    text = json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    return _with_sentinels(text) if ensure_ascii else text


def _printed(value: Any) -> Any:
    """The output of `{{ value }}`. Lists and objects are written in their Python form."""
    return _with_sentinels(str(value)) if isinstance(value, list | tuple | dict) else value


def _with_sentinels(escaped: str) -> str:
    return _ESCAPED_SENTINEL.sub(rf"\1{SENTINEL}", escaped)


def _raise_exception(message: str) -> NoReturn:
    raise _Refusal(message)


def _make_dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    # The type itself has attributes through which a template could escape the sandbox.
    return dict(*args, **kwargs)


def _require_public(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(
            f"a namespace cannot hold {name!r}: names must not start with an underscore"
        )


def _plain_json(values: dict[str, Any]) -> dict[str, Any]:
    try:
        plain: dict[str, Any] = json.loads(json.dumps(values))
    except (TypeError, ValueError, RecursionError) as error:
        raise RequestError(f"messages and tools must be plain JSON values: {error}") from error
    return plain


def _open_arguments(message: dict[str, Any], index: int) -> None:
    """Parse the arguments of tool calls, and replace a missing content by "".

    Templates serialize arguments and concatenate contents themselves, but OpenAI's messages have arguments as text, and
    may have no content.
    """
    calls = message.get("tool_calls")
    if not calls:
        return
    message["content"] = message.get("content") or ""
    for call in calls if isinstance(calls, list) else [calls]:
        function = call.get("function") if isinstance(call, dict) else None
        arguments = function.get("arguments") if isinstance(function, dict) else None
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments or "{}", parse_constant=_refuse_constant)
            except (ValueError, RecursionError):
                arguments = None
        if (
            not isinstance(function, dict)
            or not isinstance(function.get("name"), str)
            or not isinstance(arguments, dict)
        ):
            raise RequestError(
                f'messages[{index}].tool_calls must be of {{type: "function", function: {{name, arguments}}}}, '
                "with the JSON of an object for arguments",
                index=index,
            )
        function["arguments"] = arguments


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _template_line(error: BaseException) -> int | None:
    """The line of the template that raised an error, from the traceback."""
    line = None
    traceback = error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename == "<template>":
            line = traceback.tb_lineno
        traceback = traceback.tb_next
    return line
