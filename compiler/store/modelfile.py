"""Reads and writes Modelfiles: what a model is made from, and what it has of its own.

The form is Ollama's (https://github.com/ollama/ollama/blob/main/docs/modelfile.mdx, parser/parser.go): a line is a
command in any case and its value; a value in quotes, one or three of them, lasts to the first line that ends with the
same quotes; a line that begins with # is a comment. Two things differ: no character of a value is left out, and a
Modelfile cannot lead out of its folder, except by an absolute path or one that begins with ~.
"""

from __future__ import annotations

import codecs
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NoReturn

from ..bundle.file_name import leads_out
from ..given_file import read_given
from ..nearest import did_you_mean
from ..runtime.errors import CheckpointError, RequestError, reason_of
from ..runtime.text.chat_template import ChatTemplate
from .go_template import chat_template
from .model import Changes, Demo, HubFiles, StoredMessage, StoredModel
from .parameters import Parameters
from .sources import GGUF, parts_of

# Licenses and conversations are long; a Modelfile has no weights.
MAX_BYTES = 1 << 20
MAX_COMMANDS = 10_000
MAX_FILES = 10_000
ROLES = ("system", "user", "assistant")
COMMANDS = ("from", "parameter", "system", "template", "message", "adapter", "license")
# Ollama's commands that name parts of Ollama itself.
REFUSED = {
    "renderer": "it names code of Ollama that writes prompts; remove it, and the model's own chat template is used",
    "parser": "it names code of Ollama that reads answers; remove it, and the model's own form is used",
    "requires": "it names a version of Ollama; remove it",
    "draft": "start nearfar serve with --draft instead",
    "capability": "what a model can do is found in its files; remove it",
}
_NAME = re.compile(r"[A-Za-z]+(?=[ \t])")
_PARAMETER = re.compile(r"[ \t]*([A-Za-z0-9_]+)[ \t]")
_ROLE = re.compile(r"[ \t]*([A-Za-z]+)[ \t]")
_BREAK = re.compile(r"\r\n|\r|\n")
# By the quotes with which a value begins: where it ends.
_ENDS = {quotes: re.compile(rf"{quotes}[^\S\r\n]*(?=[\r\n]|\Z)") for quotes in ('"""', '"')}
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_BOMS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))


@dataclass(frozen=True, slots=True)
class Modelfile:
    """``base`` is what FROM names, for `Store.create`: an absolute path, or the name of a stored model, a demo model or
    a model on the hub.
    """

    base: str
    changes: Changes


@dataclass(frozen=True, slots=True)
class Command:
    """``name`` in lower case. ``argument`` is the name of a parameter or the role of a message. ``line`` is that of the
    value's first character.
    """

    name: str
    value: str
    line: int
    argument: str = ""


def read_modelfile_file(path: Path) -> Modelfile:
    """Raises RequestError, which names the line, for what `read_modelfile` refuses, and for a file that is not one."""
    try:
        if not path.is_file():
            raise RequestError(f"{path}: is not a file; name a Modelfile with -f")
        content = read_given(path, MAX_BYTES)
    except OSError as error:
        raise RequestError(f"{path}: cannot be read: {reason_of(error)}") from error
    return read_modelfile(content, path.parent, str(path))


def read_modelfile(content: bytes | str, folder: Path | None, where: str = "Modelfile") -> Modelfile:
    """``folder`` is the one in which paths begin; None for a text that comes from elsewhere, which may have none.

    Raises RequestError, which names the line, for what is not a Modelfile, is not supported, or leads out of the
    folder.
    """
    reader = _Reader(where, folder)
    for command in reader.commands(reader.decoded(content)):
        reader.read(command)
    return reader.modelfile()


