"""Checks the native sources in mobile/, which no compiler here builds for a phone. Kotlin's compiler checks types of
the Android sources against the signatures in `host_apis`, which are written by hand; tree-sitter's grammars read the
Kotlin and Swift sources; and `check_downloads.kt` runs the part that needs no Android. `make check-hosts` runs it, and
so does `make test`. It installs the compiler (94 MB, by npm) and the grammars (by pip) into a temporary folder. Without
a JDK, only the syntax is checked.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
APIS = Path(__file__).with_name("host_apis")
RUN = Path(__file__).with_name("check_downloads.kt")
KOTLIN_COMPILER = "kotlin-compiler@2.4.20"
GRAMMARS = ("tree-sitter==0.26.1", "tree-sitter-swift==0.7.4", "tree-sitter-kotlin==1.1.0")
# A second compiler of Java's and threads that collect garbage take more CPU time than they save in a run of seconds.
SHORT_RUN = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# Run with the grammars on the path. Prints the places that are not of the language.
PARSE = """
import importlib, sys
import tree_sitter
language, *files = sys.argv[1:]
grammar = importlib.import_module(f"tree_sitter_{language}").language()
parser, failed = tree_sitter.Parser(tree_sitter.Language(grammar)), []
for file in files:
    nodes, wrong = [parser.parse(open(file, "rb").read()).root_node], []
    while nodes:
        node = nodes.pop()
        nodes += node.children
        if node.type == "ERROR" or node.is_missing:
            wrong.append(node.start_point[0] + 1)
    if wrong:
        failed.append(f"{file}: is not {language} at lines {sorted(wrong)}")
sys.exit("\\n".join(failed) or 0)
"""


def sources(ending: str) -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", f"mobile/*{ending}"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    )  # fmt: skip
    return [ROOT / name for name in sorted(listed.stdout.split("\0")) if name and (ROOT / name).is_file()]


def run(*command: str | Path, **options: object) -> None:
    subprocess.run([str(part) for part in command], check=True, **options)  # type: ignore[call-overload]


def check_syntax(folder: Path) -> None:
    grammars = folder / "grammars"
    run(sys.executable, "-m", "pip", "install", "--quiet", "--target", grammars, *GRAMMARS)
    for language, ending in (("swift", ".swift"), ("kotlin", ".kt")):
        files = sources(ending)
        assert files
        run(sys.executable, "-c", PARSE, language, *files, env={**os.environ, "PYTHONPATH": str(grammars)})
        for file in files:
            print(f"{file.relative_to(ROOT)}: read by tree-sitter's grammar of {language}")


def check_kotlin(folder: Path) -> None:
    run("npm", "install", "--prefix", folder, "--no-audit", "--no-fund", "--silent", KOTLIN_COMPILER)
    compiler = folder / "node_modules/kotlin-compiler"
    java, kotlin = folder / "java", folder / "kotlin"
    run("javac", "-Xlint:-options", "-d", java, *sorted((APIS / "java").rglob("*.java")))
    libraries = os.pathsep.join(str(path) for path in (java, compiler / "lib/kotlinx-coroutines-core-jvm.jar"))
    files = sources(".kt")
    run(
        "bash", compiler / "bin/kotlinc", "-Werror", "-cp", libraries, "-d", kotlin,
        *sorted((APIS / "kotlin").glob("*.kt")), *files, RUN, env={**os.environ, "JAVA_OPTS": SHORT_RUN},
    )  # fmt: skip
    for file in files:
        print(f"{file.relative_to(ROOT)}: compiled by {KOTLIN_COMPILER}")
    classes = os.pathsep.join(str(path) for path in (kotlin, compiler / "lib/kotlin-stdlib.jar"))
    print(f"{RUN.relative_to(ROOT)}:", flush=True)
    run("java", "-cp", classes, "Check_downloadsKt")


def main() -> None:
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        check_syntax(folder)
        if shutil.which("javac") is None:
            print(
                "no JDK: the types of the Kotlin sources were not checked, and tests/mobile/check_downloads.kt not run"
            )
            return
        check_kotlin(folder)


if __name__ == "__main__":
    main()
