"""nearfar compile: a checkpoint becomes a bundle."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from .. import quant
from ..bundle.folder import Bundle
from ..bundle.manifest import EXPORTS
from ..demo import DEMOS
from ..errors import RequestError
from ..measure.report import Report
from ..pipeline.target import TARGETS
from .inspect import export_facts, facts
from .output import add_command, megabytes, print_json, print_note
from .phases import PhaseClock, phase_table, phases_json, timed_phases, waiting
from .program import path_word
from .trial import Trial, find_trial

if TYPE_CHECKING:
    from ..measure.dry_run import DryRun
    from ..pipeline.compile import CompileOptions


def add_parser(commands: Any) -> None:
    parser = add_command(
        commands,
        "compile",
        run,
        example="nearfar compile ./Qwen3-0.6B --target webgpu --quantization q4f16 -o qwen3-web",
    )
    parser.add_argument(
        "model", metavar="MODEL", help="a Hugging Face folder, a name on its hub such as Qwen/Qwen3-0.6B, or demo"
    )
    parser.add_argument("-o", "--output", metavar="BUNDLE", type=Path, help="the folder to make; --dry-run needs none")
    parser.add_argument(
        "--target",
        choices=(*TARGETS, *EXPORTS),
        default="webgpu",
        help="the device or framework (default: %(default)s)",
    )
    parser.add_argument(
        "--arch",
        metavar="ARCH",
        help="what to compile kernels for, where the target asks: of cpu x86_64 or aarch64 (default: the target's)",
    )
    parser.add_argument(
        "--quantization", choices=quant.NAMES, default="q4f16", help="the weights' format (default: %(default)s)"
    )
    parser.add_argument(
        "--context",
        type=int,
        metavar="N",
        help="the longest sequence in tokens (default: 4096, or what the model was trained for)",
    )
    parser.add_argument(
        "--activations", nargs="+", choices=("float16", "bfloat16", "float32", "int8"), metavar="DTYPE",
        help="activation dtypes to offer, best first: float16, float32, on cuda and mlx bfloat16, on cpu int8 (default: the format's)",
    )  # fmt: skip
    parser.add_argument(
        "--group-size", type=int, choices=quant.GROUPS, metavar="N",
        help="of onnx and mlx: how many weights share a scale, 32, 64 or 128 (default: 32)",
    )  # fmt: skip
    parser.add_argument(
        "--device", metavar="DEVICE", help="of onnx: what the graph is for: cpu, webgpu, cuda, ... (default: cpu)"
    )
    parser.add_argument(
        "--kv", choices=("activation", "q8"), default="activation",
        help="keys and values: activation, as computed, or q8, 8-bit integers in half the memory of float16 (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--lora-rank", type=int, default=0, metavar="RANK",
        help="take LoRA adapters of up to this rank, a choice for each request (default: none)",
    )  # fmt: skip
    parser.add_argument(
        "--tuning", nargs="+", type=Path, default=[], metavar="FILE",
        help="ship what engine.exportTuning() measured on some GPUs, so that these need not measure again",
    )  # fmt: skip
    parser.add_argument(
        "--no-self-test", action="store_false", dest="self_test",
        help="leave out the prompt by which runtimes find out whether a GPU computes right",
    )  # fmt: skip
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="show sizes, memory, dispatches and an estimate of the time; write nothing",
    )
    parser.add_argument("--force", action="store_true", help="replace a bundle that exists")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of progress")


def run(options: argparse.Namespace) -> None:
    from ..pipeline.compile import CompileOptions, compile_any

    model = str(DEMOS.get(options.model, options.model))
    wanted = CompileOptions(
        target=options.target,
        arch=options.arch,
        quantization=options.quantization,
        context=options.context,
        activations=tuple(options.activations) if options.activations else None,
        group_size=options.group_size,
        device=options.device,
        kv=options.kv,
        lora_rank=options.lora_rank,
        self_test=options.self_test,
        tuning=tuple(options.tuning),
        force=options.force,
    )
    if options.dry_run:
        show_dry_run(model, wanted, as_json=options.json)
        return
    if options.output is None:
        raise RequestError("-o BUNDLE is missing: name the folder to make, or take --dry-run, which writes nothing")
    notes: list[str] = []
    with timed_phases(quiet=options.json) as clock:
        bundle = compile_any(model, options.output, wanted, clock.progress, notes.append)
    size = bundle.size_bytes()
    kernels = len(bundle.manifest.kernels) if isinstance(bundle, Bundle) else 0
    if options.json:
        result = {"bundle": str(options.output), "bytes": size, "kernels": kernels, "notes": notes}
        print_json({**result, **clock.total.to_json(), "phases": phases_json(clock.durations)})
        return
    for note in notes:
        print_note(note)
    name, count = escape(path_word(str(options.output))), f", {kernels} kernels" if kernels else ""
    # A path that is wrapped cannot be copied.
    console = Console(soft_wrap=True, highlight=False)
    console.print(f"[bold green]compiled[/] {name}  {megabytes(size)}{count}, {clock.total.seconds:.1f} s\n")
    print_phases(console, clock)
    print_trial(console, find_trial(bundle))


def print_phases(console: Console, clock: PhaseClock) -> None:
    console.print(phase_table(clock))
    if (line := waiting(clock.total)) is not None:
        console.print(f"  {line}", style="dim")
    console.print()


def print_trial(console: Console, trial: Trial) -> None:
    if trial.reason is not None:
        console.print(escape(trial.reason), style="dim")
    console.print(f"[bold]try it:[/]  {escape(trial.command)}")


def show_dry_run(model: str, wanted: CompileOptions, *, as_json: bool) -> None:
    from ..measure.dry_run import dry_run

    notes: list[str] = []
    with timed_phases(quiet=as_json) as clock:
        found = dry_run(model, wanted, clock.progress, notes.append)
    spent = clock.total.seconds
    seconds = spent + found.estimate.weights_seconds + found.estimate.self_test_seconds
    if as_json:
        estimate = {"estimated_seconds": round(seconds, 3), "estimate": asdict(found.estimate), "notes": notes}
        sizes = {"bytes": sum(found.sizes.values()), "file_bytes": dict(found.sizes)}
        print_json({**found.report.to_json(), **sizes, **estimate, "phases": phases_json(clock.durations)})
        return
    for note in notes:
        print_note(note)
    console = Console(highlight=False)
    console.print(dry_run_table(found, spent, seconds))
    console.print("[bold]dry run:[/] nothing was written; sizes, memory and dispatches are exact")


def dry_run_table(found: DryRun, spent: float, seconds: float) -> Table:
    """``spent``: seconds of the dry run itself, which a compile needs as well."""
    report, estimate = found.report, found.estimate
    table = facts(report) if isinstance(report, Report) else export_facts(report)
    if isinstance(report, Report):
        kernel_bytes = sum(size for file, size in found.sizes.items() if file.startswith("kernels/"))
        table.add_row("kernels", f"{report.kernels} in {megabytes(kernel_bytes)}")
    self_test = ", and a few kB for the self-test" if found.has_self_test else ""
    table.add_row("bundle", f"{megabytes(sum(found.sizes.values()))} in {len(found.sizes)} files{self_test}")
    lines = [f"{seconds:.1f} s in all", f"{spent:.1f} s  up to the kernels, as measured now"]
    lines.append(f"{estimate.weights_seconds:.1f} s  packing, by a sample of {estimate.sample_elements:,} weights")
    if found.has_self_test:
        lines.append(f"{estimate.self_test_seconds:.1f} s  self-test, by the same sample")
    table.add_row("time (estimate)", "\n".join(lines))
    return table
