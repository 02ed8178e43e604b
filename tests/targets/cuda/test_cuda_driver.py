"""NVIDIA's bindings on a libcuda of our own: the driver calls them correctly. These tests use no GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from emulated import libcuda, library_of
from emulated_driver import EmulatedDriver

from nearfar.compiler.bundle.folder import open_bundle
from nearfar.compiler.runtime.batch import Chunk, make_batch
from nearfar.compiler.runtime.errors import DeviceError
from nearfar.compiler.runtime.runner import Limits
from nearfar.targets.cuda.driver import NvidiaDriver
from nearfar.targets.cuda.nvrtc import compile_cubin
from nearfar.targets.cuda.persistent import PersistentOptions
from nearfar.targets.cuda.runner import CudaRunner
from nearfar.targets.cuda.source import source_file

SCRIPT = """
import json, sys
from pathlib import Path
from nearfar.compiler.runtime.batch import Chunk, make_batch
from nearfar.compiler.runtime.runner import Limits
from nearfar.compiler.bundle.folder import open_bundle
from nearfar.compiler.runtime.errors import DeviceError
from nearfar.compiler.pipeline.target import open_runner

bundle = open_bundle(Path(sys.argv[1]))
try:
    open_runner("cuda", bundle, Limits(sequences=2, rows=2, pages=1_000_000))
except DeviceError as error:
    refused = error.message
runner = open_runner("cuda", bundle, Limits(sequences=2, rows=2, pages=8))
runner.write_state("token_counts", 1, __import__("numpy").zeros(bundle.manifest.spec.vocab_size, "int32"))
prompt = runner.forward(make_batch([Chunk([5, 6, 7], 0, [1], [2], slot=0)], 16))
first = runner.submit(make_batch([Chunk([-1], 3, [1], [0], slot=0)], 16))
second = runner.submit(make_batch([Chunk([-1], 4, [1], [0], slot=0)], 16))
runner.copy_pages([(1, 2)])
third = runner.forward(make_batch([Chunk([8], 5, [2], [0])], 16))
tokens = [int(each.next_token_ids[0]) for each in (prompt, first.result(), second.result(), third)]
logits = third.logits.tolist()
device = runner.device
runner.close()
loaded = sorted({"tvm", "torch", "wgpu"} & set(sys.modules))
print(json.dumps({"device": device, "refused": refused, "tokens": tokens, "logits": logits, "loaded": loaded}))
"""

# Each step prints what happened. The steps' names are those of the assertions below.
RULES = """
import json, os, sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
import numpy as np
from nearfar.compiler.runtime.batch import Chunk, make_batch
from nearfar.compiler.runtime.runner import Limits
from nearfar.compiler.bundle.folder import open_bundle
from nearfar.compiler.runtime.errors import DeviceError
from nearfar.targets.cuda.driver import Arguments, NvidiaDriver
from nearfar.targets.cuda.launches import Launches
from nearfar.targets.cuda.runner import CudaRunner

bundle = open_bundle(Path(sys.argv[1]))
driver = NvidiaDriver()
runner = CudaRunner(bundle, limits=Limits(tokens=8, sequences=2, rows=2, pages=8), driver=driver)
found = {}

def attempt(name, work):
    try:
        found[name] = work()
    except DeviceError as error:
        found[name] = error.message
    except ZeroDivisionError:
        found[name] = "ZeroDivisionError"

def on_another_thread(work):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()

def token(first=5):
    return int(runner.forward(make_batch([Chunk([first, 6, 7], 0, [1], [2])], 16)).next_token_ids[0])

def words(address):
    array = np.zeros(4, np.uint32)
    driver.download(array, address)
    driver.wait(driver.record())
    return array.tolist()

