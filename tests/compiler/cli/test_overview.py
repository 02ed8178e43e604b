"""The output of the command line without a command, and the modules that it loads for this."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import parsed

from nearfar.compiler.cli import main
from nearfar.compiler.cli.overview import COMMANDS, EXAMPLES, WIDTH, make_overview


@pytest.mark.parametrize("arguments", [[], ["--help"], ["--version"]])
def test_the_first_screen_loads_no_command_and_no_library(arguments: list[str]) -> None:
    # A library takes between 20 ms (rich) and seconds (tvm) to import.
    code = (
        "import sys\nbefore = set(sys.modules)\nfrom nearfar.compiler.cli import main\n"
        f"try:\n    main({arguments!r})\nexcept SystemExit:\n    pass\n"
        "print(*sorted(set(sys.modules) - before), file=sys.stderr)"
    )
    result = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    loaded = {name for name in result.stderr.split() if name.partition(".")[0] not in sys.stdlib_module_names}
    modules = (
        "",
        ".cli",
        ".cli.option_file",
        ".cli.overview",
        ".cli.parser",
        ".cli.program",
        ".nearest",
        ".options",
        ".runtime",
        ".runtime.errors",
    )
    assert loaded <= {"nearfar", *(f"nearfar.compiler{name}" for name in modules)}


def test_nearfar_alone_shows_every_command_in_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["nearfar.compiler.cli.overview"], "program", lambda: "nearfar")
    assert main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    for name, command in COMMANDS.items():
        assert any(line.split() == [name, *command.summary.split()] for line in lines), name
    assert max(map(len, lines)) <= WIDTH
    assert all(any(note in line for line in lines) for _, note in EXAMPLES)


def test_the_three_examples_are_valid_commands() -> None:
    assert len(EXAMPLES) == 3
    for example, _ in EXAMPLES:
        assert parsed(*shlex.split(example)) is not None


@pytest.mark.exhaustive
def test_the_three_examples_run_as_they_are_printed(tmp_path: Path) -> None:
    printed = make_overview().splitlines()
    examples = [next(line for line in printed if example in line) for example, _ in EXAMPLES]
    commands = [
        shlex.split(line) if "  " not in line.strip() else shlex.split(line.strip().partition("  ")[0])
        for line in examples
    ]
    for command in commands:
        result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert result.returncode == 0, (command, result.stderr)
    assert [path.name for path in tmp_path.iterdir()] == ["my-demo"]
