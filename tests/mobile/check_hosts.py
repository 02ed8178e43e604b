"""Checks the native sources of an app's side that no compiler here builds for a phone: Kotlin's compiler checks the
types of the Android host against the signatures in `host_apis`, which are written by hand, and
tree-sitter's grammars read both hosts. `make check-hosts` runs it. It needs Java, npm and pip, and installs the
compiler (94 MB) and the grammars into a temporary folder.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
HOSTS, APIS = ROOT / "mobile/webview/hosts", Path(__file__).with_name("host_apis")
KOTLIN = HOSTS / "android/NearfarBridge.kt"
SOURCES = {"swift": HOSTS / "ios/NearfarBridge.swift", "kotlin": KOTLIN}
KOTLIN_COMPILER = "kotlin-compiler@2.4.20"
GRAMMARS = ("tree-sitter==0.26.1", "tree-sitter-swift==0.7.4", "tree-sitter-kotlin==1.1.0")
# Run with the grammars on the path. Prints the places that are not of the language.
PARSE = """
import importlib, sys
import tree_sitter
language, file = sys.argv[1:]
grammar = importlib.import_module(f"tree_sitter_{language}").language()
root = tree_sitter.Parser(tree_sitter.Language(grammar)).parse(open(file, "rb").read()).root_node
nodes, wrong = [root], []
while nodes:
    node = nodes.pop()
    nodes += node.children
    if node.type == "ERROR" or node.is_missing:
        wrong.append(node.start_point[0] + 1)
sys.exit(f"{file}: is not {language} at lines {sorted(wrong)}" if wrong else 0)
"""


def run(*command: str | Path, **options: object) -> None:
    subprocess.run([str(part) for part in command], check=True, **options)  # type: ignore[call-overload]


def check_syntax(folder: Path) -> None:
    grammars = folder / "grammars"
    run(sys.executable, "-m", "pip", "install", "--quiet", "--target", grammars, *GRAMMARS)
    for language, file in SOURCES.items():
        run(sys.executable, "-c", PARSE, language, file, env={**os.environ, "PYTHONPATH": str(grammars)})
        print(f"{file.relative_to(ROOT)}: read by tree-sitter's grammar of {language}")


def check_kotlin(folder: Path) -> None:
    run("npm", "install", "--prefix", folder, "--no-audit", "--no-fund", "--silent", KOTLIN_COMPILER)
    compiler = folder / "node_modules/kotlin-compiler"
    java = folder / "java"
    run("javac", "-d", java, *sorted((APIS / "java").rglob("*.java")))
    classes = f"{java}{os.pathsep}{compiler / 'lib/kotlinx-coroutines-core-jvm.jar'}"
    sources = [*sorted((APIS / "kotlin").glob("*.kt")), KOTLIN]
    run("bash", compiler / "bin/kotlinc", "-cp", classes, "-d", folder / "kotlin", *sources)
    print(f"{KOTLIN.relative_to(ROOT)}: compiled by {KOTLIN_COMPILER}")


def main() -> None:
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        check_syntax(folder)
        check_kotlin(folder)


if __name__ == "__main__":
    main()
