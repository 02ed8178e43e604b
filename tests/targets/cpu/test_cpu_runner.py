"""Complete bundles on this machine's CPU, compared with transformers and with the reference runner, alone and under
load.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from ragged import chunked_logits, ragged_logits, sequences_alone
from tiny_models import VOCAB_SIZE
from tolerances import F32, INT8_MODEL, INT16_MODEL, KV_Q4_F32, OF_ACTIVATION, relative_error

from nearfar.compiler.bundle.folder import Bundle, open_bundle
from nearfar.compiler.bundle.manifest import MANIFEST_FILE
from nearfar.compiler.pipeline.target import open_runner
from nearfar.compiler.runtime.batch import Batch, Chunk, make_batch
from nearfar.compiler.runtime.errors import BundleError, DeviceError, RequestError
from nearfar.compiler.runtime.reference import ReferenceRunner
from nearfar.compiler.runtime.runner import Limits
from nearfar.compiler.runtime.variant import stored_dtype
from nearfar.targets.cpu.levels import features
from nearfar.targets.cpu.runner import CpuRunner
from nearfar.targets.threads import default_threads

CompileTiny = Callable[..., Path]
ALL_ROWS = Limits(tokens=75, sequences=3, rows=75, pages=20)
# The bundle that other files run as well, with kernels for every level of instruction sets.
ALL_LEVELS = {"context": 320, "activations": ("float32",)}
# Kernels for the base level alone; `test_cpu_linear.py` compares the levels' integers.
BASE_LEVEL = {"context": 320, "activations": ("int8", "float16")}
# Past the end of a block of 256 keys.
LONG = [(5 * i * i + 3 * i) % VOCAB_SIZE for i in range(300)]


@pytest.fixture(scope="module")
def bundle(compile_tiny: CompileTiny) -> Bundle:
    return open_bundle(compile_tiny("qwen3", "q4f16", target="cpu", **ALL_LEVELS))


def test_logits_are_those_of_transformers_and_no_chunking_changes_a_bit(
    compile_base: CompileTiny, transformers_logits: Callable[[str], np.ndarray], prompt_token_ids: list[int]
) -> None:
    runner = CpuRunner(open_bundle(compile_base("llama", "f32", target="cpu")), limits=ALL_ROWS)
    whole = chunked_logits(runner, prompt_token_ids, 75)
    assert relative_error(whole, transformers_logits("llama")) < F32
    for chunk in (1, 7, 64):
        np.testing.assert_array_equal(chunked_logits(runner, prompt_token_ids, chunk), whole)
    runner.close()


@pytest.mark.parametrize(
    ("checkpoint", "quantization", "options"),
    [
        ("qwen3", "q8f16", {"kv": "q4", "activations": ("float32",)}),
        ("qwen3", "q4f16", ALL_LEVELS),
        ("qwen3", "q4f16", BASE_LEVEL),
    ],
)
def test_logits_are_those_of_the_reference_in_the_same_activation_dtype_alone_and_side_by_side(
    checkpoint: str,
    quantization: str,
    options: dict[str, object],
    compile_tiny: CompileTiny,
    compile_base: CompileTiny,
) -> None:
    compile_once = compile_tiny if options == ALL_LEVELS else compile_base
    path = compile_once(checkpoint, quantization, target="cpu", **options)
    for entry in open_bundle(path).manifest.activations:
        runner = CpuRunner(open_bundle(path), limits=ALL_ROWS, activation=entry.dtype)
        reference = ReferenceRunner(
            open_bundle(path), limits=Limits(sequences=8, pages=20), activation=stored_dtype(entry.dtype)
        )
        limits = {**{dtype: max(limit, INT16_MODEL) for dtype, limit in OF_ACTIVATION.items()}, "int8": INT8_MODEL}
        limit = KV_Q4_F32 if "kv" in options else limits[entry.dtype]
        together, alone, expected = ragged_logits(runner), sequences_alone(runner), sequences_alone(reference)
        for mine, mine_alone, right in zip(together, alone, expected, strict=True):
            np.testing.assert_array_equal(mine, mine_alone)
            assert relative_error(mine, right) < limit, entry.dtype
        runner.close()


@pytest.mark.parametrize(
    ("activation", "allowed"),
    [("float32", features()), ("float32", {"avx2"}), ("int8", features())],
    ids=["int16-best", "int16-avx2", "int8"],
)
def test_a_row_is_the_same_to_the_last_bit_in_every_company_chunking_and_number_of_threads(
    activation: str, allowed: set[str], compile_tiny: CompileTiny, compile_base: CompileTiny
) -> None:
    compile_once, options = (compile_base, BASE_LEVEL) if activation == "int8" else (compile_tiny, ALL_LEVELS)
    bundle = open_bundle(compile_once("qwen3", "q4f16", target="cpu", **options))
    limits = Limits(tokens=310, sequences=8, rows=300, pages=40)
    runner = CpuRunner(bundle, limits=limits, allowed=allowed, activation=activation, threads=2)
    alone = chunked_logits(runner, LONG, 300)
    for chunk in (7, 64):
        np.testing.assert_array_equal(chunked_logits(runner, LONG, chunk), alone)
    pages = list(range(20))
    others = [Chunk([3, 1, 4][: 1 + i % 3], 0, [20 + i], [0]) for i in range(7)]
    for start in range(0, 294, 98):
        runner.forward(make_batch([*others[:2], Chunk(LONG[start : start + 98], start, pages, [97]), *others[2:]], 16))
    for i in range(294, 300):
        # Beside sequences that decode one token each, and sequences that prefill several.
        company = [Chunk([7], 0, [20 + j], [0]) for j in range(7)] if i % 2 else others
        found = runner.forward(make_batch([*company, Chunk([LONG[i]], i, pages, [0])], 16)).logits[-1]
        np.testing.assert_array_equal(found, alone[i])
    runner.close()
    single = CpuRunner(bundle, limits=limits, allowed=allowed, activation=activation, threads=1)
    np.testing.assert_array_equal(chunked_logits(single, LONG, 300), alone)
    single.close()


def test_logits_are_the_same_to_the_last_bit_at_every_level(bundle: Bundle) -> None:
    found = []
    for allowed in ({"avx2", "neon"}, features() - {"avx512_vnni"}, features()):
        runner = CpuRunner(bundle, limits=Limits(tokens=300, sequences=1, rows=300, pages=20), allowed=allowed)
        found.append(chunked_logits(runner, LONG, 300))
        runner.close()
    np.testing.assert_array_equal(found[1], found[0])
    np.testing.assert_array_equal(found[2], found[0])


def test_serving_loads_neither_tvm_nor_the_compiler_and_maps_the_weights_on_request(bundle: Bundle) -> None:
    arguments = ["run", str(bundle.path), "hello", "--raw", "--max-tokens", "3", "--json"]
    code = f"""if True:
        import sys
        from nearfar.compiler.cli import main
        from nearfar.targets.cpu import runner
        close, maps = runner.CpuRunner.close, []
        runner.CpuRunner.close = lambda self: (maps.append(open("/proc/self/maps").read()), close(self))
        assert main({arguments!r}) == 0
        assert "weights/00000.bin" in maps[0] and "libtvm" not in maps[0]
        loaded = {{"tvm", "torch", "nearfar.compiler.kernels"}} & set(sys.modules)
        assert not loaded, loaded
    """
    mapped = {**os.environ, "NEARFAR_WEIGHTS": "mapped"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=mapped)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert len(answer["token_ids"]) == 3
    assert answer["device"].startswith(str(bundle.manifest.arch))


def test_the_number_of_threads_is_the_users_or_that_of_the_cores(
    monkeypatch: pytest.MonkeyPatch, bundle: Bundle, tmp_path: Path
) -> None:
    monkeypatch.setenv("NEARFAR_THREADS", "3")
    runner = open_runner("cpu", bundle, Limits())
    assert "3 threads" in runner.device
    runner.close()
    monkeypatch.delenv("NEARFAR_THREADS")
    assert 1 <= default_threads() <= len(os.sched_getaffinity(0))
    for processor in range(8):
        topology = tmp_path / f"cpu{processor}/topology"
        topology.mkdir(parents=True)
        (topology / "thread_siblings_list").write_text(f"{processor % 4},{processor % 4 + 4}\n")
    monkeypatch.setattr("nearfar.targets.threads.PROCESSORS", tmp_path)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 4, 7})
    assert default_threads() == 3
    for wrong in ("0", "-1", "many"):
        monkeypatch.setenv("NEARFAR_THREADS", wrong)
        with pytest.raises(RequestError, match="must be a number of threads"):
            default_threads()


def test_each_runner_has_its_own_threads_until_it_is_closed(bundle: Bundle) -> None:
    # In a separate process, because threads of runners that other tests closed may not have ended yet.
    code = f"""if True:
        import os, time
        from pathlib import Path
        from nearfar.compiler.runtime.batch import Chunk, make_batch
        from nearfar.compiler.bundle.folder import open_bundle
        from nearfar.targets.cpu.runner import CpuRunner

        def count():
            return len(list(Path("/proc/self/task").iterdir()))

        def settles_at(expected):
            # Python has done with a thread a little before the system has.
            deadline = time.monotonic() + 10
            while count() != expected and time.monotonic() < deadline:
                time.sleep(0.01)
            assert count() == expected, (count(), expected)

        bundle = open_bundle(Path({str(bundle.path)!r}))
        before, environment = count(), dict(os.environ)
        runners = [CpuRunner(bundle, threads=threads) for threads in (3, 2)]
        for runner in runners:
            runner.submit(make_batch([Chunk([5, 6], 0, [0], [1])], 16)).result()
        # Each has a worker, which is the first of its threads.
        settles_at(before + 5)
        closed = runners.pop(0)
        closed.close()
        settles_at(before + 2)
        # One that nobody closed.
        del runners, runner
        settles_at(before)
        assert dict(os.environ) == environment
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_fork_is_refused_instead_of_waiting_for_threads_that_it_lacks(bundle: Bundle) -> None:
    runner = CpuRunner(bundle, limits=ALL_ROWS, threads=2)
    batch = make_batch([Chunk([1, 2, 3], 0, [0], [2])], 16)
    runner.forward(batch)
    process = os.fork()
    if process == 0:
        refused = 0
        for call in (runner.forward, runner.submit):
            try:
                call(batch)
            except DeviceError as error:
                refused += "before this process was forked" in error.message
        os._exit(refused)
    stop = time.monotonic() + 60
    while (ended := os.waitpid(process, os.WNOHANG))[0] == 0 and time.monotonic() < stop:
        time.sleep(0.01)
    if ended[0] == 0:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
    runner.forward(batch)
    runner.close()
    assert (ended[0], os.waitstatus_to_exitcode(ended[1])) == (process, 2)


