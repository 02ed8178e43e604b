"""`make gpu-check`: parts that fail, hang, crash or lack a requirement; the results are complete in every case. The
rehearsal from end to end is exhaustive.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest
from conftest import ROOT, SWIFTSHADER, lacks
from gpu_check.case_worker import run_cases
from gpu_check.comparison import OURS, PYTORCH
from gpu_check.machine import runs_cubins
from gpu_check.packages import WHEELS, install_wheels, pack, unpack_node, unpack_prepared
from gpu_check.parts import PARTS
from gpu_check.process import Result, exit_code, run_process
from gpu_check.report import FAILED, NOT_RUN, PASSED, TIMED_OUT, NotRun, Report
from gpu_check.scripts import judge, read_scripts
from gpu_check.wheels import repack

UNREQUESTED = "it was not requested"
REPORTING = """
import os, subprocess, sys, time
from pathlib import Path
from gpu_check.report import Report
report = Report(Path(sys.argv[1]))
report.add_figures(tokens=7)
"""
WORKER = """
import sys, time
from gpu_check.case_worker import cannot_run, work
def run(case):
    assert case != "wrong", "off by 3"
    if case == "crash": sys.stdout.flush(); import os; os.abort()
    if case == "hang": time.sleep(600)
    if case == "lost": raise RuntimeError("the device is lost")
work(sys.argv[1].split(","), {"device": "none"}, str, run, int(sys.argv[2]))
"""


@pytest.fixture
def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT / "tests/bench")}


def run_script(script: str, folder: Path, environment: dict[str, str], limit_seconds: float = 60) -> Result:
    report = folder / "report.json"
    command = [sys.executable, "-c", script, str(report)]
    return run_process("part", command, limit_seconds, folder, report, folder / "log", environment)


@pytest.mark.parametrize(
    ("script", "outcome"),
    [
        ("report.finish()", PASSED),
        ("report.fail('the answer is wrong')\nreport.finish()", FAILED),
        ("report.finish('Node.js is missing')", NOT_RUN),
    ],
)
def test_the_outcome_is_the_report_of_a_part(
    script: str, outcome: str, tmp_path: Path, environment: dict[str, str]
) -> None:
    result = run_script(REPORTING + script, tmp_path, environment)
    assert (result.outcome, result.figures) == (outcome, {"tokens": 7})
    assert (result.failed, list(result.failures)) == ((1, ["the answer is wrong"]) if outcome == FAILED else (0, []))
    assert result.reason == ("Node.js is missing" if outcome == NOT_RUN else None)


@pytest.mark.parametrize("script", ["os.abort()", "sys.exit(3)", "raise ValueError('no')", ""])
def test_a_process_that_ends_before_it_has_finished_has_failed(
    script: str, tmp_path: Path, environment: dict[str, str]
) -> None:
    result = run_script(REPORTING + script, tmp_path, environment)
    assert (result.outcome, result.figures, result.failed) == (FAILED, {"tokens": 7}, 1)
    assert "before it had finished" in result.failures[0]
    assert ("ValueError: no" in result.failures[0]) == ("ValueError" in script)


def test_a_part_without_a_report_has_failed(tmp_path: Path, environment: dict[str, str]) -> None:
    assert run_script("", tmp_path, environment).outcome == FAILED


def test_a_part_that_hangs_ends_with_its_children_and_keeps_its_figures(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    hang = """
child = subprocess.Popen(["sleep", "600"])
report.add_figures(child=child.pid)
time.sleep(600)
"""
    # Long enough for Python to start on a busy machine.
    result = run_script(REPORTING + hang, tmp_path, environment, limit_seconds=3)
    assert result.outcome == TIMED_OUT
    assert result.figures["tokens"] == 7
    # Signals are delivered when the system finds time for it.
    for _ in range(1000):
        if not runs(result.figures["child"]):
            return
        time.sleep(0.01)
    raise AssertionError("the part's child still runs")


def runs(pid: int) -> bool:
    """A killed process is a zombie until its parent has read its status."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return state.rpartition(")")[2].split()[0] != "Z"


