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
from ..ir.kv_format import KV_NAMES
from ..measure.report import Report
from ..pipeline.target import TARGETS
from .inspect import export_facts, facts
from .model import add_ignore_key
from .output import add_command, megabytes, print_json, print_note
from .phases import PhaseClock, phase_table, phases_json, timed_phases, waiting
from .program import path_word
from .trial import Trial, find_trial

if TYPE_CHECKING:
    from ..measure.dry_run import DryRun
    from ..pipeline.compile import CompileOptions
TASKS = ("generate", "embed", "rerank", "classify")
# The kinds of models, by their task.
KINDS = {
    "generate": "a model that generates text (generate)",
    "embed": "an embedding model (embed)",
    "rerank": "a reranker, which scores pairs of a query and a passage (rerank)",
    "classify": "a classifier (classify)",
}


def add_parser(commands: Any) -> None:
    parser = add_command(
        commands,
        "compile",
        run,
        example="nearfar compile ./Qwen3-0.6B --target webgpu --quantization q4f16 -o qwen3-web",
    )
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="a Hugging Face folder, a GGUF file, a repository on the hub such as Qwen/Qwen3-0.6B or "
        "Qwen/Qwen3-0.6B-GGUF:Q8_0, or demo",
    )
    parser.add_argument(
        "-o", "--output", metavar="BUNDLE", type=Path, help="the folder to create; --dry-run does not need it"
    )
    parser.add_argument(
        "--target",
        choices=(*TARGETS, *EXPORTS),
        default="webgpu",
        help="the device or framework (default: %(default)s)",
    )
    parser.add_argument(
        "--task",
        choices=TASKS,
        help="what the model is for; rerank makes a reranker of a language model that answers yes or no, such as "
        "Qwen3-Reranker (default: what its files say)",
    )
    parser.add_argument(
        "--arch",
        metavar="ARCH",
        help="the architecture to compile kernels for, if the target needs one: for cpu, x86_64 or aarch64; for cuda, "
        "such as sm_90, or sm_90-cuda12 for drivers older than 580 (default: the target's)",
    )
    parser.add_argument(
        "--quantization",
        choices=quant.NAMES,
        help=f"the weights' format (default: {quant.DEFAULT}, and {quant.ENCODER_DEFAULT} of encoders; weights that "
        "the checkpoint stores quantized stay as they are)",
    )
    parser.add_argument(
        "--requantize",
        action="store_true",
        help="also convert the weights that the checkpoint stores quantized, by rounding them to the weights' format",
    )
    parser.add_argument(
        "--quality",
        choices=("best",),
        help="best: fit the weights to a calibration text, each matrix in the format that the budget of --bits is best "
        "spent on (webgpu, cpu, cuda); takes longer",
    )
    parser.add_argument(
        "--bits",
        type=float,
        metavar="B",
        help="with --quality best: bits a weight on average, scales included (default: 4.5)",
    )
    parser.add_argument(
        "--calibration",
        type=Path,
        metavar="FILE",
        help="with --quality best: a UTF-8 text like those that the model will read and write (default: the model "
        "itself continues texts that come with nearfar)",
    )
    parser.add_argument(
        "--context",
        type=int,
        metavar="N",
        help="the longest sequence in tokens (default: 4096, or the model's limit if that is less)",
    )
    parser.add_argument(
        "--activations", nargs="+", choices=("float16", "bfloat16", "float32", "int8"), metavar="DTYPE",
        help="activation dtypes to offer, best first: float16 and float32; bfloat16 on cuda and mlx; int8 on cpu "
        "(default: those of the quantization)",
    )  # fmt: skip
    parser.add_argument(
        "--group-size", type=int, choices=quant.GROUPS, metavar="N",
        help="for onnx and mlx: the number of weights that share a scale: 32, 64 or 128 (default: 32)",
    )  # fmt: skip
    parser.add_argument(
        "--device",
        metavar="DEVICE",
        help="for onnx: the device that the graph is made for: cpu, webgpu, cuda, ... (default: cpu)",
    )
    parser.add_argument(
        "--kv", choices=KV_NAMES, default="activation",
        help="format of keys and values: activation, as computed; q8, 8-bit integers in half the memory of float16; or "
        "q4, 4-bit integers in a quarter (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--lora-rank", type=int, default=0, metavar="RANK",
        help="accept LoRA adapters of up to this rank; each request can choose one (default: no adapters)",
    )  # fmt: skip
    parser.add_argument(
        "--tuning", nargs="+", type=Path, default=[], metavar="FILE",
        help="include results of engine.exportTuning(), so that those GPUs need not measure again",
    )  # fmt: skip
    parser.add_argument(
        "--no-self-test", action="store_false", dest="self_test",
        help="leave out the test with which runtimes check that a device computes correctly",
    )  # fmt: skip
    add_ignore_key(parser)
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="show sizes, memory, dispatches and an estimate of the time; write nothing",
    )
    parser.add_argument("--force", action="store_true", help="replace an existing bundle")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of progress")


