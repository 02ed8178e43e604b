"""A bundle on this machine's NVIDIA GPU: the time of every kernel, load time, and decoding of one and of many
sequences.

``make bench-cuda`` runs this, prints a table and writes ``build/bench/cuda.json``. Without ``--bundle`` it compiles a
random checkpoint with the shapes of Qwen3-0.6B for the GPU. The workload of many sequences is nano-vllm's: 256 prompts
of 100 to 1,024 tokens, each followed by 100 to 1,024 new tokens at temperature 0.6, without early stops.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from checkpoints import QWEN3_0_6B, write_checkpoint
from rich.console import Console
from rich.table import Table

from nearfar.compiler.bundle.folder import Bundle, open_bundle
from nearfar.compiler.bundle.manifest import GENERATE
from nearfar.compiler.ir.expr import holds
from nearfar.compiler.ir.sampling import Settings
from nearfar.compiler.measure.report import make_report
from nearfar.compiler.pipeline.compile import CompileOptions, compile_model
from nearfar.compiler.runtime.batch import Chunk, Limits, Output, make_batch
from nearfar.compiler.runtime.host_tables import HostTables
from nearfar.targets.cuda.driver import Driver, NvidiaDriver
from nearfar.targets.cuda.launches import Launches
from nearfar.targets.cuda.memory import DeviceMemory
from nearfar.targets.cuda.runner import CudaRunner

ROOT = Path(__file__).resolve().parents[2]
# The tokens of one prefill step.
PREFILL_TOKENS = 8192
MANY = (100, 1024)
# (sequences, new tokens of each)
KERNEL_BATCHES = ((1, 1), (2, 1), (8, 1), (32, 1), (64, 1), (256, 1), (1, 256), (16, 256))


@dataclass(frozen=True)
class Result:
    """``decode_share`` is the rate at which a decoded token reads weights, keys and values, relative to the copy
    speed.
    """

    device: str
    load_seconds: float
    copy_gigabytes_per_second: float
    decode_milliseconds: float
    decode_share: float
    sequences: int
    prompt_tokens: int
    new_tokens: int
    seconds: float
    new_tokens_per_second: float
    first_tokens_seconds: float


@dataclass(frozen=True)
class Request:
    """A prompt's length, the number of new tokens, and the pages of both."""

    prompt: int
    new: int
    pages: list[int]


@dataclass(frozen=True)
class KernelTime:
    sequences: int
    new_tokens: int
    op: str
    variant: str
    microseconds: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--bundle", type=Path, help="a bundle of your own (default: random weights with the shapes of Qwen3-0.6B)"
    )
    parser.add_argument("--sequences", type=int, default=256)
    parser.add_argument("--activation", choices=("float16", "bfloat16", "float32"), help="default: the bundle's first")
    parser.add_argument(
        "--folder",
        type=Path,
        default=ROOT / "build" / "bench",
        help="folder for the checkpoint, the bundle and the results",
    )
    options = parser.parse_args()
    driver = NvidiaDriver()
    bundle = open_bundle(options.bundle or compiled(options.folder, driver.arch))
    activation = options.activation or bundle.manifest.activations[0].dtype
    times = kernel_times(bundle, driver, activation, KERNEL_BATCHES, 20)
    driver.close()
    print_times(times)
    result = measure(bundle, NvidiaDriver(), options.sequences, MANY, activation=activation)
    options.folder.mkdir(parents=True, exist_ok=True)
    (options.folder / "cuda.json").write_text(
        json.dumps({"kernels": [asdict(each) for each in times], **asdict(result)}, indent=2)
    )
    print_result(bundle.manifest.model, result)


def compiled(folder: Path, arch: str) -> Path:
    checkpoint, bundle = folder / QWEN3_0_6B.name, folder / f"{QWEN3_0_6B.name}-cuda"
    if not (checkpoint / "model.safetensors").exists():
        write_checkpoint(QWEN3_0_6B, checkpoint)
    compile_model(str(checkpoint), bundle, CompileOptions(target="cuda", arch=arch, self_test=False, force=True))
    return bundle


