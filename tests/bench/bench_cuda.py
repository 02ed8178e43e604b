"""A bundle on this machine's NVIDIA GPU: the time of every kernel, load time, and decoding of one and of many
sequences.

``make bench-cuda`` runs this, prints tables and writes ``build/bench/cuda.json``. Without ``--bundle`` it compiles a
random checkpoint with the shapes of Qwen3-0.6B for the GPU. The workload of many sequences is nano-vllm's: 256 prompts
of 100 to 1,024 tokens, each followed by 100 to 1,024 new tokens at temperature 0.6, without early stops. It runs twice:
as batches that are prepared in advance, which measures the GPU, and through the server's engine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from checkpoints import QWEN3_0_6B, write_checkpoint
from rich.console import Console
from rich.table import Table

from nearfar.compiler.bundle.folder import Bundle, open_bundle
from nearfar.compiler.bundle.manifest import GENERATE, Manifest
from nearfar.compiler.ir.expr import holds
from nearfar.compiler.ir.sampling import Sampling, Settings
from nearfar.compiler.measure.report import make_report
from nearfar.compiler.pipeline.compile import CompileOptions, compile_model
from nearfar.compiler.runtime.batch import Chunk, make_batch
from nearfar.compiler.runtime.host_tables import HostTables
from nearfar.compiler.runtime.runner import Limits, Output
from nearfar.server_fallback.engine.model import TokenModel
from nearfar.server_fallback.engine.request import TokenRequest
from nearfar.server_fallback.engine.token_engine import TokenEngine
from nearfar.targets.cuda.driver import Driver, NvidiaDriver
from nearfar.targets.cuda.graph_cache import GraphStatistics
from nearfar.targets.cuda.launches import Launches
from nearfar.targets.cuda.memory import DeviceMemory
from nearfar.targets.cuda.runner import CudaRunner

ROOT = Path(__file__).resolve().parents[2]
# The maximum number of tokens of a step.
STEP_TOKENS = 8192
LENGTHS = (100, 1024)
ALONE_TOKENS = 200
COPY_BYTES = 1 << 30
COPIES = 20
# (sequences, new tokens of each)
KERNEL_BATCHES = ((1, 1), (2, 1), (8, 1), (32, 1), (64, 1), (256, 1), (1, 256), (16, 256))
# A kernel is repeated for this time, but at most this number of times.
KERNEL_SECONDS, KERNEL_REPEATS = 0.02, 20
TEMPERATURE = 0.6


@dataclass(frozen=True, slots=True)
class Alone:
    """One sequence, greedy. ``of_copy_bandwidth``: the rate at which a decoded token reads weights, keys and values,
    relative to the rate at which copies read and write.
    """

    device: str
    load_seconds: float
    context: int
    milliseconds_per_token: float
    bytes_per_token: float
    of_copy_bandwidth: float


@dataclass(frozen=True, slots=True)
class Many:
    """Sequences that all arrive at once. Steps that contain prompts are mixed: they also contain a token of every
    sequence whose prompt is complete. ``first_tokens_seconds``: until every sequence has its first token.

    ``graphs`` counts the decode steps that ran as CUDA graphs. ``engine_seconds``: the same requests through the
    server's engine.
    """

    device: str
    load_seconds: float
    sequences: int
    prompt_tokens: int
    new_tokens: int
    mixed_steps: int
    decode_steps: int
    seconds: float
    first_tokens_seconds: float
    new_tokens_per_second: float
    graphs: GraphStatistics | None
    engine_seconds: float
    engine_new_tokens_per_second: float


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt's length, the number of new tokens, and the pages of both."""

    prompt: int
    new: int
    pages: list[int]


@dataclass(frozen=True, slots=True)
class KernelTime:
    """A variant of a kind of step, at a batch of (sequences, new tokens of each), or one kernel of a variant that has
    several. ``steps`` of a forward are of this kind; ``chosen``: a forward runs this variant.
    """

    sequences: int
    new_tokens: int
    op: str
    variant: str
    microseconds: float
    steps: int
    chosen: bool


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
    copy_speed = measure_copies(driver, COPY_BYTES)
    times = kernel_times(bundle, driver, activation, KERNEL_BATCHES)
    driver.close()
    print_times(times)
    alone = measure_alone(bundle, NvidiaDriver(), copy_speed, LENGTHS[0], ALONE_TOKENS, activation)
    many = measure_many(bundle, NvidiaDriver(), options.sequences, LENGTHS, STEP_TOKENS, activation)
    options.folder.mkdir(parents=True, exist_ok=True)
    content = {
        "copy_gigabytes_per_second": copy_speed / 1e9,
        "alone": asdict(alone),
        "many": asdict(many),
        "steps": step_shares(times),
        "kernels": [asdict(each) for each in times],
    }
    (options.folder / "cuda.json").write_text(json.dumps(content, indent=2))
    print_result(f"{bundle.manifest.model}, one sequence; copies {copy_speed / 1e9:.0f} GB/s", alone)
    print_result(f"{bundle.manifest.model}, many sequences", many)