def run(options: argparse.Namespace) -> None:
    from ..pipeline.compile import CompileOptions, compile_any

    model = str(DEMOS.get(options.model, options.model))
    compile_options = CompileOptions(
        target=options.target,
        task=options.task,
        arch=options.arch,
        quantization=options.quantization,
        requantize=options.requantize,
        context=options.context,
        activations=tuple(options.activations) if options.activations else None,
        group_size=options.group_size,
        device=options.device,
        kv=options.kv,
        quality=options.quality,
        bits=options.bits,
        calibration=options.calibration,
        lora_rank=options.lora_rank,
        self_test=options.self_test,
        tuning=tuple(options.tuning),
        ignore_keys=tuple(options.ignore_keys),
        force=options.force,
    )
    if options.dry_run:
        if options.quality is not None:
            raise RequestError(
                "--dry-run: --quality best chooses formats by measurement, so sizes are unknown before; remove one of "
                "the two options"
            )
        show_dry_run(model, compile_options, as_json=options.json)
        return
    if options.output is None:
        raise RequestError("-o BUNDLE is missing; name the folder to create, or use --dry-run, which writes nothing")
    notes: list[str] = []
    with timed_phases(quiet=options.json) as clock:
        bundle = compile_any(model, options.output, compile_options, clock.progress, notes.append)
    size = bundle.size_bytes()
    kernels = len(bundle.manifest.kernels) if isinstance(bundle, Bundle) else 0
    if options.json:
        result = {"bundle": str(options.output), "task": bundle.manifest.task, "bytes": size, "kernels": kernels}
        result |= {"notes": notes}
        print_json({**result, **clock.total.to_json(), "phases": phases_json(clock.durations)})
        return
    for note in notes:
        print_note(note)
    name, count = escape(path_word(str(options.output))), f", {kernels} kernels" if kernels else ""
    # A wrapped path cannot be copied.
    console = Console(soft_wrap=True, highlight=False)
    console.print(f"[bold green]compiled[/] {name}  {megabytes(size)}{count}, {clock.total.seconds:.1f} s")
    console.print(f"{KINDS[bundle.manifest.task]}\n")
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


def show_dry_run(model: str, options: CompileOptions, *, as_json: bool) -> None:
    from ..measure.dry_run import dry_run

    notes: list[str] = []
    with timed_phases(quiet=as_json) as clock:
        result = dry_run(model, options, clock.progress, notes.append)
    spent = clock.total.seconds
    seconds = spent + result.estimate.weights_seconds + result.estimate.self_test_seconds
    if as_json:
        estimate = {"estimated_seconds": round(seconds, 3), "estimate": asdict(result.estimate), "notes": notes}
        sizes = {"bytes": sum(result.sizes.values()), "file_bytes": dict(result.sizes)}
        print_json({**result.report.to_json(), **sizes, **estimate, "phases": phases_json(clock.durations)})
        return
    for note in notes:
        print_note(note)
    console = Console(highlight=False)
    console.print(dry_run_table(result, spent, seconds))
    console.print("[bold]dry run:[/] nothing was written; sizes, memory and dispatches are exact")


def dry_run_table(result: DryRun, spent: float, seconds: float) -> Table:
    """``spent``: the seconds of the dry run itself, which a compile needs too."""
    report, estimate = result.report, result.estimate
    table = facts(report) if isinstance(report, Report) else export_facts(report)
    if isinstance(report, Report):
        kernel_bytes = sum(size for file, size in result.sizes.items() if file.startswith("kernels/"))
        table.add_row("kernels", f"{report.kernels} in {megabytes(kernel_bytes)}")
    self_test = ", and a few kB for the self-test" if result.has_self_test else ""
    table.add_row("bundle", f"{megabytes(sum(result.sizes.values()))} in {len(result.sizes)} files{self_test}")
    lines = [f"{seconds:.1f} s in all", f"{spent:.1f} s  up to the kernels, as just measured"]
    lines.append(f"{estimate.weights_seconds:.1f} s  packing, from a sample of {estimate.sample_elements:,} weights")
    if result.has_self_test:
        lines.append(f"{estimate.self_test_seconds:.1f} s  self-test, from the same sample")
    table.add_row("time (estimate)", "\n".join(lines))
    return table
