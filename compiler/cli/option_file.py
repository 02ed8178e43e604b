"""A file of options: TOML whose keys are the names of a command's options, with underscores.

    models = ["./Qwen3-0.6B"]       # paths are relative to the file
    max_sequences = 8
    kv_memory = "4GB"               # as on the command line

An option of the command line precedes the file's, and that precedes the default.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from ..given_file import read_given_text
from ..nearest import did_you_mean
from ..options import Group, Option, OptionFile, declared
from ..runtime.errors import RequestError, reason_of
from .parser import make

Made = TypeVar("Made")
# What the values of a type are called.
TYPES = {bool: "true or false", int: "an integer", float: "a number", str: "a string", Path: "a string"}


def make_with_file(owner: type[Made], given: Mapping[str, Any]) -> Made:
    """As `make`, with the options of the file that ``given["config"]`` names, if there is one."""
    path = given.get("config")
    if not isinstance(path, Path):
        return make(owner, given)
    # argparse's value of places that were left empty is a list.
    from_line = {name: value for name, value in given.items() if value is not None and value != []}
    from_file = {name: value for name, value in read_option_file(owner, path).items() if name not in from_line}
    keys = {name: each.key for field, each in _options(owner) if field in from_file for name in each.names}
    file = OptionFile(path, partial(make_with_file, owner, given), keys)
    with file.naming_keys():
        return make(owner, {**from_file, **from_line, "config": file})


def read_option_file(owner: type, file: Path) -> dict[str, Any]:
    """The values of a file, by the path of each option's field as in `make`. Raises RequestError, which names the line
    and the key, for unknown keys and for values that an option does not accept.
    """
    import tomllib

    try:
        text = read_given_text(file)
        table = tomllib.loads(text)
    except OSError as error:
        raise RequestError(f"--config {file}: cannot be read: {reason_of(error)}") from error
    # Too many brackets, and an integer of too many digits, are other errors than TOMLDecodeError.
    except (ValueError, RecursionError) as error:
        # The parser's own message may quote the line, and with it a key of the API.
        at = re.search(r"\(at .*\)", str(error))
        raise RequestError(f"{file}: is not TOML {at.group() if at else ''}".rstrip()) from None
    known = {option.key: (path, option) for path, option in _options(owner)}
    values = {}
    for key, value in table.items():
        where = f"{file}{_line(text, key)}: {key}"
        if key not in known:
            raise RequestError(f"{where}: unknown key{did_you_mean(key, known)}{_dashes(key)}")
        path, option = known[key]
        try:
            values[path] = _value(option, value, file.parent)
        except ValueError as error:
            raise RequestError(f"{where}: {error}") from None
        except RequestError as error:
            raise RequestError(f"{where}: {error.message.partition(': ')[2] or error.message}") from None
    return values


def _options(owner: type, prefix: str = "") -> Iterator[tuple[str, Option]]:
    for each in declared(owner):
        if isinstance(each, Group):
            yield from _options(each.type, f"{prefix}{each.field}.")
        elif each.type is not OptionFile:
            yield prefix + each.field, each


def _value(option: Option, value: Any, folder: Path) -> Any:
    """Raises ValueError, and RequestError for a value out of range."""
    if option.flag.read is not None:
        made = option.flag.read(value, folder)
    elif option.many is None:
        made = _one(option, value, folder)
    elif not isinstance(value, list) or (option.many != "*" and len(value) != option.many):
        count = "" if option.many == "*" else f" of {option.many}"
        raise ValueError(f"must be a list{count}, not {_shown(value)}")
    else:
        made = tuple(_one(option, each, folder) for each in value)
    option.check(made)
    return made


def _one(option: Option, value: Any, folder: Path) -> Any:
    if option.flag.parse is not None:
        # A list of numbers is written on the command line with commas between them.
        parts = value if isinstance(value, list) else [value]
        if not all(isinstance(part, str | int | float) and not isinstance(part, bool) for part in parts):
            raise ValueError(f"must be a string or a number, not {_shown(value)}")
        return option.parse(",".join(map(str, parts)))
    kind = option.type
    accepted: Any = {float: (int, float), Path: str}.get(kind, kind)
    if not isinstance(value, accepted) or (isinstance(value, bool) and kind is not bool):
        raise ValueError(f"must be {TYPES[kind]}, not {_shown(value)}")
    if kind is Path:
        return _beside(value, folder)
    if option.flag.metavar in ("FILE", "MODEL"):
        return beside_file(value, folder)
    try:
        return float(value) if kind is float else value
    except OverflowError:
        raise ValueError("is too large for a number") from None


def beside_file(name: str, folder: Path) -> str:
    """A file or a model: what exists relative to the folder, or the name as it is. Raises ValueError."""
    path = _beside(name, folder)
    return str(path) if path.exists() else name


def _beside(name: str, folder: Path) -> Path:
    """Raises ValueError for what no path can be."""
    try:
        path = folder / Path(name).expanduser()
    except RuntimeError as error:
        raise ValueError(f"is no path: {error}") from None
    if "\0" in name:
        raise ValueError("is no path: it has a NUL character")
    return path


def _shown(value: Any) -> str:
    """The type only: the value may be a key of the API."""
    names = {bool: "a boolean", int: "an integer", float: "a number", str: "a string", list: "a list", dict: "a table"}
    return names.get(type(value), "a date")


def _dashes(key: str) -> str:
    return "; keys have underscores" if "-" in key else ""


def _line(text: str, key: str) -> str:
    """ ":12", the line of a key of the file; nothing if it is written in another way."""
    written = re.compile(rf"""\s*(\[\[?\s*)?["']?{re.escape(key)}["']?\s*[].=]""")
    lines = (number for number, line in enumerate(text.splitlines(), 1) if written.match(line))
    number = next(lines, None)
    return "" if number is None else f":{number}"