def compiled(folder: Path, arch: str) -> Path:
    checkpoint, bundle = folder / QWEN3_0_6B.name, folder / f"{QWEN3_0_6B.name}-cuda"
    if not (checkpoint / "model.safetensors").exists():
        write_checkpoint(QWEN3_0_6B, checkpoint)
    compile_model(str(checkpoint), bundle, CompileOptions(target="cuda", arch=arch, self_test=False, force=True))
    return bundle


def measure_copies(driver: Driver, size: int) -> float:
    """Bytes per second that copies on the device read and write."""
    source, destination = driver.allocate(size), driver.allocate(size)
    driver.clear(source, size)
    driver.copy(destination, source, size)
    driver.wait(driver.record())
    started = time.perf_counter()
    for _ in range(COPIES):
        driver.copy(destination, source, size)
    driver.wait(driver.record())
    seconds = time.perf_counter() - started
    driver.free(source)
    driver.free(destination)
    return 2 * size * COPIES / seconds


def measure_alone(
    bundle: Bundle, driver: Driver, copy_speed: float, context: int, steps: int, activation: str | None = None
) -> Alone:
    """Decode ``steps`` tokens after ``context`` ones. Closes the driver."""
    manifest = bundle.manifest
    limits = Limits(tokens=context, sequences=1, rows=1, pages=manifest.pages_for(context + steps))
    started = time.perf_counter()
    runner = CudaRunner(bundle, limits=limits, activation=activation, driver=driver)
    load_seconds = time.perf_counter() - started
    seconds = decode(runner, 1, context, steps)
    kv_bytes = make_report(manifest, activation=activation).kv_bytes_per_token * (context + steps / 2)
    bytes_per_token = weight_bytes_read(manifest) + kv_bytes
    device = runner.device
    runner.close()
    share = bytes_per_token / seconds / copy_speed
    return Alone(device, load_seconds, context, seconds * 1e3, bytes_per_token, share)


def weight_bytes_read(manifest: Manifest) -> int:
    """The bytes of all weights that a forward pass reads completely. Embeddings that are not also the head do not
    count.
    """
    steps = manifest.plan(GENERATE).steps
    read = {name for step in steps if step.op != "embed" for name in step.inputs.values()} & manifest.weights.keys()
    return sum(plane.size for name in read for plane in manifest.weights[name].planes)


def decode(runner: CudaRunner, sequences: int, context: int, steps: int) -> float:
    """Seconds per greedy step of some sequences, whose ids stay on the device."""
    manifest = runner.manifest
    each = manifest.pages_for(context + steps)
    pages = [range(slot * each, (slot + 1) * each) for slot in range(sequences)]
    prompt = list(range(1, context + 1))
    for slot in range(sequences):
        runner.forward(make_batch([Chunk(prompt, 0, pages[slot], [context - 1], slot=slot)], manifest.page_size))

    def run(start: int) -> None:
        futures = [
            runner.submit(
                make_batch(
                    [Chunk([-1 - slot], start + i, pages[slot], [0], slot=slot) for slot in range(sequences)],
                    manifest.page_size,
                )
            )
            for i in range(steps)
        ]
        futures[-1].result()

    # Steps launch kernel by kernel until their graph has been captured in the background.
    run(context)
    runner.wait_for_graphs()
    started = time.perf_counter()
    run(context)
    return (time.perf_counter() - started) / steps