def measure(
    bundle: Bundle,
    driver: Driver,
    count: int,
    lengths: tuple[int, int],
    *,
    prefill_tokens: int = PREFILL_TOKENS,
    steps: int = 200,
    copies: int = 20,
    activation: str | None = None,
) -> Result:
    """``lengths`` are the least and greatest length of prompts and of new tokens. Closes the driver."""
    page_size = bundle.manifest.page_size
    sequences = workload(count, lengths, page_size)
    alone = bundle.manifest.pages_for(lengths[0] + steps)
    pages = max(alone, sum(len(sequence.pages) for sequence in sequences))
    speed = copy_speed(driver, copies, 1 << 20 if copies == 1 else 1 << 30)
    started = time.perf_counter()
    limits = Limits(tokens=max(prefill_tokens, count), sequences=count, rows=count, pages=pages)
    runner = CudaRunner(bundle, limits=limits, activation=activation, driver=driver)
    load_seconds = time.perf_counter() - started
    seconds_a_token = decode_alone(runner, lengths[0], steps)
    report = make_report(bundle.manifest, activation=activation)
    bytes_a_token = report.weight_bytes + report.kv_bytes_per_token * (lengths[0] + steps / 2)
    run_many(runner, sequences[: min(count, 2)])
    total, first = run_many(runner, sequences)
    device = runner.device
    runner.close()
    new_tokens = sum(sequence.new for sequence in sequences)
    return Result(
        device=device,
        load_seconds=load_seconds,
        copy_gigabytes_per_second=speed / 1e9,
        decode_milliseconds=seconds_a_token * 1e3,
        decode_share=bytes_a_token / seconds_a_token / speed,
        sequences=count,
        prompt_tokens=sum(sequence.prompt for sequence in sequences),
        new_tokens=new_tokens,
        seconds=total,
        new_tokens_per_second=new_tokens / total,
        first_tokens_seconds=first,
    )


