"""Options: a frozen dataclass declares what a command, or a part of the program, can be asked for.

    @options
    class Score:
        tokens: Annotated[str, Flag(metavar="IDS")]
        \"""token ids, separated by commas\"""

A field is declared once: its name, type and default, and the text below it. The command line (`cli/parser.py`) offers
it and shows the text as help. A type that several commands share brings its text along. A field without a text is not
offered. Whoever makes the dataclass, the same checks apply to its values. A field whose type is such a dataclass adds
that dataclass's options, under its text as a title.
"""

from __future__ import annotations

import ast
import inspect
import math
import re
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union, dataclass_transform, get_args, get_origin

from .nearest import did_you_mean
from .runtime.errors import RequestError

Class = TypeVar("Class")
UNITS = {
    "": 1,
    "k": 10**3,
    "m": 10**6,
    "g": 10**9,
    "t": 10**12,
    "ki": 1 << 10,
    "mi": 1 << 20,
    "gi": 1 << 30,
    "ti": 1 << 40,
}


@dataclass(frozen=True, slots=True)
class Flag:
    """Part of an annotation: how a value is written and read, where the field's name and type do not say it.

    ``names`` replace the name of the option. ``metavar`` stands for a value in the help. ``parse`` reads a text, and
    ``check`` refuses a value of Python's; both raise ValueError with the reason. ``choices`` are all valid values.
    ``place``: the value has no name but its place. ``several``: the values of a tuple follow one name, as in
    "--features a b"; otherwise each has its own. ``text``: the help of a field that has none of its own.

    In a file of options (`cli/option_file.py`), ``key`` is the option's name, and ``read`` makes the value from that of
    TOML and the file's folder; it raises ValueError. ``only_in_file``: the command line does not offer it.
    ``reloads``: a server that runs takes another value.
    """

    names: tuple[str, ...] = ()
    metavar: str | tuple[str, ...] | None = None
    parse: Callable[[str], Any] | None = None
    check: Callable[[Any], None] | None = None
    choices: tuple[Any, ...] | None = None
    place: bool = False
    several: bool = False
    text: str = ""
    key: str = ""
    read: Callable[[Any, Path], Any] | None = None
    only_in_file: bool = False
    reloads: bool = False


@dataclass(frozen=True, slots=True)
class OptionFile:
    """The file of a command's options. ``again`` reads it once more, and returns the options of the command: those of
    the command line precede those of the file. ``keys`` are the keys of the options that are the file's, by their names
    on the command line.
    """

    path: Path
    again: Callable[[], Any]
    keys: Mapping[str, str]

    @contextmanager
    def naming_keys(self) -> Iterator[None]:
        """In the block, a RequestError about an option that the user wrote into the file names the file and the key."""
        try:
            yield
        except RequestError as error:
            name = re.match(r"--[\w-]+", error.message)
            if name is None or name[0] not in self.keys:
                raise
            message = f"{self.path}: {self.keys[name[0]]}{error.message[name.end() :]}"
            raise RequestError(message, **error.details) from error


@dataclass(frozen=True, slots=True)
class Option:
    """One option as it is declared. ``names`` is empty for a value that has a place. ``type`` is that of one value, and
    ``many`` says how many: None for one, a number, or "*". ``required``: it has no default.
    """

    field: str
    names: tuple[str, ...]
    type: Any
    many: int | Literal["*"] | None
    flag: Flag
    default: Any
    required: bool
    text: str

    @property
    def key(self) -> str:
        """Its name in a file: that on the command line with underscores, and the field's for "--no-field"."""
        if self.flag.key or not self.names or self.default is True:
            return self.flag.key or self.field
        return self.names[-1].removeprefix("--").replace("-", "_")

    def parse(self, text: str) -> Any:
        """Raises ValueError."""
        if self.flag.parse is not None:
            return self.flag.parse(text)
        value = number(self.type, text)
        if self.flag.check is not None:
            self.flag.check(value)
        return value

    def check(self, value: Any) -> None:
        """Raises RequestError for a value out of range."""
        if value is None or self.type is bool:
            return
        for each in value if self.many else (value,):
            try:
                if self.flag.choices is not None and each not in self.flag.choices:
                    raise ValueError(unknown(self.field, each, self.flag.choices))
                if self.flag.check is not None:
                    self.flag.check(each)
            except ValueError as error:
                raise RequestError(f"{self.names[-1] if self.names else self.field}: {error}") from error


@dataclass(frozen=True, slots=True)
class Group:
    """The options of a dataclass inside another. ``type`` is the dataclass."""

    field: str
    type: type
    title: str


@dataclass_transform(frozen_default=True, kw_only_default=True)
def options(made: type[Class]) -> type[Class]:
    """A frozen dataclass of options, which are passed by name and checked when it is made."""

    def check(self: Any) -> None:
        for each in declared(type(self)):
            if isinstance(each, Option):
                each.check(getattr(self, each.field))

    made.__post_init__ = check  # type: ignore[attr-defined]
    return dataclass(frozen=True, slots=True, kw_only=True)(made)


def declared(owner: type) -> tuple[Option | Group, ...]:
    """The options of a dataclass, in the order of its fields."""
    return _declared(owner)