def raise_in_capture():
    driver.capture(lambda launch: 1 // 0)

def allocate_in_capture():
    driver.capture(lambda launch: driver.allocate(8))

def work_during_capture():
    driver.upload(address, np.ones(4, np.uint32))
    driver.free(driver.allocate(8))

# A clear is asynchronous work that a capture on the same stream would record instead of running it.
address = driver.allocate(16)

def clear_during_capture():
    driver.clear(address, 16)
    graph = driver.capture(lambda launch: on_another_thread(work_during_capture))
    first = words(address)
    driver.replay(graph)
    driver.discard(graph)
    return [first, words(address)]

def fail_in_batches():
    launch, failures = driver.launch, 0
    driver.launch = lambda *arguments: 1 // 0
    # As many as there are pieces of staging memory.
    for _ in range(4):
        try:
            token(8)
        except ZeroDivisionError:
            failures += 1
    driver.launch = launch
    return failures

expected = token()
attempt("a capture that raises", raise_in_capture)
attempt("a call that a capture forbids", allocate_in_capture)
attempt("other work during a capture", clear_during_capture)
attempt("batches that fail", fail_in_batches)
found["tokens"] = [expected, token()]
name = next(iter(bundle.manifest.kernels))
kernel = bundle.manifest.kernels[name]
function = runner._launches._functions[name]
# No block of this kernel would access its arguments before it is run, and this stream is not waited for.
launched = Arguments(np.full(len(kernel.bindings) + len(kernel.uniforms), address, np.uint64))
runner.close()
attempt("a launch after the end", lambda: driver.launch(function, (1, 1), 32, launched))
runner = CudaRunner(bundle, limits=Limits(tokens=8, sequences=2, rows=2, pages=8))
runner.wait_for_graphs()
found["a launch on a new thread"] = on_another_thread(token)
attempt("a first call that launches", lambda: on_another_thread(lambda: runner._launches.launch(
    "generate", {**runner.largest, "S": 1, "B": 1, "R": 1, "T": 1, "L": 1, "A": 0, "W": 0, "G": 0})))
graphs = runner.graph_statistics
found["graphs"] = [graphs.captured, graphs.held, graphs.held_bytes > 0, graphs.failed]
runner.close()
os.environ["NEARFAR_CUDA_VERSION"] = "12040"
attempt("an older driver", lambda: CudaRunner(bundle))
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def environment(cuda_bundle: Path, emulated_cuda: Path) -> dict[str, str]:
    libraries = [library_of(file.read_text(), emulated_cuda) for file in sorted((cuda_bundle / "kernels").glob("*.cu"))]
    return {
        **os.environ,
        "LD_LIBRARY_PATH": str(libcuda(emulated_cuda)),
        "NEARFAR_EMULATED": ":".join(map(str, libraries)),
    }


def test_a_bundle_runs_through_nvidias_bindings_and_without_a_compiler(
    cuda_bundle: Path, emulated_cuda: Path, environment: dict[str, str]
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(cuda_bundle)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["device"] == "emulated by libcuda.cpp sm_90 (float16)"
    assert found["refused"].startswith("CUDA: CUDA_ERROR_OUT_OF_MEMORY: out of memory; give it fewer pages")
    assert found["loaded"] == []
    runner = CudaRunner(
        open_bundle(cuda_bundle), limits=Limits(sequences=2, rows=2, pages=8), driver=EmulatedDriver(emulated_cuda)
    )
    tokens = []
    for token, start in (([5, 6, 7], 0), ([-1], 3), ([-1], 4), ([8], 5)):
        output = runner.forward(make_batch([Chunk(token, start, [1], [len(token) - 1], slot=0)], 16))
        tokens.append(int(output.next_token_ids[0]))
    assert found["tokens"] == tokens
    np.testing.assert_array_equal(np.array(found["logits"], np.float32), output.logits)
    runner.close()


PERSISTENT_SCRIPT = """
import json, sys
from pathlib import Path
import numpy as np
from nearfar.compiler.bundle.folder import open_bundle
from nearfar.compiler.pipeline.target import open_runner
from nearfar.compiler.runtime.batch import Chunk, make_batch
from nearfar.compiler.runtime.errors import DeviceError
from nearfar.compiler.runtime.runner import Limits
from nearfar.targets.cuda.driver import Arguments

runner = open_runner("cuda", open_bundle(Path(sys.argv[1])), Limits(pages=8))
kernel, driver = runner.persistent_kernel, runner._driver
runner.submit(make_batch([Chunk([5, 6, 7], 0, [1], [2], slot=0)], 16))
steps = [runner.submit(make_batch([Chunk([-1], 3 + i, [1], [0], slot=0)], 16)) for i in range(4)]
tokens = [int(step.result().next_token_ids[0]) for step in steps]
program = kernel.programs[1]
try:
    driver.launch_together(program.function, program.workgroups + 1, 256, Arguments(np.zeros(6, "uint64")))
except DeviceError as error:
    refused = error.message
runner.close()
loaded = sorted({"tvm", "torch", "wgpu"} & set(sys.modules))
print(json.dumps({"workgroups": program.workgroups, "tokens": tokens, "refused": refused, "loaded": loaded}))
"""


@pytest.mark.exhaustive
def test_a_persistent_kernel_runs_through_nvidias_bindings(
    cuda_bundle: Path, emulated_cuda: Path, environment: dict[str, str]
) -> None:
    runner = CudaRunner(
        open_bundle(cuda_bundle),
        limits=Limits(pages=8),
        driver=EmulatedDriver(emulated_cuda),
        persistent=PersistentOptions(),
    )
    assert runner.persistent_kernel is not None
    library, _ = runner.persistent_kernel.programs[1].function
    runner.submit(make_batch([Chunk([5, 6, 7], 0, [1], [2], slot=0)], 16))
    steps = [runner.submit(make_batch([Chunk([-1], 3 + i, [1], [0], slot=0)], 16)) for i in range(4)]
    tokens = [int(step.result().next_token_ids[0]) for step in steps]
    runner.close()
    variables = {
        **environment,
        "NEARFAR_EMULATED": f"{environment['NEARFAR_EMULATED']}:{library.path}",
        "NEARFAR_PERSISTENT_KERNEL": "1",
    }
    done = subprocess.run(
        [sys.executable, "-c", PERSISTENT_SCRIPT, str(cuda_bundle)],
        env=variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["workgroups"] == 3
    assert found["tokens"] == tokens
    assert "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE" in found["refused"]
    assert found["loaded"] == []


def test_the_driver_follows_the_rules_of_threads_and_captures(cuda_bundle: Path, environment: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", RULES, str(cuda_bundle)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["a capture that raises"] == "ZeroDivisionError"
    assert "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED" in found["a call that a capture forbids"]
    assert found["other work during a capture"] == [[1] * 4, [1] * 4]
    assert found["batches that fail"] == 4
    # The failed batches must not have freed memory that the stream still reads, because the next batch could get it.
    assert found["tokens"][0] == found["tokens"][1] == found["a launch on a new thread"]
    assert found["a launch after the end"].startswith("CUDA: the model was closed")
    assert found["a first call that launches"] is None
    assert "its cubins need CUDA 13.0, this driver supports CUDA 12.4; update" in found["an older driver"]
    # For 1 and 2 sequences.
    assert found["graphs"] == [2, 2, True, 0]


# Reverses 16,384 numbers through shared memory.
REVERSE = """
extern "C" __global__ void __launch_bounds__(32) reverse(uint* __restrict__ x) {
  wait_for_previous_kernel();
  uint* all = (uint*)dynamic_shared;
  for (uint i = threadIdx.x; i < 16384u; i += 32u) all[i] = x[i];
  __syncthreads();
  for (uint i = threadIdx.x; i < 16384u; i += 32u) x[i] = all[16383u - i];
}
"""
SHARED_SCRIPT = """
import sys
from pathlib import Path
import numpy as np
from nearfar.compiler.runtime.errors import DeviceError
from nearfar.targets.cuda.driver import Arguments, Function, NvidiaDriver

driver = NvidiaDriver()
module = driver.load(Path(sys.argv[1]))
x = np.arange(16384, dtype=np.uint32)
address = driver.allocate(x.nbytes)
driver.upload(address, x)
arguments = Arguments(np.array([address], np.uint64))
reverse = driver.function(module, "reverse")
try:
    driver.launch(Function(reverse.handle, x.nbytes, False), (1, 1), 32, arguments)
except DeviceError as error:
    print(error.message.split(":")[1])
driver.launch(driver.function(module, "reverse", x.nbytes), (1, 1), 32, arguments)
y = np.empty_like(x)
driver.download(y, address)
driver.wait(driver.record())
print(y[0], y[-1])
driver.close()
"""


@pytest.mark.usefixtures("nvrtc")
def test_a_kernel_gets_the_shared_memory_that_it_was_allowed(emulated_cuda: Path, tmp_path: Path) -> None:
    source = source_file(()) + REVERSE
    cubin = tmp_path / "reverse.cubin"
    cubin.write_bytes(compile_cubin(source, "sm_90", "reverse")[0])
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": str(libcuda(emulated_cuda)),
        "NEARFAR_EMULATED": str(library_of(source, emulated_cuda)),
    }
    done = subprocess.run(
        [sys.executable, "-c", SHARED_SCRIPT, str(cubin)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:2] == [" CUDA_ERROR_INVALID_VALUE", "16383 0"]


def test_without_the_bindings_the_error_states_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    with pytest.raises(DeviceError, match=r"needs an NVIDIA GPU with its driver and pip install 'nearfar\[cuda\]'"):
        NvidiaDriver()


def test_without_a_driver_the_error_states_what_is_missing(cuda_bundle: Path) -> None:
    script = SCRIPT.replace("except DeviceError as error:", "except DeviceError as error:\n    sys.exit(error.message)")
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, "-c", script, str(cuda_bundle)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "CUDA" in done.stderr
    assert "Traceback" not in done.stderr
