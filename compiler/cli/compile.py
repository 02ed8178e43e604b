"""nearfar compile: a checkpoint becomes a bundle."""

from __future__ import annotations

from dataclasses import asdict

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..bundle.folder import Bundle
from ..demo import DEMOS
from ..measure.dry_run import DryRun, dry_run
from ..measure.report import Report
from ..pipeline.compile import compile_any
from ..pipeline.options import CompileOptions
from ..runtime.errors import RequestError
from .inspect import export_facts, facts
from .options import Compile
from .output import megabytes, new_console, print_json, print_note
from .phases import PhaseClock, phase_table, phases_json, timed_phases, waiting
from .program import path_word
from .trial import Trial, find_trial

# The kinds of models, by their task.
KINDS = {
    "generate": "a model that generates text (generate)",
    "embed": "an embedding model (embed)",
    "rerank": "a reranker, which scores pairs of a query and a passage (rerank)",
    "classify": "a classifier (classify)",
    "decide": "a decision model, which answers typed questions (decide)",
    "transcribe": "a model that transcribes sound (transcribe)",
}


def run(options: Compile) -> None:
    model = str(DEMOS.get(options.model, options.model))
    if options.dry_run:
        if options.bundle.quality is not None:
            raise RequestError(
                "--dry-run: --quality best chooses formats by measurement, so sizes are unknown before; remove one of "
                "the two options"
            )
        show_dry_run(model, options.bundle, as_json=options.json)
        return
    if options.output is None:
        raise RequestError("-o BUNDLE is missing; name the folder to create, or use --dry-run, which writes nothing")
    notes: list[str] = []
    with timed_phases(quiet=options.json) as clock:
        bundle = compile_any(model, options.output, options.bundle, clock.progress, notes.append)
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
    console = new_console(soft_wrap=True, highlight=False)
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
    console = new_console(highlight=False)
    console.print(dry_run_table(result, spent, seconds))
    console.print("[bold]dry run:[/] nothing was written; sizes, memory and dispatches are exact")


def dry_run_table(result: DryRun, spent: float, seconds: float) -> Table:
    """``spent``: the seconds of the dry run itself, which a compile needs too."""
    report, estimate = result.report, result.estimate
    table = facts(report) if isinstance(report, Report) else export_facts(report)
    if isinstance(report, Report):
        kernel_bytes = sum(size for file, size in result.sizes.items() if file.startswith("kernels/"))
        table.add_row("kernels", f"{report.kernels} in {megabytes(kernel_bytes)}")
    self_test = ", and a few kB for the tests" if result.has_self_test else ""
    table.add_row("bundle", f"{megabytes(sum(result.sizes.values()))} in {len(result.sizes)} files{self_test}")
    lines = [f"{seconds:.1f} s in all", f"{spent:.1f} s  up to the kernels, as just measured"]
    lines.append(f"{estimate.weights_seconds:.1f} s  packing, from a sample of {estimate.sample_elements:,} weights")
    if result.has_self_test:
        lines.append(f"{estimate.self_test_seconds:.1f} s  self-test, from the same sample")
    table.add_row("time (estimate)", "\n".join(lines))
    return table