def changed(before: Any, after: Any) -> list[Option]:
    """The options whose values differ. Both are of one dataclass."""
    found = list[Option]()
    for each in declared(type(before)):
        old, new = getattr(before, each.field), getattr(after, each.field)
        if isinstance(each, Group):
            found += changed(old, new)
        elif each.type is not OptionFile and old != new:
            found.append(each)
    return found


# mypy does not take every type as an argument of a function with a cache.
@cache
def _declared(owner: type) -> tuple[Option | Group, ...]:
    return tuple(_read_fields(owner))


def _read_fields(owner: type) -> Iterator[Option | Group]:
    texts: dict[str, str] = {}
    hints: dict[str, Any] = {}
    for each in reversed(owner.__mro__):
        if is_dataclass(each):
            texts |= _texts(each.__module__).get(each.__name__, {})
            hints |= inspect.get_annotations(each, eval_str=True)
    for field in fields(owner):
        text, hint = texts.get(field.name, ""), hints[field.name]
        if isinstance(hint, type) and is_dataclass(hint):
            if text:
                yield Group(field.name, hint, text)
            continue
        one, many, flag = _read(hint)
        text = text or flag.text
        if not text:
            continue
        default = field.default if field.default_factory is MISSING else field.default_factory()
        name = field.name.replace("_", "-")
        names = (
            ()
            if flag.place or flag.only_in_file
            else flag.names or (f"--no-{name}" if default is True else f"--{name}",)
        )
        yield Option(field.name, names, one, many, flag, default, default is MISSING, text)


def _read(hint: Any) -> tuple[Any, int | Literal["*"] | None, Flag]:
    """The type of one value, how many there are, and what the annotations say. The outer annotation has precedence."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        one, many, own = _read(inner[0])
        for flag in inner[1:]:
            given = {name: value for name in Flag.__slots__ if (value := getattr(flag, name))}
            own = Flag(**{**{name: getattr(own, name) for name in Flag.__slots__}, **given})
        # A parser of the complete tuple reads it from one text.
        return (one, None, own) if many and inner[1:] and inner[1].parse else (one, many, own)
    if origin in (Union, types.UnionType):
        return _read(next(each for each in inner if each is not types.NoneType))
    if origin is tuple:
        one, _, flag = _read(inner[0])
        return one, "*" if inner[-1] is Ellipsis else len(inner), flag
    if origin is Literal:
        return type(inner[0]), None, Flag(choices=inner)
    return hint, None, Flag()


@cache
def _texts(module: str) -> Mapping[str, Mapping[str, str]]:
    """By class: the texts below its fields, as the source has them."""
    return {
        owner.name: {
            field.target.id: " ".join(text.value.value.split())
            for field, text in zip(owner.body, owner.body[1:], strict=False)
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
            if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant) and isinstance(text.value.value, str)
        }
        for owner in ast.parse(inspect.getsource(sys.modules[module])).body
        if isinstance(owner, ast.ClassDef)
    }


def number(kind: Any, text: str) -> Any:
    """The text as an int, a float or another type. Raises ValueError."""
    try:
        return kind(text)
    except ValueError as error:
        raise ValueError(f"{text!r} is not a number") from error


def unknown(field: str, value: object, choices: Iterable[object]) -> str:
    """The error message for a value that is not one of the choices."""
    known = [str(choice) for choice in choices]
    name = field.replace("_", "-")
    return f"unknown {name} {str(value)!r}{did_you_mean(str(value), known)} (known: {', '.join(known)})"


def at_least(least: int) -> Callable[[float], None]:
    def check(value: float) -> None:
        if not value >= least:
            raise ValueError(f"{value} is less than {least}")

    return check


def size_bytes(text: str) -> int:
    """ "512MB", "1.5GiB" or bytes -> bytes, at least 1."""
    parts = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]i?)?b?", text.strip().lower())
    size = math.floor(float(parts[1]) * UNITS[parts[2] or ""]) if parts else 0
    if size < 1:
        raise ValueError(f"{text!r} is not a size; write 4GB, 512MB or 1.5GiB")
    return size


# Types of fields. Their values are shown as these words.
Text = Annotated[str, Flag(metavar="TEXT")]
Name = Annotated[str, Flag(metavar="NAME")]
Url = Annotated[str, Flag(metavar="URL")]
ModelName = Annotated[str, Flag(metavar="MODEL")]
File = Annotated[Path, Flag(metavar="FILE")]
Count = Annotated[int, Flag(metavar="N", check=at_least(1))]
CountOrNone = Annotated[int, Flag(metavar="N", check=at_least(0))]
# The command line gives a path, and `cli/option_file.py` makes this of it.
ConfigFile = Annotated[OptionFile | None, Flag(metavar="FILE", parse=Path)]
SizeBytes = Annotated[int, Flag(metavar="SIZE", parse=size_bytes, check=at_least(1))]
# Options of several commands.
Trust = Annotated[
    tuple[Path, ...],
    Flag(
        metavar="KEY",
        text="load only bundles that this public key has signed; may be repeated. A CPU or CUDA bundle is native code "
        "and runs with your permissions, so load only bundles that you trust (default: any bundle)",
    ),
]
CatalogUrl = Annotated[
    str | None,
    Flag(
        metavar="URL",
        text="the address or the file of a published site's catalog.json, or hf:OWNER/NAME; a model is then a name in "
        "it, whose best bundle for this machine is downloaded once into the cache",
    ),
]
Json = Annotated[bool, Flag(text="print one JSON object")]