def test_cases_go_on_behind_one_that_breaks_its_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests/bench"))
    report = Report(tmp_path / "report.json")
    cases = "good,wrong,crash,fine,lost,hang,last"
    run_cases([sys.executable, "-c", WORKER, cases], report, case_seconds=2)
    found = json.loads((tmp_path / "report.json").read_text())
    assert found["figures"] == {"cases": 7, "device": "none", "passed": 3}
    assert found["failures"] == [
        "wrong: off by 3",
        "crash: its process ended with -6",
        "lost: RuntimeError: the device is lost",
        "hang: it took more than 2 s",
    ]


def test_cases_are_not_run_on_a_machine_that_cannot_run_any(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests/bench"))
    report = Report(tmp_path / "report.json")
    script = "from gpu_check.case_worker import cannot_run\ncannot_run('no adapter')"
    with pytest.raises(NotRun, match="no adapter"):
        run_cases([sys.executable, "-c", script], report)


def test_a_worker_that_never_starts_is_a_failure(tmp_path: Path) -> None:
    report = Report(tmp_path / "report.json")
    run_cases([sys.executable, "-c", "raise ImportError"], report)
    assert report.outcome == FAILED


def test_the_exit_code_is_0_only_if_every_part_passed() -> None:
    def code(*outcomes: str) -> int:
        return exit_code([Result("part", outcome) for outcome in outcomes])

    assert code(PASSED, PASSED) == 0
    assert code(PASSED, NOT_RUN, FAILED) == 1
    assert code(PASSED, TIMED_OUT) == 1
    assert code(NOT_RUN, NOT_RUN) == 2
    assert code(PASSED, NOT_RUN) == 3


def test_kernels_of_another_generation_do_not_run() -> None:
    assert runs_cubins("sm_90", "sm_90")
    assert runs_cubins("sm_89", "sm_80")
    assert runs_cubins("sm_103", "sm_100-cuda12")
    assert not runs_cubins("sm_80", "sm_89")
    assert not runs_cubins("sm_100", "sm_90a")


def check(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gpu_check", *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT / "tests/bench"), **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_without_a_gpu_the_results_name_every_part_and_the_reason(tmp_path: Path) -> None:
    (tmp_path / "prepared").mkdir()
    options = ("--prepared", str(tmp_path / "prepared"), "--out", str(tmp_path / "out"))
    # This is the emulated library under the driver's name, also on machines with a GPU.
    done = check(*options, "--only", "cuda-kernels,wgsl on wgpu", CUDA_VISIBLE_DEVICES="")
    results = json.loads((tmp_path / "out/gpu-check.json").read_text())
    assert done.returncode == 2, done.stderr
    assert results["kind"] == "check"
    assert results["outcomes"] == {part.name: NOT_RUN for part in PARTS}
    reasons = {part["name"]: part["reason"] for part in results["parts"]}
    assert reasons.pop("cuda-kernels") == results["machine"]["cuda"]["missing"]
    assert "kernels.pickle is missing; run make gpu-prepare" in reasons.pop("wgsl on wgpu")
    assert set(reasons.values()) == {UNREQUESTED}
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"gpu-check.json", "gpu-check.log"}


def test_an_unknown_part_is_rejected() -> None:
    done = check("--only", "cuda-kernel")
    assert done.returncode == 2
    assert "--only cuda-kernel: is not a part; known: cuda-kernels, serve" in done.stderr


def test_a_script_and_parts_exclude_each_other() -> None:
    done = check("--script", "webgpu", "--only", "serve")
    assert done.returncode == 2
    assert "--script and --only both select parts" in done.stderr


# --- scripts and their marks ---


def recorded(name: str) -> tuple[str, list[Result]]:
    """The GPU and the parts of a file of results."""
    content = json.loads((ROOT / f"tests/bench/results/{name}.json").read_text())
    device: str = content["machine"]["cuda"]["name"]
    return device, [Result(part["name"], part["outcome"], figures=part["figures"]) for part in content["parts"]]


def test_marks_judge_recorded_results() -> None:
    device, results = recorded("h200-webgpu")
    marks = {each.mark.name: each for each in judge(read_scripts()["webgpu"], results, device, rehearsal=False)}
    assert {name: mark.met for name, mark in marks.items()} == {
        "Qwen2-0.5B, decoded tokens per second after 128": True,
        "Llama-3.2-1B, decoded tokens per second after 128": True,
        "Qwen2-0.5B, prefill of 2,048, tokens per second": False,
        "Llama-3.2-1B, prefill of 2,048, tokens per second": False,
        "linear_tile in float32, operations per second": False,
    }
    assert marks["Qwen2-0.5B, prefill of 2,048, tokens per second"].found == 3724.95
    # The best of several shapes for 512 rows.
    rows = next(part for part in results if part.name == "bench-kernels").figures["kernels"]
    tiles = [row for row in rows if row["name"].startswith("linear_tile") and row["name"].endswith("float32")]
    found = max(row["operations_per_second"] for row in tiles if row["rows"] == 512)
    assert marks["linear_tile in float32, operations per second"].found == found


def test_a_mark_says_nothing_about_another_gpu_or_a_part_that_did_not_run() -> None:
    script = read_scripts()["cuda"]
    device, results = recorded("h200-cuda")
    mark = judge(script, results, device, rehearsal=False)[0]
    assert (mark.found, mark.met) == (2.37919, False)
    mark = judge(script, results, "NVIDIA A10", rehearsal=False)[0]
    assert (mark.found, mark.met, mark.reason) == (2.37919, None, "it is a mark of H200, not of NVIDIA A10")
    mark = judge(script, [], device, rehearsal=False)[0]
    assert (mark.found, mark.met, mark.reason) == (None, None, "bench-cuda Llama-3.1-8B was not run")


def test_scripts_have_known_parts_and_marks_of_them() -> None:
    for script in read_scripts().values():
        assert set(script.parts) <= {part.name for part in PARTS}
        assert {mark.part for mark in script.marks} <= set(script.parts)
        assert all((mark.at_least is None) != (mark.at_most is None) for mark in script.marks)
        assert script.minutes <= 9


def test_a_script_that_cannot_run_judges_nothing(tmp_path: Path) -> None:
    (tmp_path / "prepared").mkdir()
    done = check("--script", "persistent", "--prepared", str(tmp_path / "prepared"), "--out", str(tmp_path / "out"))
    assert done.returncode == 2, done.stderr
    results = json.loads((tmp_path / "out/gpu-check.json").read_text())
    (part,) = (part for part in results["parts"] if part["name"] == "persistent-kernel")
    assert part["outcome"] == NOT_RUN
    assert {each["mark"]["part"]: each["met"] for each in results["marks"]} == {"persistent-kernel": None}
    assert "not judged Qwen3-0.6B, milliseconds per token of one sequence: at most 0.4" in done.stdout


# --- wheels ---


def test_wheels_compressed_with_lzma_are_installed_without_a_network(tmp_path: Path) -> None:
    """Also, nearfar's own version is found without an installation."""
    wheel = "small-1.0-py3-none-any.whl"
    with zipfile.ZipFile(tmp_path / wheel, "w") as file:
        file.writestr("small.py", "NAME = 'small'")
        file.writestr("small-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: small\nVersion: 1.0\n")
        file.writestr("small-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr("small-1.0.dist-info/RECORD", "small.py,,\n")
    (tmp_path / WHEELS).mkdir(parents=True)
    repack(tmp_path / wheel, tmp_path / WHEELS / wheel)
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "nearfar"\nversion = "9.9"\n')
    folder = install_wheels(tmp_path)
    script = "import small; from importlib.metadata import version; print(small.NAME, version('nearfar'))"
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["small", "9.9"]
    (folder / "small.py").unlink()
    # Installed wheels are not installed again.
    assert install_wheels(tmp_path) == folder
    assert not (folder / "small.py").exists()


def test_libraries_in_wheels_are_packed_without_symbols(tmp_path: Path) -> None:
    if shutil.which("strip") is None:
        lacks("strip is not installed (binutils)")
    source, library = tmp_path / "made.cpp", tmp_path / "made.so"
    source.write_text('extern "C" int answer() { return 42; }')
    subprocess.run(["c++", "-g3", "-shared", "-fPIC", str(source), "-o", str(library)], check=True)
    wheel, smaller = tmp_path / "made.whl", tmp_path / "smaller.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(library, "made/made.so")
        archive.writestr("made/text.so.txt", "no library")
    repack(wheel, smaller)
    with zipfile.ZipFile(smaller) as archive:
        archive.extractall(tmp_path / "unpacked")
    unpacked = tmp_path / "unpacked/made"
    assert (unpacked / "text.so.txt").read_text() == "no library"
    assert (unpacked / "made.so").stat().st_size < 0.9 * library.stat().st_size
    assert ctypes.CDLL(str(unpacked / "made.so")).answer() == 42


def test_packed_folders_are_unpacked_and_nothing_that_exists_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "new").write_text("new")
    (tmp_path / WHEELS).mkdir(parents=True)
    (tmp_path / "web/dist/tools").mkdir(parents=True)
    (tmp_path / "web/dist/tools/old.js").write_text("old")
    files = {"node": tmp_path / "new", "web/dist/tools/old.js": tmp_path / "new", "web/dist/new.js": tmp_path / "new"}
    pack(tmp_path / WHEELS / "node.tar.xz", files)
    node = unpack_node(tmp_path)
    assert node is not None
    assert (node / "node").read_text() == (tmp_path / "web/dist/new.js").read_text() == "new"
    assert (tmp_path / "web/dist/tools/old.js").read_text() == "old"
    prepared = tmp_path / "prepared"
    assert not unpack_prepared(prepared)
    pack(tmp_path / "prepared.tar.xz", {"": tmp_path / "web"})
    assert unpack_prepared(prepared)
    assert (prepared / "dist/new.js").read_text() == "new"


@pytest.mark.exhaustive
def test_the_check_is_rehearsed_from_end_to_end(
    tmp_path: Path,
    nvrtc: None,  # noqa: ARG001
    vulkan: None,  # noqa: ARG001
    node: str,  # noqa: ARG001
    swiftshader: dict[str, str],  # noqa: ARG001
) -> None:
    """In a clean copy, without a network, and with this Python's packages; `make gpu-rehearse` also unpacks wheels."""
    from gpu_check.rehearsal import rehearse

    if not (ROOT / "web/dist/tools/adapter.js").exists() or not SWIFTSHADER.exists():
        lacks("web/dist is not built (make web)")
    runs = rehearse(tmp_path / "rehearsal", sys.executable, None)
    results = [result for _, found in runs.values() for result in found["parts"] if result["reason"] != UNREQUESTED]
    reasons = {result["name"]: result["failures"] or result["reason"] for result in results}
    assert {result["name"]: result["outcome"] for result in results} == {part.name: PASSED for part in PARTS}, reasons
    for code, found in runs.values():
        assert code == 0
        assert found["kind"] == "rehearsal"
        assert found["machine"]["cuda"]["name"] == "emulated by libcuda.cpp"
        for each in found["marks"]:
            # No mark passes or fails here, but every figure that a mark names is one that its part has.
            assert each["met"] is None
            assert each["found"] is not None, each
    figures = {result["name"]: result["figures"] for result in results}
    assert figures["cuda-kernels"]["passed"] == figures["cuda-kernels"]["cases"] > 0
    assert figures["serve"]["wrong_answers"] == 0
    assert figures["bench-cuda Llama-3.1-8B"]["many"]["mixed_steps"] > 0
    assert figures["wgsl on Dawn"]["self_test"] == {**figures["wgsl on Dawn"]["self_test"], "state": "passed"}
    engines = figures["compare Qwen3-0.6B"]["engines"]
    assert [(each["engine"], each["error"]) for each in engines] == [(name, None) for name in (OURS, *PYTORCH)]
