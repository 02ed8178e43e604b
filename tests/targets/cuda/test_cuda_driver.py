"""NVIDIA's bindings on a libcuda of our own: that the driver calls them as they want to be called. No GPU runs here."""

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
from nearfar.compiler.errors import DeviceError
from nearfar.compiler.runtime.batch import Chunk, Limits, make_batch
from nearfar.targets.cuda.driver import NvidiaDriver
from nearfar.targets.cuda.runner import CudaRunner

SCRIPT = """
import json, sys
from pathlib import Path
from nearfar.compiler.runtime.batch import Chunk, Limits, make_batch
from nearfar.compiler.bundle.folder import open_bundle
from nearfar.compiler.errors import DeviceError
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