def test_kernels_run_on_all_threads_of_a_runner(bundle: Bundle) -> None:
    tasks = Path("/proc/self/task")
    before = set(tasks.iterdir())
    runner = CpuRunner(bundle, limits=ALL_ROWS, threads=2)
    batch = make_batch([Chunk(list(range(60)), 0, list(range(4)), [59])], 16)
    runner.submit(batch).result()
    mine = [task / "schedstat" for task in tasks.iterdir() if task not in before]
    # Another part of this process may have begun one, too.
    assert len(mine) >= 2
    # They spin for a while, then sleep.
    time.sleep(0.2)
    start = [int(file.read_text().split()[0]) for file in mine]
    runner.submit(batch).result()
    nanoseconds = [int(file.read_text().split()[0]) - first for file, first in zip(mine, start, strict=True)]
    assert sum(spent > 0 for spent in nanoseconds) >= 2, nanoseconds
    runner.close()


def test_a_caller_that_waits_computes_itself_after_all_that_it_submitted(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = CpuRunner(bundle, limits=ALL_ROWS, threads=2)
    calls, run, gate = list[tuple[int, int]](), CpuRunner._run, threading.Event()

    def spy(self: CpuRunner, plan: str, batch: Batch, dims: Mapping[str, int]) -> None:
        tokens = len(batch.token_ids)
        if tokens == 3:
            gate.wait()
        run(self, plan, batch, dims)
        calls.append((tokens, threading.get_ident()))

    monkeypatch.setattr(CpuRunner, "_run", spy)
    here = threading.get_ident()
    one, three = (make_batch([Chunk(list(range(n)), 0, [0], [n - 1])], 16) for n in (1, 3))
    alone = runner.forward(one).next_token_ids
    slow = runner.submit(three)
    threading.Timer(0.2, gate.set).start()
    # It waits for the batch before it, on the worker.
    np.testing.assert_array_equal(runner.forward(one).next_token_ids, alone)
    assert slow.done()
    runner.forward(one)
    with pytest.raises(RequestError, match="at most 75"):
        runner.forward(make_batch([Chunk(list(range(76)), 0, range(5), [0])], 16))
    runner.forward(one)
    assert [(tokens, thread == here) for tokens, thread in calls] == [
        (1, True), (3, False), (1, False), (1, True), (1, True)
    ]  # fmt: skip
    runner.close()


def test_an_activation_dtype_that_the_bundle_does_not_offer_is_refused(compile_base: CompileTiny) -> None:
    path = compile_base("llama", "f32", target="cpu")
    with pytest.raises(DeviceError, match="compiled for float32 activations, not for float16"):
        CpuRunner(open_bundle(path), activation="float16")


def test_kernels_never_run_without_the_features_that_they_need(bundle: Bundle, tmp_path: Path) -> None:
    changed = Path(shutil.copytree(bundle.path, tmp_path / "bundle"))
    manifest = json.loads((changed / MANIFEST_FILE).read_text())
    needy = [variant for variants in manifest["variants"].values() for variant in variants if variant["needs"]]
    assert needy
    needy[-1]["needs"] = []
    (changed / MANIFEST_FILE).write_text(json.dumps(manifest))
    with pytest.raises(BundleError, match="may use instructions that the variant does not need"):
        CpuRunner(open_bundle(changed))
