"""The command line's parser: argparse, with the options that a dataclass declares (`options.py`), and with errors that
propose the nearest command, option or choice for a mistyped one.

argparse and not a library that reads dataclasses itself: cyclopts 5.5 is imported in 80 ms instead of 20, and installs
attrs, docstring_parser and rich-rst, 6 MB with itself.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

from ..nearest import did_you_mean
from ..options import Group, Option, OptionFile, declared, unknown
from ..runtime.errors import RequestError

Made = TypeVar("Made")


class Parser(argparse.ArgumentParser):
    """Its subcommands have this class too. Usage errors end the process with exit code 2, as in argparse."""

    _arguments: Sequence[str] = ()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        self._arguments = list(args or ())
        namespace, unknown = super().parse_known_args(args, namespace)
        # A parser with commands receives the unknown arguments of the command.
        if unknown and self._subparsers is None:
            self.error(f"unexpected argument {unknown[0]!r}")
        return namespace, unknown

    def error(self, message: str) -> NoReturn:
        """Report a mistyped option before an argument that is missing because of it."""
        options = [f"unknown option {option}{self._nearest_option(option)}" for option in self._unknown_options()]
        super().error("\n".join(options) or message)

    def _match_arguments_partial(self, actions: Sequence[argparse.Action], arg_strings_pattern: str) -> list[int]:
        """Accept `nearfar run BUNDLE --max-tokens 5 PROMPT`.

        If an option follows BUNDLE, argparse treats the optional PROMPT as missing, and then refuses the PROMPT that
        comes later.
        """
        counts: list[int] = super()._match_arguments_partial(actions, arg_strings_pattern)
        while counts and counts[-1] == 0 and "A" in arg_strings_pattern[sum(counts) :]:
            counts.pop()
        return counts

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        is_command = isinstance(action, argparse._SubParsersAction)
        name = str(action.metavar).lower() if is_command else action.dest.rpartition(".")[2]
        self.error(unknown(name, value, action.choices))

    def _unknown_options(self) -> list[str]:
        """The arguments before "--" that look like options but are neither options of this parser nor a prefix of
        one.
        """
        if self._subparsers is not None:
            return []
        options = [argument.partition("=")[0] for argument in self._arguments]
        end = options.index("--") if "--" in options else len(options)
        known = self._option_string_actions
        return [
            option
            for option in options[:end]
            if option.startswith("--") and not any(each.startswith(option) for each in known)
        ]

    def _nearest_option(self, option: str) -> str:
        proposal = did_you_mean(option, [each for each in self._option_string_actions if each.startswith("--")])
        return proposal.replace("'", "")


def add_options(
    parser: argparse.ArgumentParser, owner: type, group: argparse._ActionsContainer | None = None, prefix: str = ""
) -> None:
    """The options of a dataclass; those of a dataclass inside it as a group. ``prefix`` is the path of ``owner``."""
    add: Any = (group or parser).add_argument
    has_file = takes_file(owner)
    for option in declared(owner):
        if isinstance(option, Group):
            inner = parser.add_argument_group(option.title)
            add_options(parser, option.type, inner, f"{prefix}{option.field}.")
            continue
        if option.flag.only_in_file:
            continue
        dest = prefix + option.field
        names = option.names or (dest,)
        text = (option.text + default_text(option)).replace("%", "%%")
        if option.type is bool:
            action = "store_false" if option.default is True else "store_true"
            add(*names, dest=dest, action=action, default=None, help=text)
            continue
        # A file may have it.
        named = {"dest": dest, "required": option.required and not has_file} if option.names else {}
        add(
            *names, **named, **number_of_values(option), type=reader(option), choices=option.flag.choices,
            metavar=metavar(option), help=text,
        )  # fmt: skip


def number_of_values(option: Option) -> dict[str, Any]:
    """argparse's ``nargs``, and "append" for an option that may be repeated."""
    if isinstance(option.many, int):
        return {"nargs": option.many}
    if option.many is None:
        return {"nargs": "?"} if not option.names and not option.required else {}
    if option.names and not option.flag.several:
        return {"action": "append"}
    return {"nargs": "+" if option.required or option.names else "*"}


def metavar(option: Option) -> Any:
    """The word for a value in the help; None for argparse's list of choices."""
    if option.flag.metavar is not None or option.flag.choices is not None:
        return option.flag.metavar
    return {int: "N", float: "X"}.get(option.type, option.field.upper())


def reader(option: Option) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        try:
            return option.parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return read


def default_text(option: Option) -> str:
    """ "(default: 4)", unless the option's own text says it, or there is nothing to say."""
    default = " ".join(map(str, option.default)) if isinstance(option.default, tuple) else option.default
    silent = option.required or default in (None, "", {}) or option.type is bool or "default" in option.text
    return "" if silent else f" (default: {default})"


def make(owner: type[Made], given: Mapping[str, Any], prefix: str = "") -> Made:
    """The dataclass, from argparse's values; None was not given. Raises RequestError for what its checks refuse, and
    for a required option that neither the command line nor a file has.
    """
    values: dict[str, Any] = {}
    for option in declared(owner):
        path = prefix + option.field
        if isinstance(option, Group):
            values[option.field] = make(option.type, given, f"{path}.")
        elif (value := given.get(path)) is not None:
            values[option.field] = tuple(value) if isinstance(value, list) else value
        elif option.required:
            name = option.names[-1] if option.names else option.field.upper()
            raise RequestError(f"{name} is required; give it here, or as '{option.key}' in the file of --config")
    return owner(**values)


def takes_file(owner: type) -> bool:
    """Whether the options may come from a file."""
    return any(isinstance(each, Option) and each.type is OptionFile for each in declared(owner))