def measure_many(
    bundle: Bundle,
    driver: Driver,
    count: int,
    lengths: tuple[int, int],
    step_tokens: int,
    activation: str | None = None,
) -> Many:
    """``lengths`` are the minimum and maximum length of prompts and of new tokens. Closes the driver."""
    requests = workload(count, lengths, bundle.manifest.page_size)
    pages = sum(len(request.pages) for request in requests)
    limits = Limits(tokens=max(step_tokens, count), sequences=count, rows=count, pages=pages)
    started = time.perf_counter()
    runner = CudaRunner(bundle, limits=limits, activation=activation, driver=driver)
    load_seconds = time.perf_counter() - started
    device = runner.device
    # Steps launch kernel by kernel until their graph has been captured in the background.
    run_many(runner, requests)
    runner.wait_for_graphs()
    ran = run_many(runner, requests)
    graphs = runner.graph_statistics
    new_tokens = sum(request.new for request in requests)
    engine_seconds = asyncio.run(run_through_engine(runner, requests))
    return Many(
        device=device,
        load_seconds=load_seconds,
        sequences=count,
        prompt_tokens=sum(request.prompt for request in requests),
        new_tokens=new_tokens,
        mixed_steps=ran.mixed_steps,
        decode_steps=ran.decode_steps,
        seconds=ran.seconds,
        first_tokens_seconds=ran.first_tokens_seconds,
        new_tokens_per_second=new_tokens / ran.seconds,
        graphs=graphs,
        engine_seconds=engine_seconds,
        engine_new_tokens_per_second=new_tokens / engine_seconds,
    )


