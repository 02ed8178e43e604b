"""`make gpu-check`: everything that only a GPU can check. Each part is a process with a time limit.

    make gpu-check SCRIPT=webgpu                             # the parts of a script, and its pass marks
    make gpu-check OUT=build/gpu-check                       # all parts, at most 20 minutes
    make gpu-check ONLY='cuda-kernels,serve' MINUTES=9       # some parts; the others are reported as not run

The results are two files in OUT: gpu-check.json, which is complete at any time, and gpu-check.log. A part that fails,
hangs or crashes does not stop the others. A part with a missing requirement is "not run", with the reason, and never
"passed". The exit code is 0 if every requested part passed, 1 if one failed or timed out or a mark was missed, 2 if
none ran, and 3 if some did not run and none failed.

README.md in the folder above describes what each part needs and how to bring it to a machine without a network.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from . import machine
from .packages import install_wheels, unpack_node, unpack_prepared
from .parts import CUDA, NODE, PARTS, PREPARED, REHEARSAL_PATIENCE, Part
from .prepared import FACTS_FILE
from .process import Result, exit_code, run_process
from .report import FAILED, NOT_RUN, PASSED
from .scripts import Judged, described, judge, read_scripts
from .vulkan import vulkan_environment

ROOT = Path(__file__).resolve().parents[3]
PYTHON_PATHS = (
    ".typing", "tests", "tests/bench", "tests/targets", "tests/targets/webgpu", "tests/targets/cuda",
    "tests/targets/onnx",
)  # fmt: skip
RESULTS, LOG = "gpu-check.json", "gpu-check.log"
FORMAT_VERSION = 1
MINUTES = 20
# The end of a log explains a failure; a part that prints without end must not fill the disk.
MAX_LOG_BYTES = 1 << 20
# With less time left, a part is not started.
MIN_SECONDS = 5.0
# The cores of each part that runs beside others: it computes the expected values on the CPU.
CORES_EACH = 3


def main() -> None:
    options = arguments()
    out = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    run = Run(options, out)
    results = [Result(part.name, NOT_RUN, reason="the command ended before") for part in PARTS]
    (out / LOG).write_bytes(b"")
    run.write(results)
    environment, absent = run.prepare()
    run.write(results)

    def finish(index: int) -> None:
        part = PARTS[index]
        reason = run.reason_against(part, absent)
        if reason is not None:
            results[index] = Result(part.name, NOT_RUN, reason=reason)
        else:
            print(f"{part.name} ...", flush=True)
            results[index] = run.run_part(part, environment)
        print(line(results[index]), flush=True)
        run.write(results)

    with ThreadPoolExecutor(max(1, len(os.sched_getaffinity(0)) // CORES_EACH)) as pool:
        list(pool.map(finish, (index for index, part in enumerate(PARTS) if not part.measures)))
    for index, part in enumerate(PARTS):
        if part.measures:
            finish(index)
    print()
    for result in results:
        print(line(result))
    judged = run.judged(results)
    for each in judged:
        print(described(each))
    print(f"{time.monotonic() - run.started:.0f} s; results in {out / RESULTS}")
    requested = [result for result in results if not run.only or result.name in run.only]
    sys.exit(1 if any(each.met is False for each in judged) else exit_code(requested))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--out", type=Path, default=ROOT / "build/gpu-check", help="folder for the two files of results"
    )
    parser.add_argument(
        "--prepared",
        type=Path,
        default=ROOT / "build/gpu-prepared",
        help="the output of make gpu-prepare; made here if it is missing and TVM is installed",
    )
    parser.add_argument("--script", choices=read_scripts(), help="the parts and minutes of a script")
    parser.add_argument("--only", default="", help="names of parts, separated by commas (default: all)")
    parser.add_argument("--minutes", type=float, help="for all parts together (default: the script's, or 20)")
    parser.add_argument(
        "--rehearse",
        action="store_true",
        help="small sizes, on drivers and adapters that compute on the CPU; the results say so",
    )
    options = parser.parse_args()
    unknown = set(names(options.only)) - {part.name for part in PARTS}
    if options.script and options.only:
        parser.error("--script and --only both select parts; pass one of them")
    if unknown:
        parser.error(f"--only {', '.join(sorted(unknown))}: is not a part; known: {', '.join(p.name for p in PARTS)}")
    return options


class Run:
    """One run of the command: its options, the time that is left, and what it writes."""

    def __init__(self, options: argparse.Namespace, out: Path) -> None:
        self.started = time.monotonic()
        self.out, self.rehearse = out, bool(options.rehearse)
        scripts = read_scripts()
        self.scripts = [scripts[options.script]] if options.script else list(scripts.values())
        self.only = self.scripts[0].parts if options.script else names(options.only)
        self.prepared: Path = options.prepared.resolve()
        self.seconds: float = 60 * (options.minutes or (self.scripts[0].minutes if options.script else MINUTES))
        self.began = datetime.now(UTC)
        self.facts: dict[str, Any] = {}
        self.files = threading.Lock()

    def prepare(self) -> tuple[Mapping[str, str], Mapping[str, str]]:
        """The environment of the parts, and why some of their needs are not met."""
        absent = {}
        environment = dict(os.environ)
        paths = [str(ROOT / path) for path in PYTHON_PATHS]
        if Path(sys.prefix) != ROOT / ".venv":
            try:
                paths.append(str(install_wheels(ROOT)))
            except (OSError, subprocess.CalledProcessError) as error:
                # The machine's own packages may be enough.
                print(f"the wheels cannot be installed: {error}", flush=True)
                self.facts["wheels"] = str(error)
        node = unpack_node(ROOT)
        if node is not None and shutil.which("node") is None:
            environment["PATH"] = f"{node}{os.pathsep}{environment.get('PATH', os.defpath)}"
        environment |= {"PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1"}
        environment |= vulkan_environment(ROOT, environment)
        if not unpack_prepared(self.prepared) and not self.prepare_here(environment):
            absent[PREPARED] = f"{self.prepared} is missing; make gpu-prepare makes it on a machine with TVM"
        facts = machine.facts(ROOT, environment.get("PATH", os.defpath))
        prepared, cuda = read_facts(self.prepared / FACTS_FILE), facts["cuda"]
        if "missing" in cuda:
            absent[CUDA] = cuda["missing"]
        elif prepared and not machine.runs_cubins(cuda["arch"], prepared["arch"]):
            absent[CUDA] = (
                f"the kernels were prepared for {prepared['arch']}, and {cuda['name']} is {cuda['arch']}; "
                f"run make gpu-prepare ARCH={cuda['arch']}"
            )
        if facts["node"] is None:
            absent[NODE] = "Node.js is missing; make gpu-wheels packs it"
        elif not (ROOT / "web/node_modules/webgpu").exists():
            absent[NODE] = "the npm package webgpu is missing; make gpu-wheels packs it"
        self.facts |= {
            "commit": machine.commit(ROOT),
            "prepared": prepared,
            "machine": facts,
        }
        return environment, absent

    def prepare_here(self, environment: Mapping[str, str]) -> bool:
        """Prepare on this machine, which works if it has TVM and NVRTC."""
        print("preparing ...", flush=True)
        command = [sys.executable, "-m", "gpu_check.prepare", str(self.prepared), "--arch", "auto"]
        command += ["--rehearse"] if self.rehearse else []
        return subprocess.run(command, cwd=ROOT, env=dict(environment), check=False).returncode == 0

    def reason_against(self, part: Part, absent: Mapping[str, str]) -> str | None:
        if self.only and part.name not in self.only:
            return "it was not requested"
        missing = [absent[need] for need in part.needs if need in absent]
        if missing:
            return missing[0]
        if self.left < MIN_SECONDS:
            return f"the {self.seconds / 60:g} minutes were over"
        return None

    def run_part(self, part: Part, environment: Mapping[str, str]) -> Result:
        limit = min(part.limit_seconds * (REHEARSAL_PATIENCE if self.rehearse else 1), self.left)
        with tempfile.TemporaryDirectory(prefix="gpu-check-") as folder:
            work, report, log = Path(folder), Path(folder) / "report.json", Path(folder) / "log"
            command = [sys.executable, "-m", "gpu_check.part", part.name, "--prepared", str(self.prepared)]
            command += ["--report", str(report), "--work", str(work), *(["--rehearse"] if self.rehearse else [])]
            result = run_process(part.name, command, limit, ROOT, report, log, environment)
            with self.files, (self.out / LOG).open("ab") as file:
                file.write(f"\n=== {line(result)}\n".encode() + end_of(log))
        return result

    def write(self, results: Sequence[Result]) -> None:
        content = {
            "format_version": FORMAT_VERSION,
            "kind": "rehearsal" if self.rehearse else "check",
            "began": self.began.isoformat(timespec="seconds"),
            "seconds": round(time.monotonic() - self.started, 1),
            **self.facts,
            "outcomes": {result.name: result.outcome for result in results},
            "marks": [asdict(each) for each in self.judged(results)],
            "parts": [asdict(result) for result in results],
        }
        unfinished = self.out / f".{RESULTS}"
        with self.files:
            unfinished.write_text(json.dumps(rounded(content), separators=(",", ":")))
            unfinished.rename(self.out / RESULTS)

    def judged(self, results: Sequence[Result]) -> list[Judged]:
        """The marks of the script, or without one those of all parts that were requested."""
        device = self.facts.get("machine", {}).get("cuda", {}).get("name")
        found = [mark for each in self.scripts for mark in judge(each, results, device, rehearsal=self.rehearse)]
        return [each for each in found if not self.only or each.mark.part in self.only]

    @property
    def left(self) -> float:
        """Seconds."""
        return self.started + self.seconds - time.monotonic()


def line(result: Result) -> str:
    text = f"{result.outcome:9} {result.name:28} {result.seconds:6.1f} s"
    if result.outcome not in (PASSED, FAILED) and result.reason:
        return f"{text}  {result.reason}"
    return f"{text}  {result.failed} failures, first: {result.failures[0]}" if result.failures else text


def rounded(content: Any) -> Any:
    """Numbers with six digits, as in tests/bench/results."""
    if isinstance(content, float):
        return float(f"{content:.6g}")
    if isinstance(content, Mapping):
        return {name: rounded(each) for name, each in content.items()}
    return [rounded(each) for each in content] if isinstance(content, list | tuple) else content


def end_of(log: Path) -> bytes:
    data = log.read_bytes()
    return data if len(data) <= MAX_LOG_BYTES else b"[...]\n" + data[-MAX_LOG_BYTES:]


def read_facts(file: Path) -> Any:
    try:
        return json.loads(file.read_text())
    except (OSError, ValueError):
        return None


def names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


if __name__ == "__main__":
    main()
