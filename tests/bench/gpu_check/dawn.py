"""Dawn, Chrome's WebGPU, in Node.js: its adapter, and the scripts that run on it."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .report import NotRun, Report

WEB = Path(__file__).resolve().parents[3] / "web"


@dataclass(frozen=True, slots=True)
class Adapter:
    name: str
    features: frozenset[str]


class ScriptFailed(Exception):
    """A script in Node.js ended with an error, or was stopped. The message is the end of its output."""


def find_adapter(report: Report, *, any_adapter: bool) -> Adapter:
    """Raises NotRun if there is none, or only one that computes on the CPU."""
    found = run_tool("adapter", timeout_seconds=60)
    if found is None:
        raise NotRun("Dawn finds no adapter; it needs a Vulkan driver, libvulkan.so.1 and libEGL.so.1 (GLVND)")
    if found["cpu"] and not any_adapter:
        raise NotRun(f"Dawn finds only {found['name']}, which computes on the CPU")
    report.add_figures(adapter=found["name"])
    return Adapter(found["name"], frozenset(found["features"]))


def node() -> str:
    """Raises NotRun."""
    found = shutil.which("node")
    if found is None:
        raise NotRun("Node.js is missing")
    return found


def run_tool(name: str, *arguments: str, timeout_seconds: float) -> Any:
    """The JSON that a tool of web/tools prints last. Raises NotRun if it is not built, and ScriptFailed."""
    script = WEB / "dist/tools" / f"{name}.js"
    if not script.exists():
        raise NotRun(f"{script} is missing; run make web, or pack it with make gpu-wheels")
    return json.loads(run_node(script, *arguments, timeout_seconds=timeout_seconds).splitlines()[-1])


def run_node(script: Path, *arguments: str, timeout_seconds: float) -> str:
    """The standard output of a script. Raises ScriptFailed."""
    try:
        done = subprocess.run(
            [node(), str(script), *arguments], cwd=WEB, capture_output=True, text=True, timeout=timeout_seconds,
            check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise ScriptFailed(f"{script.name} was stopped after {timeout_seconds:.0f} s") from error
    print(done.stderr, end="", flush=True)
    if done.returncode != 0:
        raise ScriptFailed(f"{script.name} ended with {done.returncode}: {(done.stderr or done.stdout)[-500:]}")
    return done.stdout
