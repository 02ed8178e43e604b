"""The list of mutations fits the tree, and `make mutate` separates the bugs that tests notice from those that they
miss.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from mutate.mutation import Mutation, MutationError, read_mutations
from mutate.run import pytest_status, run_command, run_tests, vitest_filters, vitest_status
from mutate.tree import Tree

ROOT = Path(__file__).resolve().parents[2]
MUTATIONS = read_mutations()
BUG = Mutation("a bug", "product.py", "a + b", "a - b", "tests/test_product.py")


def test_every_mutation_fits_its_file_and_has_a_test() -> None:
    stale = []
    for mutation in MUTATIONS:
        try:
            mutation.check(ROOT)
        except MutationError as error:
            stale.append(str(error))
        # The tests of pages skip without a built page, which a copy does not have.
        of_page = mutation.file.startswith(("web/", "mobile/"))
        assert of_page == mutation.test.startswith(("web/", "mobile/")), mutation.name
    assert stale == []


def test_there_are_mutations_of_both_languages() -> None:
    assert len(MUTATIONS) >= 40
    assert sum(mutation.file.endswith(".ts") for mutation in MUTATIONS) >= 10


@pytest.fixture
def small_tree(tmp_path: Path) -> Path:
    """A git repository with a product file and its test."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "product.py").write_text("def add(a, b):\n    return a + b\n")
    (tmp_path / "tests/test_product.py").write_text("def test_add(): pass\n")
    (tmp_path / ".gitignore").write_text("ignored\n")
    (tmp_path / "ignored").write_text("")
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    return tmp_path


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"old": "a * b"}, "the old text occurs 0 times in product.py"),
        ({"old": "a"}, "the old text occurs 3 times"),
        ({"new": "a + b"}, "the new text is the old text"),
        ({"file": "other.py"}, r"other\.py does not exist"),
        ({"test": "tests/test_other.py"}, r"tests/test_other\.py is not a file of tests"),
        ({"test": "tests/test_product.py::test_subtract"}, "has no test 'test_subtract'"),
    ],
)
def test_a_stale_mutation_is_an_error(small_tree: Path, changed: dict[str, str], message: str) -> None:
    BUG.check(small_tree)
    with pytest.raises(MutationError, match=message):
        replace(BUG, **changed).check(small_tree)


def test_a_mutation_changes_the_copy_alone_and_only_for_a_while(small_tree: Path, tmp_path: Path) -> None:
    tree = Tree(small_tree, tmp_path / "copy")
    assert sorted(path.name for path in tree.path.iterdir()) == [".gitignore", "product.py", "tests"]
    copied = tree.path / "product.py"
    original = copied.read_text()
    compiled = tree.path / "__pycache__/product.cpython-311.pyc"
    compiled.parent.mkdir()
    compiled.touch()
    with tree.mutated(BUG):
        assert copied.read_text() == original.replace("a + b", "a - b")
        # It could be mistaken for that of the mutated file.
        assert not compiled.exists()
    assert copied.read_text() == original == (small_tree / "product.py").read_text()


def test_a_bug_fails_its_test_and_survives_another(small_tree: Path, tmp_path: Path) -> None:
    (small_tree / "tests/test_product.py").write_text(
        """\
import runpy
def test_add(): assert runpy.run_path("product.py")["add"](2, 1) == 3
def test_nothing(): runpy.run_path("product.py")["add"](2, 1)
"""
    )
    tree = Tree(small_tree, tmp_path / "copy")
    with tree.mutated(BUG):
        runs = [run_tests(tree, [f"tests/test_product.py::{name}"]).status for name in ("test_add", "test_nothing")]
    assert runs == ["failed", "passed"]
    # pytest's exit codes for an interrupted run, and for a test that does not exist.
    assert [pytest_status(code) for code in (0, 1, 2, 4, -1)] == ["passed", "failed", "broken", "broken", "broken"]


def test_a_test_in_the_copy_imports_the_copy(tmp_path: Path) -> None:
    tree = Tree.__new__(Tree)
    tree.path = tmp_path / "nearfar"
    (tree.path / "compiler").mkdir(parents=True)
    (tree.path / "compiler/__init__.py").write_text("")
    command = [sys.executable, "-c", "import nearfar.compiler; print(nearfar.compiler.__file__)"]
    code, output = run_command(command, tmp_path, tree.environment, 60.0)
    assert (code, output.strip()) == (0, str(tree.path / "compiler/__init__.py"))


def test_a_command_that_hangs_is_ended_with_its_child_processes(tmp_path: Path) -> None:
    code, output = run_command(["sh", "-c", "echo begun; sleep 60 & wait"], tmp_path, None, 0.5)
    assert code == -1
    assert output.startswith("begun")
    assert "took more than 0 s" in output


def test_vitest_runs_a_test_by_name_or_complete_files() -> None:
    assert vitest_filters(["web/test/a.test.ts::a (b)"]) == ["test/a.test.ts", "-t", r"a\ \(b\)"]
    assert vitest_filters(["web/test/a.test.ts::b", "web/test/c.test.ts"]) == ["test/a.test.ts", "test/c.test.ts"]


@pytest.mark.parametrize(
    ("code", "output", "status"),
    [
        (0, 'note\n{"numFailedTests": 0, "numPassedTests": 3}', "passed"),
        (1, '{"numFailedTests": 1, "numPassedTests": 2}', "failed"),
        # A file that cannot be imported has no tests, like a pattern that matches no name.
        (1, '{"numFailedTests": 0, "numPassedTests": 0}', "broken"),
        (0, '{"numFailedTests": 0, "numPassedTests": 0}', "broken"),
        (-1, "the tests took more than 300 s", "broken"),
    ],
)
def test_only_a_test_that_failed_counts(code: int, output: str, status: str) -> None:
    assert vitest_status(code, output) == status
