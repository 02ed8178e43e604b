"""A mutation: a plausible bug, as one replacement in one file, and the test that must fail with it."""

from __future__ import annotations

import tomllib
from collections import Counter
from dataclasses import dataclass, fields
from pathlib import Path

MUTATIONS = Path(__file__).with_name("mutations.toml")


class MutationError(Exception):
    """The list of mutations, or a mutation, is not valid."""


@dataclass(frozen=True, slots=True)
class Mutation:
    """``old`` occurs exactly once in ``file``, a path from the root of the tree, and ``new`` replaces it.

    ``test`` is a file of tests, or ``file::name`` for one test: Python's under ``tests/``, which pytest runs, or
    TypeScript's under ``web/test/``, which vitest runs.
    """

    name: str
    file: str
    old: str
    new: str
    test: str

    def applied(self, text: str) -> str:
        """The file's text with the bug. Raises MutationError if the old text does not occur exactly once."""
        count = text.count(self.old)
        if count != 1:
            raise MutationError(
                f"{self.name}: the old text occurs {count} times in {self.file}, not once; describe the bug in the "
                f"file's present text"
            )
        return text.replace(self.old, self.new)

    def check(self, root: Path) -> None:
        """Raises MutationError unless the mutation changes its file and its test exists."""
        path = root / self.file
        if not path.is_file():
            raise MutationError(f"{self.name}: {self.file} does not exist")
        if self.applied(path.read_text()) == path.read_text():
            raise MutationError(f"{self.name}: the new text is the old text")
        file, _, test_name = self.test.partition("::")
        if not file.startswith(("tests/", "web/test/")) or not (root / file).is_file():
            raise MutationError(f"{self.name}: {file} is not a file of tests")
        if test_name.partition("[")[0] not in (root / file).read_text():
            raise MutationError(f"{self.name}: {file} has no test {test_name!r}")


def read_mutations(path: Path = MUTATIONS) -> list[Mutation]:
    """The mutations of a TOML file with one table ``[[mutation]]`` for each. Raises MutationError."""
    names = [field.name for field in fields(Mutation)]
    tables = tomllib.loads(path.read_text())["mutation"]
    for table in tables:
        if set(table) != set(names):
            raise MutationError(f"{table.get('name')}: has {', '.join(table)}; a mutation has {', '.join(names)}")
    found = [Mutation(**table) for table in tables]
    for name, count in Counter(mutation.name for mutation in found).items():
        if count > 1:
            raise MutationError(f"{count} mutations are called {name!r}")
    return found
