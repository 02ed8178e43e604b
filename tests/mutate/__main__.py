"""`make mutate`: tries each bug of mutations.toml in a copy of the tree, and prints those that no test notices.

    make mutate                    # all mutations
    make mutate ONLY=top_p         # those whose name contains "top_p"

It exits with 0 if the tests pass without a mutation and each mutation makes its test fail, with 1 otherwise.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from queue import SimpleQueue

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from .mutation import Mutation, MutationError, read_mutations
from .run import Run, is_case, run_tests
from .tree import Tree

ROOT = Path(__file__).resolve().parents[2]
SHOWN_LINES = 30
# All tests of the list without a mutation took 85 s on one busy core.
BASELINE_SECONDS = 900.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="part of the names of the mutations to try")
    parser.add_argument("--jobs", type=int, default=min(4, os.cpu_count() or 1), help="default: %(default)s")
    options = parser.parse_args()
    console = Console(stderr=True)
    mutations = [mutation for mutation in read_mutations() if options.only in mutation.name]
    if not mutations:
        parser.error(f"no mutation has {options.only!r} in its name")
    try:
        for mutation in mutations:
            mutation.check(ROOT)
    except MutationError as error:
        console.print(f"[red]stale[/]: {error}", highlight=False)
        return 1
    started = time.monotonic()
    with ExitStack() as stack:
        trees: SimpleQueue[Tree] = SimpleQueue()
        for _ in range(min(options.jobs, len(mutations))):
            trees.put(Tree(ROOT, Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="nearfar-mutate-")))))
        if not all_pass(mutations, trees, console):
            return 1
        survivors = tried(mutations, trees, console)
    minutes, seconds = divmod(round(time.monotonic() - started), 60)
    killed = len(mutations) - survivors
    console.print(f"{killed} of {len(mutations)} mutations made their tests fail; {minutes} min {seconds} s")
    return 1 if survivors else 0


def all_pass(mutations: list[Mutation], trees: SimpleQueue[Tree], console: Console) -> bool:
    """Whether the tests pass without a mutation; otherwise, their failure would say nothing about one."""
    found = sorted({mutation.test for mutation in mutations})
    python = [test for test in found if test.startswith("tests/")]
    groups = [
        [test for test in python if not is_case(test)],
        [test for test in python if is_case(test)],
        [test for test in found if test.startswith("web/")],
    ]

    def run(tests: list[str]) -> Run:
        tree = trees.get()
        try:
            return run_tests(tree, tests, BASELINE_SECONDS)
        finally:
            trees.put(tree)

    passed = True
    with console.status(f"{len(found)} tests and files of tests without a mutation"), ThreadPoolExecutor(2) as threads:
        for result in threads.map(run, filter(None, groups)):
            if result.status != "passed":
                console.print(f"[red]{result.status} without a mutation[/]:")
                console.print(tail(result), markup=False, highlight=False)
                passed = False
    return passed


def tried(mutations: list[Mutation], trees: SimpleQueue[Tree], console: Console) -> int:
    """The number of mutations that did not make their test fail, each of which is printed."""
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    survivors = 0
    with Progress(*columns, console=console) as progress, ThreadPoolExecutor(trees.qsize()) as threads:
        task = progress.add_task("mutations", total=len(mutations))
        for mutation, run in threads.map(lambda mutation: (mutation, try_mutation(mutation, trees)), mutations):
            if run.status == "failed":
                progress.console.print(f"[green]killed[/]   {run.seconds:5.1f} s  {mutation.name}", highlight=False)
            else:
                survivors += 1
                word = "survived" if run.status == "passed" else "broken"
                progress.console.print(
                    f"[red]{word}[/] {run.seconds:5.1f} s  {mutation.name}: {mutation.file}, {mutation.test}",
                    highlight=False,
                )
                if run.status == "broken":
                    progress.console.print(tail(run), markup=False, highlight=False)
            progress.advance(task)
    return survivors


def try_mutation(mutation: Mutation, trees: SimpleQueue[Tree]) -> Run:
    tree = trees.get()
    try:
        with tree.mutated(mutation):
            return run_tests(tree, [mutation.test])
    finally:
        trees.put(tree)


def tail(run: Run) -> str:
    return "\n".join(line[:200] for line in run.output.splitlines()[-SHOWN_LINES:])


if __name__ == "__main__":
    sys.exit(main())
