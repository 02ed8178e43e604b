"""Writes the pages of the docs site that come from code: Python's API from its docstrings, and what devices were
measured to do from the recorded results. ``python web/docs/pages.py FOLDER``; `make docs` calls it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import griffe

ROOT = Path(__file__).resolve().parents[2]
# The pages of the API in their order: the names by which programs import what they list.
API: Mapping[str, Sequence[str]] = {
    "Answers on two sides": [
        "nearfar.server_fallback.router.hybrid.Hybrid",
        "nearfar.server_fallback.router.hybrid.Completions",
        "nearfar.server_fallback.router.sides.far.Far",
        "nearfar.server_fallback.router.sides.embedder.Embedder",
        "nearfar.server_fallback.router.sides.finder.Finder",
    ],
    "Agents in Python": [
        f"nearfar.server_fallback.agent.{name}"
        for name in (
            *("Agent", "function_tool", "mcp_tools", "Tool", "AskedCall", "AgentResult", "AgentStep", "AgentCall"),
            *("StepBegan", "Text", "Reasoning", "Withdrawn", "Routed", "Calling", "CallEnded", "Ended"),
        )
    ],
    "Decisions of the router": [
        "nearfar.server_fallback.router.decision.decide.decide",
        "nearfar.server_fallback.router.decision.decide.Decision",
        "nearfar.server_fallback.router.decision.policy.Policy",
        "nearfar.server_fallback.router.decision.policy.PrivateRules",
        "nearfar.server_fallback.router.decision.policy.Escalation",
        "nearfar.server_fallback.router.decision.policy.Costs",
        "nearfar.server_fallback.router.decision.policy.DeviceRules",
        "nearfar.server_fallback.router.decision.policy.Fallback",
        "nearfar.server_fallback.router.decision.policy.Timeouts",
        "nearfar.server_fallback.router.decision.situation.Situation",
    ],
    "Calibrated decisions": ["nearfar.server_fallback.executors.decide.fit_calibration"],
    "Compile, open and download": [
        "nearfar.server_fallback.executors.local_opener.open_executor",
        "nearfar.server_fallback.executors.local_options.LocalOptions",
        "nearfar.compiler.pipeline.compile.compile_model",
        "nearfar.compiler.pipeline.options.CompileOptions",
        "nearfar.compiler.pipeline.options.ModelOptions",
        "nearfar.compiler.bundle.folder.open_any",
        "nearfar.compiler.bundle.folder.Bundle",
        "nearfar.compiler.publish.pull.pull",
        "nearfar.compiler.publish.catalog.Catalog",
    ],
    "Errors": [
        f"nearfar.compiler.runtime.errors.{name}"
        for name in (
            *("NearfarError", "CheckpointError", "UnsupportedModel", "QuantizationError", "BundleError", "OutputError"),
            *("DeviceError", "RequestError", "Unavailable", "QueueFull", "DeadlineExceeded", "ToolError"),
        )
    ],
}
# The results of GPUs, of which each has parts with the figures of a benchmark of complete answers.
RESULTS = ROOT / "tests/bench/results"


def write_pages(folder: Path) -> list[Path]:
    """Write all pages, and return them."""
    folder.mkdir(parents=True, exist_ok=True)
    pages = {"devices": devices_page(), **api_pages()}
    return [write(folder / f"{name}.md", text) for name, text in pages.items()]


def write(file: Path, text: str) -> Path:
    file.write_text(text, encoding="utf-8")
    return file


def api_pages() -> dict[str, str]:
    return {
        f"python_{title.lower().replace(' ', '_').replace(',', '')}": api_page(title, names)
        for title, names in API.items()
    }


def api_page(title: str, names: Sequence[str]) -> str:
    parts = [f"# {title}"]
    for name in names:
        module, _, own = name.rpartition(".")
        parts += [f"## {own}", code(f"from {module} import {own}"), *documented(found_at(name))]
    return "\n\n".join(parts) + "\n"


def found_at(name: str) -> Any:
    """What a module or a package has under a name, which a package may import from one of its modules."""
    module, _, own = name.rpartition(".")
    found = module_of(module)[own]
    return found_at(found.target_path) if found.is_alias else found


@cache
def module_of(name: str) -> griffe.Module:
    """A module of ours by its source alone, without importing it or others."""
    path = ROOT / Path(*name.split(".")[1:])
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return griffe.visit(name, filepath=file, code=file.read_text("utf-8"))


def documented(found: Any) -> Iterator[str]:
    if found.docstring is None:
        raise ValueError(f"{found.path} has no docstring, so it has no page")
    if found.is_function:
        yield code(signature(found))
        yield text_of(found)
        return
    if (init := found.functions.get("__init__")) is not None:
        yield code(signature(init, found.name))
    yield text_of(found)
    fields = [each for each in found.attributes.values() if is_public(each) and each.annotation is not None]
    if fields:
        yield "| field | type | default | |\n| --- | --- | --- | --- |\n" + "\n".join(map(row, fields))
    for method in found.functions.values():
        if is_public(method) and method.docstring is not None:
            yield f"### {method.name}"
            yield code(signature(method))
            yield text_of(method)


def is_public(found: Any) -> bool:
    return not found.name.startswith("_")


def signature(function: griffe.Function, called: str | None = None) -> str:
    """``called``: the class whose instances it makes."""
    parameters, seen_star = [], False
    for each in function.parameters:
        if each.name == "self" or each.name == "cls":
            continue
        if each.kind is griffe.ParameterKind.keyword_only and not seen_star:
            parameters.append("*")
            seen_star = True
        star = {griffe.ParameterKind.var_positional: "*", griffe.ParameterKind.var_keyword: "**"}.get(each.kind, "")
        annotation = "" if each.annotation is None else f": {each.annotation}"
        default = "" if each.default is None or star else f" = {each.default}"
        parameters.append(f"{star}{each.name}{annotation}{default}")
    head = f"{called}(" if called else f"{'async ' * ('async' in function.labels)}def {function.name}("
    returns = "" if called or function.returns is None else f" -> {function.returns}"
    line = f"{head}{', '.join(parameters)}){returns}"
    return line if len(line) <= 88 else "\n".join([head, *(f"    {each}," for each in parameters), f"){returns}"])


def row(field: griffe.Attribute) -> str:
    default = "" if field.value is None else f"`{field.value}`"
    text = "" if field.docstring is None else " ".join(text_of(field).split())
    return "| " + " | ".join(cell(each) for each in (f"`{field.name}`", f"`{field.annotation}`", default, text)) + " |"


def cell(text: str) -> str:
    return text.replace("|", "\\|")


def code(text: str) -> str:
    return f"```python\n{text}\n```"


def text_of(found: Any) -> str:
    """The docstring, in which names stand between two backticks, or one, both of which are Markdown."""
    return str(found.docstring.value)


def devices_page() -> str:
    """What GPUs did with complete models, from the results that `make gpu-check` recorded."""
    rows = [row for file in sorted(RESULTS.glob("*.json")) for row in device_rows(json.loads(file.read_text("utf-8")))]
    head = ("device", "model", "runs on", "time to first token", "tokens per second, one answer", "measured")
    table = [head, tuple("---" for _ in head), *rows]
    return "\n".join(
        [
            "# Measured devices",
            "",
            "Complete models of these shapes with random weights, as `make gpu-check` recorded them here.",
            "A device that is not here was not measured. To add yours, send the JSON of",
            "[a probe](../../web/README.md#will-it-run-here), which measures a few layers before the weights are",
            "downloaded; `nearfar devices FOLDER` makes a table and a plot of many. How the figures were measured, and",
            "those of CPUs: [benchmarks](../../tests/bench/README.md).",
            "",
            *("| " + " | ".join(map(cell, each)) + " |" for each in table),
            "",
        ]
    )


def device_rows(results: Any) -> Iterator[tuple[str, ...]]:
    """Of the results of `make gpu-check`; other benchmarks have results of other forms."""
    if not isinstance(results, Mapping) or results.get("kind") != "check":
        return
    device, day = results["machine"]["cuda"]["name"], results["began"][:10]
    for part in results["parts"]:
        figures = part["figures"]
        if part["outcome"] != "passed" or "model" not in figures:
            continue
        model = f"{figures['model']} ({figures['quantization']})"
        if part["name"].startswith("bench-web-gpu"):
            prefill, decode = figures["prefill"][0], figures["decode"][0]
            yield (
                device,
                model,
                f"WebGPU (Dawn), {figures['activation']}",
                f"{prefill['time_to_first_token_ms']:.0f} ms behind {prefill['prompt_tokens']} tokens",
                f"{decode['tokens_per_second']:,.0f} behind {decode['prompt_tokens']} tokens",
                day,
            )
        elif part["name"].startswith("bench-cuda"):
            alone = figures["alone"]
            yield (
                device,
                model,
                f"CUDA, {figures['activation']}",
                "",
                f"{1000 / alone['milliseconds_per_token']:,.0f} behind {alone['context']} tokens",
                day,
            )


if __name__ == "__main__":
    for page in write_pages(Path(sys.argv[1])):
        print(page)