@dataclass(slots=True)
class _Reader:
    where: str
    folder: Path | None
    base: str | None = None
    changes: Changes = field(default_factory=Changes)
    parameters: list[tuple[str, str]] = field(default_factory=list)

    def decoded(self, content: bytes | str) -> str:
        if len(content) > MAX_BYTES:
            raise RequestError(f"{self.where}: is larger than {MAX_BYTES >> 20} MiB, so it is no Modelfile")
        if isinstance(content, str):
            return content
        bom, encoding = next((each for each in _BOMS if content.startswith(each[0])), (b"", "utf-8"))
        try:
            return content[len(bom) :].decode(encoding)
        except UnicodeDecodeError as error:
            raise RequestError(f"{self.where}: is not {encoding.upper()} (byte {error.start}); convert it") from error

    def commands(self, text: str) -> Iterator[Command]:
        """Raises RequestError for a command that is unknown or incomplete."""
        at, line, count = 0, 1, 0
        if (control := _CONTROL.search(text)) is not None:
            self.refuse(_line(text, control.start()), f"has the control character {control[0]!r}; remove it")
        while at < len(text):
            end = _end_of_line(text, at)
            content = text[at : end.start].lstrip(" \t")
            begins = end.start - len(content)
            if not content or content.startswith("#"):
                at, line = end.stop, line + 1
                continue
            count += 1
            if count > MAX_COMMANDS:
                self.refuse(line, f"has more than {MAX_COMMANDS:,} commands")
            name, argument, at = self._name(text, begins, line)
            value, at, num_lines = self._value(text, at, line)
            yield Command(name, value, line, argument)
            line += num_lines

    def _name(self, text: str, at: int, line: int) -> tuple[str, str, int]:
        """A command, the argument of one that has one, and where its value begins."""
        found = _NAME.match(text, at)
        name = found[0].lower() if found else text[at : _end_of_line(text, at).start].split()[0].lower()
        if name in REFUSED:
            self.refuse(line, f"{name.upper()} is not supported: {REFUSED[name]}")
        if name not in COMMANDS:
            known = [each.upper() for each in COMMANDS]
            proposal = did_you_mean(name.upper(), known)
            self.refuse(line, f"unknown command {name[:40].upper()!r}{proposal} (known: {', '.join(known)})")
        if found is None:
            self.refuse(line, f"{name.upper()} has no value")
        at = found.end() + 1
        if name not in ("parameter", "message"):
            return name, "", at
        argument = (_PARAMETER if name == "parameter" else _ROLE).match(text, at)
        if argument is None:
            needs = "a name and a value" if name == "parameter" else "a role and a text"
            self.refuse(line, f"{name.upper()} needs {needs}")
        if name == "message" and argument[1] not in ROLES:
            self.refuse(line, f"the role of a MESSAGE is {' or '.join(ROLES)}, not {argument[1][:40]!r}")
        return name, argument[1], argument.end()

    def _value(self, text: str, at: int, line: int) -> tuple[str, int, int]:
        """A value, where the next line begins, and the number of lines."""
        first = _end_of_line(text, at)
        at = first.start - len(text[at : first.start].lstrip())
        quotes = next((each for each in _ENDS if text.startswith(each, at)), None)
        if quotes is None:
            return text[at : at + len(text[at : first.start].rstrip())], first.stop, 1
        begins = at + len(quotes)
        end = _ENDS[quotes].search(text, begins)
        if end is None:
            self.refuse(line, f"the value that begins with {quotes} does not end: no line ends with {quotes}")
        value = text[begins : end.start()]
        return value, _end_of_line(text, end.end()).stop, 1 + len(_BREAK.findall(value))

    def read(self, command: Command) -> None:
        """Raises RequestError for a value that is not supported."""
        name, value = command.name, command.value
        if name == "from":
            if self.base is not None:
                self.refuse(command.line, "a second FROM; a model has one, of several GGUF files the first part")
            self.base = self._base(value, command.line)
        elif name == "parameter":
            # Each is checked at its line, and the last of several counts.
            try:
                Parameters.read_text([(command.argument, value)])
            except RequestError as error:
                self.refuse(command.line, f"PARAMETER {error.message}")
            others = [each for each in self.parameters if each[0] != command.argument or each[0] == "stop"]
            self.parameters = [*others, (command.argument, value)]
        elif name == "system":
            self.changes = replace(self.changes, system=value)
        elif name == "template":
            self._check_template(command)
            self.changes = replace(self.changes, template=value)
        elif name == "message":
            assert command.argument in ROLES
            message = StoredMessage.model_validate({"role": command.argument, "content": value})
            self.changes = replace(self.changes, messages=(*self.changes.messages, message))
        elif name == "license":
            self.changes = replace(self.changes, license=(*self.changes.license, value))
        else:
            if self.changes.adapter is not None:
                self.refuse(command.line, "a second ADAPTER; merge the adapters into one")
            self.changes = replace(self.changes, adapter=self._adapter(value, command.line))

    def modelfile(self) -> Modelfile:
        if self.base is None:
            raise RequestError(
                f"{self.where}: has no FROM; name the model that it begins with", code="invalid_modelfile"
            )
        try:
            parameters = Parameters.read_text(self.parameters)
        except RequestError as error:
            raise RequestError(f"{self.where}: PARAMETER {error.message}", code="invalid_modelfile") from error
        return Modelfile(self.base, replace(self.changes, parameters=parameters))

    def _check_template(self, command: Command) -> None:
        if not command.value.strip():
            self.refuse(command.line, "TEMPLATE is empty; remove it, and the model's own chat template is used")
        try:
            # Compiling it could run what it computes, for as long as it wants.
            ChatTemplate(chat_template(command.value, command.line), {}).check_syntax()
        except RequestError as error:
            details = {**error.details, "code": "invalid_modelfile"}
            raise RequestError(f"{self.where}: {error.message}", **details) from error

    def _base(self, value: str, line: int) -> str:
        if not value:
            self.refuse(line, "FROM has no value; name a model or a path")
        named = not value.startswith(("/", "~", ".", "\\"))
        if self.folder is None:
            if not named or value.lower().endswith(".gguf"):
                self.refuse(line, "FROM names a path, which only a Modelfile on this machine may; name a model")
            return value
        path = self._path(value, line, "FROM")
        if os.path.exists(path):
            return str(path)
        if not named:
            self.refuse(line, f"FROM: {path} does not exist; correct the path, or name a model")
        return value

    def _adapter(self, value: str, line: int) -> Path:
        if self.folder is None:
            self.refuse(line, "ADAPTER names a path, which only a Modelfile on this machine may")
        path = self._path(value, line, "ADAPTER")
        if not os.path.isdir(path):
            what = "is a file" if os.path.exists(path) else "does not exist"
            self.refuse(line, f"ADAPTER: {path} {what}; name the folder of a LoRA adapter in PEFT's form")
        return path

    def _path(self, value: str, line: int, command: str) -> Path:
        """The path of a value, absolute. Raises RequestError for a relative one that leads out of the folder."""
        assert self.folder is not None
        given = Path(value)
        try:
            given = given.expanduser()
            if given.is_absolute():
                return given
            root = self.folder.resolve()
            path = root / given
            for each in _with_files(path):
                if leads_out(each, root):
                    self.refuse(
                        line,
                        f"{command}: {each} leads out of the Modelfile's folder to {each.resolve()}; if you trust this "
                        "Modelfile, write the absolute path",
                    )
        except (OSError, ValueError, RuntimeError) as error:
            self.refuse(line, f"{command}: {value[:80]!r} is not a path: {error}")
        return Path(os.path.normpath(path))

    def refuse(self, line: int, problem: str) -> NoReturn:
        raise RequestError(f"{self.where}: line {line}: {problem}", code="invalid_modelfile", line=line)


