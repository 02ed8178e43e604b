"""`make gpu-check`: everything that only an NVIDIA GPU can check. Each step is a process with a time limit.

    make gpu-check OUT=build/gpu-check       # needs a GPU with its driver; at most 8 minutes
    make gpu-prepare                         # compiles with TVM on a machine without a GPU; copy build/gpu-prepared

A step that fails or takes too long does not stop the others. The log of each step and summary.json are written to OUT.
The exit code is 0 if every step passed, 1 if one failed, and 2 without a GPU. A step whose tools are missing (TVM,
Node.js) fails, and its log names them.

Prepared folders do not need TVM: numpy, pydantic, rich, tokenizers, jinja2, ml_dtypes, cuda-bindings, httpx and the
packages of nearfar[serve] are enough, and nearfar need not be installed. The WebGPU steps need Node.js,
web/node_modules, a Vulkan driver and TVM.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PATHS = (".typing", "tests", "tests/bench", "tests/targets", "tests/targets/webgpu", "tests/targets/cuda")
NO_GPU = 2
# The number of lines of a failed step's log that are printed.
TAIL_LINES = 8


@dataclass(frozen=True, slots=True)
class Step:
    name: str
    command: Sequence[str]
    limit_seconds: float


@dataclass(frozen=True, slots=True)
class Result:
    """``outcome``: "passed", "failed" or "took too long"."""

    name: str
    outcome: str
    exit_code: int | None
    seconds: float
    log: str


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--out",
        type=Path,
        default=ROOT / "build" / "gpu-check",
        help="logs and summary.json (default: build/gpu-check)",
    )
    parser.add_argument(
        "--prepared",
        type=Path,
        default=ROOT / "build" / "gpu-prepared",
        help="the output of make gpu-prepare; if it is missing, it is made",
    )
    parser.add_argument("--only", default="", help="names of steps, separated by commas (default: all)")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    reason = missing_gpu()
    if reason is not None:
        print(f"no GPU: {reason}; nothing was checked")
        (options.out / "summary.json").write_text(json.dumps({"gpu": None, "reason": reason, "steps": []}))
        sys.exit(NO_GPU)
    wanted = [name for name in options.only.split(",") if name]
    steps = [
        step
        for step in all_steps(options.prepared.resolve(), options.out.resolve())
        if not wanted or step.name in wanted
    ]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(str(ROOT / path) for path in PATHS),
        "PYTHONUNBUFFERED": "1",
    }
    results = []
    for step in steps:
        print(f"{step.name} ...", flush=True)
        results.append(run_step(step, options.out.resolve(), environment))
        print_result(results[-1], options.out)
        # Results are not lost if the command is stopped.
        (options.out / "summary.json").write_text(json.dumps({"steps": [asdict(each) for each in results]}, indent=1))
    print()
    for result in results:
        print(f"{result.outcome:13} {result.name:16} {result.seconds:6.1f} s  {result.log}")
    sys.exit(any(result.outcome != "passed" for result in results))


def missing_gpu() -> str | None:
    """Returns why no GPU can be checked, or None if one can."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return f"NVIDIA's driver is not installed ({error})"
    device = ctypes.c_int()
    status = driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(device), 0)
    return f"NVIDIA's driver finds no GPU (CUDA error  {status})" if status else None


def all_steps(prepared: Path, out: Path) -> list[Step]:
    python = sys.executable
    module = (python, "-m")
    steps = [
        Step(
            "machine",
            ("bash", "-c", "nvidia-smi; lscpu | head -20; free -g; " + f"{python} -m pip list 2>/dev/null"),
            20,
        )
    ]
    if not (prepared / "cases.pickle.gz").exists():
        steps.append(Step("prepare", (*module, "gpu_check.prepare", str(prepared), "--arch", "auto"), 150))
    return [
        *steps,
        Step("kernels", (*module, "gpu_check.kernels", str(prepared)), 60),
        Step("served", (*module, "gpu_check.served", str(prepared), str(out / "server.log")), 60),
        Step("bench-cuda", (*module, "gpu_check.bench", str(prepared), str(out)), 120),
        Step("bench-kernels", (python, "tests/bench/bench_kernels.py", "--folder", str(out)), 60),
        Step("bench-web-gpu", (python, "tests/bench/bench_web_gpu.py"), 100),
    ]


def run_step(step: Step, out: Path, environment: Mapping[str, str]) -> Result:
    log = out / f"{step.name}.log"
    started = time.monotonic()
    with log.open("wb") as file:
        # In a new session, the servers and compilers that the step starts end with it.
        process = subprocess.Popen(
            step.command, cwd=ROOT, env=dict(environment), stdout=file, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            code: int | None = process.wait(step.limit_seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            code = None
    outcome = "took too long" if code is None else "passed" if code == 0 else "failed"
    return Result(step.name, outcome, code, time.monotonic() - started, log.name)


def print_result(result: Result, out: Path) -> None:
    print(f"{result.name}: {result.outcome} after {result.seconds:.1f} s", flush=True)
    if result.outcome != "passed":
        for line in (out / result.log).read_text(errors="replace").splitlines()[-TAIL_LINES:]:
            print(f"    {line}")


if __name__ == "__main__":
    main()
