"""An argparse parser whose errors propose the nearest command, option or choice for a mistyped one."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, NoReturn

from ..nearest import did_you_mean


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

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        name = action.metavar if self._is_command(action) else action.dest.replace("_", "-")
        known = [str(choice) for choice in action.choices]
        self.error(
            f"unknown {str(name).lower()} {str(value)!r}{did_you_mean(str(value), known)} (known: {', '.join(known)})"
        )

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

    def _is_command(self, action: argparse.Action) -> bool:
        return isinstance(action, argparse._SubParsersAction)