def _with_files(path: Path) -> Iterator[Path]:
    """A path, and what is in the folder that it names, without the files of folders behind links; or the other parts of
    a GGUF file.
    """
    yield path
    if path.suffix.lower() == GGUF and os.path.isfile(path):
        with suppress(CheckpointError):
            yield from parts_of(path)
    if os.path.isdir(path):
        for count, (folder, folders, files) in enumerate(os.walk(path)):
            if count + len(files) > MAX_FILES:
                raise ValueError(f"it has more than {MAX_FILES:,} files")
            yield from (Path(folder, name) for name in (*folders, *files))


@dataclass(frozen=True, slots=True)
class _EndOfLine:
    start: int
    stop: int


def _end_of_line(text: str, at: int) -> _EndOfLine:
    found = _BREAK.search(text, at)
    return _EndOfLine(len(text), len(text)) if found is None else _EndOfLine(found.start(), found.end())


def _line(text: str, at: int) -> int:
    return 1 + len(_BREAK.findall(text, 0, at))


def write_modelfile(model: StoredModel) -> str:
    """The text of a Modelfile that makes the model again, from the store that has it."""
    source = model.source
    base = model.name
    if model.adapter is None and isinstance(source, Demo | HubFiles):
        base = source.name if isinstance(source, Demo) else source.model
    lines = [f"# Modelfile of {model.name}", f"FROM {base}"]
    lines += [_written("TEMPLATE", model.template)] if model.template is not None else []
    lines += [_written("SYSTEM", model.system)] if model.system is not None else []
    for name, value in model.parameters.given().items():
        for each in value if isinstance(value, list) else [value]:
            shown = str(each).lower() if isinstance(each, bool) else str(each)
            lines.append(_written(f"PARAMETER {name}", shown))
    lines += [_written(f"MESSAGE {message.role}", message.content) for message in model.messages]
    lines += [_written("LICENSE", text) for text in model.license]
    return "\n".join(lines) + "\n"


def _written(command: str, value: str) -> str:
    plain = value and value == value.strip() and not value.startswith('"') and _BREAK.search(value) is None
    if plain:
        return f"{command} {value}"
    if '"""' in value or _CONTROL.search(value):
        ends = any(line.rstrip().endswith('"""') for line in _BREAK.split(value)[:-1]) or _CONTROL.search(value)
        if ends:
            return f"# {command}: a Modelfile cannot have this value, because a line of it ends with three quotes"
    return f'{command} """{value}"""'