def workload(count: int, lengths: tuple[int, int], page_size: int) -> list[Request]:
    rng = np.random.default_rng(0)
    requests = []
    used = 0
    for _ in range(count):
        prompt, new = (int(rng.integers(lengths[0], lengths[1] + 1)) for _ in range(2))
        pages = -(-(prompt + new) // page_size)
        requests.append(Request(prompt, new, list(range(used, used + pages))))
        used += pages
    return requests


@dataclass(frozen=True, slots=True)
class Ran:
    seconds: float
    first_tokens_seconds: float
    mixed_steps: int
    decode_steps: int


def run_many(runner: CudaRunner, requests: Sequence[Request]) -> Ran:
    """All requests arrive at once. A step holds a token of every sequence whose prompt is complete, and as many tokens
    of the next prompts as then fit.
    """
    page_size = runner.manifest.page_size
    settings = Settings(temperature=TEMPERATURE, draw=0.5)
    started, first = time.perf_counter(), 0.0
    done = [0] * len(requests)
    waiting = list(range(len(requests)))
    mixed = decoding = 0
    last: Future[Output] | None = None
    while any(done[slot] < each.prompt + each.new - 1 for slot, each in enumerate(requests)):
        chunks = [
            Chunk([-1 - slot], done[slot], each.pages, [0], settings, slot)
            for slot, each in enumerate(requests)
            if each.prompt <= done[slot] < each.prompt + each.new - 1
        ]
        room = runner.limits.tokens - len(chunks)
        prompts = False
        while waiting and room > 0:
            slot = waiting[0]
            each, start = requests[slot], done[slot]
            size = min(room, each.prompt - start)
            complete = start + size == each.prompt
            token_ids = [1 + (slot + 7 * i) % 250 for i in range(start, start + size)]
            chunks.append(Chunk(token_ids, start, each.pages, [size - 1] if complete else [], settings, slot))
            prompts = True
            room -= size
            if complete:
                waiting.pop(0)
        for chunk in chunks:
            done[chunk.slot] += len(chunk.token_ids)
        mixed, decoding = mixed + prompts, decoding + (not prompts)
        last = runner.submit(make_batch(chunks, page_size))
        if prompts and not waiting:
            last.result()
            first = time.perf_counter() - started
    assert last is not None
    last.result()
    return Ran(time.perf_counter() - started, first, mixed, decoding)


async def run_through_engine(runner: CudaRunner, requests: Sequence[Request]) -> float:
    """Seconds for all requests together, in the caller's process, which ignores their tokens. Closes the runner."""
    manifest = runner.manifest
    model = TokenModel(manifest.spec.vocab_size, frozenset(), manifest.context, manifest.page_size)
    engine = TokenEngine(runner, model)

    async def call(number: int, request: Request) -> None:
        prompt = [1 + (number + 7 * i) % 250 for i in range(request.prompt)]
        sampling = Sampling(temperature=TEMPERATURE, seed=number)
        async for _ in engine.generate(TokenRequest(prompt, request.new, sampling)):
            pass

    started = time.perf_counter()
    await asyncio.gather(*(call(number, request) for number, request in enumerate(requests)))
    seconds = time.perf_counter() - started
    await engine.close()
    return seconds


def kernel_times(
    bundle: Bundle,
    driver: Driver,
    activation: str,
    batches: Sequence[tuple[int, int]],
    settings: Settings | None = None,
) -> list[KernelTime]:
    """Measure every applicable variant of each kind of step, for batches of (sequences, new tokens of each).

    All steps of a kind run one after the other, so no cache still holds a step's weights if the model has a real size.
    With ``settings``, only the choice of tokens is measured, from normally distributed logits.
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
    memory = DeviceMemory(driver, bundle, activation, most, most)
    launches = Launches(driver, bundle, activation, memory.addresses)
    staging = driver.allocate_pinned(memory.arena_bytes)
    kinds: dict[str, list[int]] = {}
    for index, step in enumerate(plan.steps):
        if settings is None or step.op == "sample":
            kinds.setdefault(step.variants, []).append(index)
    if settings is not None:
        (sample,) = (plan.steps[index] for indices in kinds.values() for index in indices)
        logits = np.random.default_rng(0).standard_normal((sequences, manifest.spec.vocab_size), np.float32)
        driver.upload(memory.addresses[sample.inputs["logits"]], logits)
    times = []
    tables = HostTables(bundle)
    for count, new in batches:
        chunks = [
            Chunk([1] * new, context - new, range(i * pages, (i + 1) * pages), [new - 1], settings or Settings(), i)
            for i in range(count)
        ]
        batch = make_batch(chunks, manifest.page_size)
        dims = batch.dims(most["P"], most["N"])
        if settings is None:
            # Adjusted logits and top log-probabilities are requested so that their kernels run.
            dims = {**dims, "A": count, "W": count}
        arrays = batch.arrays(plan.inputs) | tables.gather(plan.gathered, batch.token_ids)
        memory.upload_batch(plan.inputs, arrays, staging)
        for kind, indices in kinds.items():
            rows = [
                row for row in manifest.variants[kind] if row.activation in (None, activation) and holds(row.when, dims)
            ]
            # A runner takes the first row that fits.
            variants = [(row.kernels, row is rows[0]) for row in rows]
            variants += [([name], False) for name in rows[0].kernels if len(rows[0].kernels) > 1]
            for kernels, chosen in variants:
                steps = [(index, kernels) for index in indices]

                def run(repeats: int, steps: Sequence[tuple[int, Sequence[str]]] = steps) -> float:
                    started = time.perf_counter()
                    for _ in range(repeats):
                        launches.launch_steps(GENERATE, steps, dims)  # noqa: B023
                    driver.wait(driver.record())
                    return (time.perf_counter() - started) / repeats

                run(1)
                repeats = max(1, min(KERNEL_REPEATS, int(KERNEL_SECONDS / run(1))))
                name, seconds = " + ".join(kernels), run(repeats) / len(steps)
                op = plan.steps[indices[0]].op
                times.append(KernelTime(count, new, op, name, seconds * 1e6, len(steps), chosen))
    return times


def step_shares(times: Sequence[KernelTime]) -> list[dict[str, Any]]:
    """For each batch the time of a forward, as the sum of its steps, and the share of each op, the largest first."""
    batches: dict[tuple[int, int], list[KernelTime]] = {}
    for each in times:
        if each.chosen:
            batches.setdefault((each.sequences, each.new_tokens), []).append(each)
    found = []
    for (sequences, new_tokens), rows in batches.items():
        total = sum(row.microseconds * row.steps for row in rows)
        ops: dict[str, float] = {}
        for row in rows:
            ops[row.op] = ops.get(row.op, 0) + row.microseconds * row.steps / total
        shares = dict(sorted(ops.items(), key=lambda item: -item[1]))
        found.append({"sequences": sequences, "new_tokens": new_tokens, "milliseconds": total / 1e3, "shares": shares})
    return found


def print_times(times: Sequence[KernelTime]) -> None:
    table = Table(title="kernels, in microseconds per step, including launches", title_justify="left")
    for column in ("sequences", "new tokens", "op", "variant", "us", "steps", "runs"):
        table.add_column(column)
    for each in times:
        runs = "yes" if each.chosen else ""
        table.add_row(
            str(each.sequences), str(each.new_tokens), each.op, each.variant, f"{each.microseconds:.1f}",
            str(each.steps), runs,
        )  # fmt: skip
    Console(width=200).print(table)


def print_result(title: str, result: Alone | Many) -> None:
    table = Table(title=f"{title} on {result.device}", show_header=False, title_justify="left")
    for name, value in asdict(result).items():
        table.add_row(name.replace("_", " "), f"{value:.3f}" if isinstance(value, float) else str(value))
    Console().print(table)


if __name__ == "__main__":
    main()
