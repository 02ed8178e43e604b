"""The allowed imports, checked in the source; and the agreement of files that are generated or listed twice."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LAYERS = {"compiler": ("targets", "server_fallback"), "targets": ("server_fallback",)}
# What a running model needs of the compiler, and what of the rest it knows nevertheless.
RUNNING = {"names", "nearest", "options", "ir", "quant", "bundle", "shared", "runtime"}
NEEDED_OF_THE_REST = {
    "compiler/runtime/inputs.py": "nearfar.compiler.arch.decoder",
    "compiler/runtime/text/stable_tokens.py": "nearfar.compiler.formats.byte_level",
}
HEAVY = {"tvm", "torch", "wgpu", "transformers", "huggingface_hub", "playwright", "cuda"}
# A file that wraps a heavy library. Nothing imports it before it is needed.
MAY_IMPORT_AT_THE_TOP = {"compiler/kernels/tir.py": {"tvm"}}
SOURCES = sorted(
    path.relative_to(ROOT).as_posix()
    for layer in ("compiler", "targets", "server_fallback")
    for path in (ROOT / layer).rglob("*.py")
)


@cache
def tree_of(file: str) -> ast.Module:
    return ast.parse((ROOT / file).read_text())


def imports(file: str, *, top_only: bool) -> Iterator[str]:
    """Absolute names of the modules that a file imports."""
    tree = tree_of(file)
    package = ["nearfar", *Path(file).parent.parts]
    for node in top_level(tree) if top_only else statements(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)


def statements(tree: ast.Module) -> Iterator[ast.AST]:
    """All statements, without their expressions, which are most of a tree and hold no imports."""
    pending: list[ast.AST] = [tree]
    while pending:
        node = pending.pop()
        yield node
        for field in ("body", "orelse", "finalbody", "handlers", "cases"):
            pending += getattr(node, field, ())


def top_level(tree: ast.Module) -> Iterator[ast.stmt]:
    """Statements that run on import, without those in functions and those only for type checkers."""
    pending: list[ast.stmt] = list(tree.body)
    while pending:
        node = pending.pop()
        yield node
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            continue
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            pending += [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt)]


# One test of all files, because a test of each costs more than what it checks.
def test_a_layer_imports_no_layer_above_it() -> None:
    upward = []
    for file in SOURCES:
        above = tuple(f"nearfar.{layer}" for layer in LAYERS.get(file.split("/")[0], ()))
        upward += [(file, name) for name in imports(file, top_only=False) if above and name.startswith(above)]
    assert upward == []


def test_what_a_running_model_needs_imports_nothing_else_of_the_compiler() -> None:
    rest = {path.stem for path in (ROOT / "compiler").iterdir()} - RUNNING
    found = {
        file: ".".join(name.split(".")[:4])
        for file in SOURCES
        if file.startswith("compiler/") and Path(file.split("/")[1]).stem in RUNNING
        for name in imports(file, top_only=False)
        if name.startswith("nearfar.compiler.") and name.split(".")[2] in rest
    }
    assert found == NEEDED_OF_THE_REST


def test_heavy_libraries_are_imported_where_they_are_used() -> None:
    heavy = {file: {name.split(".")[0] for name in imports(file, top_only=True)} & HEAVY for file in SOURCES}
    assert {file: names for file, names in heavy.items() if names - MAY_IMPORT_AT_THE_TOP.get(file, set())} == {}


def test_every_exception_from_the_rule_is_still_needed() -> None:
    for file, libraries in MAY_IMPORT_AT_THE_TOP.items():
        assert libraries <= {name.split(".")[0] for name in imports(file, top_only=True)}, file


@pytest.mark.parametrize(
    "module", ["nearfar.compiler.cli", "nearfar.compiler.pipeline.compile", "nearfar.compiler.runtime.reference"]
)
def test_importing_the_command_line_loads_no_heavy_library(module: str) -> None:
    code = f"import sys, {module}; print(*sorted({HEAVY} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_lowering_loads_tvm_without_torch() -> None:
    code = f"import sys, nearfar.targets.webgpu.lower; print(*sorted({HEAVY} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    # TVM imports NVIDIA's bindings if they are installed.
    assert done.stdout.split()[-1] == "tvm"
    assert "torch" not in done.stdout


def test_packages_on_disk_are_those_of_pyproject() -> None:
    listed = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"])
    folders = {
        path.parent.relative_to(ROOT)
        for layer in ("compiler", "targets", "server_fallback")
        for path in (ROOT / layer).rglob("__init__.py")
    }
    mine = {
        name for name in listed if name.startswith(("nearfar.compiler", "nearfar.targets", "nearfar.server_fallback"))
    }
    assert mine == {".".join(["nearfar", *folder.parts]) for folder in folders}
    # A wheel would not contain a folder of modules that is not a package.
    assert {Path(file).parent for file in SOURCES} <= folders


def test_the_types_of_the_web_package_are_those_of_python() -> None:
    from nearfar.compiler.bundle import schema
    from nearfar.compiler.publish import schema as catalog_schema
    from nearfar.server_fallback.schema import typescript

    files = {**schema.outputs(), **catalog_schema.outputs(), **typescript.outputs()}
    assert {path.name for path in files} == {
        "manifest.ts", "manifest_types.json", "schema.ts", "catalog.ts", "catalog_types.json", "sampling.ts",
        "parameters.ts", "parameters.json", "replies.ts", "report_types.json",
    }  # fmt: skip
    for path, text in files.items():
        assert path.read_text() == text, path


def test_no_two_files_of_tests_have_one_name() -> None:
    """pytest imports them by their names alone, so that it collects no tests if two are equal."""
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert sorted(names) == sorted(set(names))