def workload(count: int, lengths: tuple[int, int], page_size: int) -> list[Request]:
    rng = np.random.default_rng(0)
    sequences = []
    used = 0
    for _ in range(count):
        prompt, new = (int(rng.integers(lengths[0], lengths[1] + 1)) for _ in range(2))
        pages = -(-(prompt + new) // page_size)
        sequences.append(Request(prompt, new, list(range(used, used + pages))))
        used += pages
    return sequences


def copy_speed(driver: Driver, copies: int, size: int) -> float:
    """Bytes per second that copies on the device read and write."""
    source, destination = driver.allocate(size), driver.allocate(size)
    driver.clear(source, size)
    driver.copy(destination, source, size)
    driver.wait(driver.record())
    started = time.perf_counter()
    for _ in range(copies):
        driver.copy(destination, source, size)
    driver.wait(driver.record())
    seconds = time.perf_counter() - started
    driver.free(source)
    driver.free(destination)
    return 2 * size * copies / seconds


def decode_alone(runner: CudaRunner, context: int, steps: int) -> float:
    """Seconds per greedy token of one sequence, whose ids stay on the device."""
    manifest = runner.manifest
    pages = range(manifest.pages_for(context + steps))
    runner.forward(
        make_batch([Chunk(list(range(1, context + 1)), 0, pages, [context - 1], slot=0)], manifest.page_size)
    )

    def run(start: int) -> None:
        futures = [
            runner.submit(make_batch([Chunk([-1], start + i, pages, [0], slot=0)], manifest.page_size))
            for i in range(steps)
        ]
        futures[-1].result()

    run(context)
    started = time.perf_counter()
    run(context)
    return (time.perf_counter() - started) / steps


def run_many(runner: CudaRunner, sequences: Sequence[Request]) -> tuple[float, float]:
    """Seconds until all sequences are complete, and until all have their first token. Prompts run first; then all
    decode together.
    """
    page_size = runner.manifest.page_size
    settings = Settings(temperature=0.6, draw=0.5)
    started = time.perf_counter()
    last: Future[Output] | None = None
    waiting = list(enumerate(sequences))
    while waiting:
        chunks: list[Chunk] = []
        room = runner.limits.tokens
        while waiting and waiting[0][1].prompt <= room:
            slot, sequence = waiting.pop(0)
            room -= sequence.prompt
            token_ids = [1 + (slot + 7 * i) % 250 for i in range(sequence.prompt)]
            chunks.append(Chunk(token_ids, 0, sequence.pages, [sequence.prompt - 1], settings, slot))
        last = runner.submit(make_batch(chunks, page_size))
    assert last is not None
    last.result()
    first = time.perf_counter() - started
    for step in range(1, max(sequence.new for sequence in sequences)):
        chunks = [
            Chunk([-1 - slot], sequence.prompt + step - 1, sequence.pages, [0], settings, slot)
            for slot, sequence in enumerate(sequences)
            if step < sequence.new
        ]
        last = runner.submit(make_batch(chunks, page_size))
    last.result()
    return time.perf_counter() - started, first


def kernel_times(
    bundle: Bundle, driver: Driver, activation: str, batches: Sequence[tuple[int, int]], repeats: int
) -> list[KernelTime]:
    """Measure every applicable variant of each kind of step, for batches of (sequences, new tokens of each).

    All steps of a kind run one after the other, so no cache still holds a step's weights if the model has a real size.
    """
    manifest = bundle.manifest
    plan = manifest.plan(GENERATE)
    context = 256
    pages = manifest.pages_for(context)
    sequences, tokens = max(count for count, _ in batches), max(count * new for count, new in batches)
    most = {
        "S": tokens, "B": sequences, "R": sequences, "P": sequences * pages, "T": context, "L": sequences * pages,
        "N": sequences,
        "A": sequences, "W": sequences,
    }  # fmt: skip
    memory = DeviceMemory(driver, bundle, activation, most)
    launches = Launches(driver, bundle, activation, memory.addresses)
    staging = driver.allocate_pinned(memory.arena_bytes)
    kinds: dict[str, list[int]] = {}
    for index, step in enumerate(plan.steps):
        kinds.setdefault(step.variants, []).append(index)
    times = []
    tables = HostTables(bundle)
    for count, new in batches:
        chunks = [
            Chunk([1] * new, context - new, range(i * pages, (i + 1) * pages), [new - 1], slot=i) for i in range(count)
        ]
        batch = make_batch(chunks, manifest.page_size)
        # Adjusted logits and top log-probabilities are requested so that their kernels run.
        dims = {**batch.dims(most["P"], most["N"]), "A": count, "W": count}
        arrays = batch.arrays(plan.inputs) | tables.gather(plan.gathered, batch.token_ids)
        memory.upload_batch(plan.inputs, arrays, staging)
        for kind, indices in kinds.items():
            for row in manifest.variants[kind]:
                if row.activation not in (None, activation) or not holds(row.when, dims):
                    continue
                steps = [(index, row.kernels) for index in indices]
                launches.launch_steps(GENERATE, steps, dims)
                driver.wait(driver.record())
                started = time.perf_counter()
                for _ in range(repeats):
                    launches.launch_steps(GENERATE, steps, dims)
                driver.wait(driver.record())
                seconds = (time.perf_counter() - started) / repeats / len(steps)
                times.append(KernelTime(count, new, plan.steps[indices[0]].op, " + ".join(row.kernels), seconds * 1e6))
    return times


def print_times(times: Sequence[KernelTime]) -> None:
    table = Table(title="kernels, in microseconds per step, including launches", title_justify="left")
    for column in ("sequences", "new tokens", "op", "variant", "us"):
        table.add_column(column)
    for each in times:
        table.add_row(str(each.sequences), str(each.new_tokens), each.op, each.variant, f"{each.microseconds:.1f}")
    Console(width=200).print(table)


def print_result(model: str, result: Result) -> None:
    table = Table(title=f"{model} on {result.device}", show_header=False, title_justify="left")
    for name, value in asdict(result).items():
        table.add_row(name.replace("_", " "), f"{value:.3f}" if isinstance(value, float) else str(value))
    Console().print(table)


if __name__ == "__main__":
    main()
