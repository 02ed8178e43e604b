"""`nearfar serve` on CUDA: NVIDIA's bindings over the emulated libcuda, which keeps a current context per thread as a
real driver does.

The engine's thread, the waiter, the threads that load and unload models, and the thread that shuts down all call the
driver here.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from emulated import libcuda, library_of
from serving_process import Process, nearfar_serve
from tiny_adapters import SELF_ATTENTION, make_adapter
from tolerances import F32
from waiting import WAIT_SECONDS

from nearfar.compiler.bundle.folder import open_bundle
from nearfar.compiler.ir.sampling import Sampler
from nearfar.compiler.runtime.batch import Chunk, make_batch
from nearfar.compiler.runtime.generate import generate
from nearfar.compiler.runtime.reference import ReferenceRunner
from nearfar.compiler.runtime.runner import Limits

CompileTiny = Callable[..., Path]
# As in test_cuda_runner.py, so that the kernels are compiled once.
LORA: Mapping[str, Any] = {"lora_rank": 2, "context": 64, "activations": ("float32",), "self_test": False}
KEY = {"Authorization": "Bearer a-secret-key"}
PROMPTS = ([5, 6, 7], [9] * 20, [1], [200, 3, 44, 100, 8])
NEW_TOKENS = 6


@dataclass(frozen=True)
class Served:
    """``fault``: once this file exists, every launch is an illegal access."""

    process: Process
    fault: Path

    def post(self, path: str, **body: Any) -> httpx.Response:
        return httpx.post(self.process.url + path, json=body, headers=KEY, timeout=WAIT_SECONDS)

    def complete(self, prompt: list[int], model: str = "base", **more: Any) -> httpx.Response:
        body = {"model": model, "prompt": prompt, "max_tokens": NEW_TOKENS, "temperature": 0, "logprobs": 0, **more}
        return self.post("/v1/completions", **body)

    def logprobs(self, prompt: list[int], model: str = "base") -> list[float]:
        """The log-probabilities of the new tokens. Unlike the text, they identify every token of a random model."""
        answer = self.complete(prompt, model)
        assert answer.status_code == 200, answer.text
        found: list[float] = answer.json()["choices"][0]["logprobs"]["token_logprobs"]
        return found

    def streamed_logprobs(self, prompt: list[int]) -> list[float]:
        lines = [
            line.removeprefix("data: ")
            for line in self.complete(prompt, stream=True).text.splitlines()
            if line.startswith("data: {")
        ]
        choices = [choice for line in lines for choice in json.loads(line)["choices"]]
        return [value for choice in choices if choice["logprobs"] for value in choice["logprobs"]["token_logprobs"]]

    def manage(self, path: str, **body: Any) -> None:
        answer = self.post(path, **body)
        assert answer.status_code == 200, answer.text


@pytest.fixture(scope="module")
def lora_bundle(compile_tiny: CompileTiny, nvrtc: None) -> Path:  # noqa: ARG001
    return compile_tiny("qwen3", "q4f16", target="cuda", **LORA)


@pytest.fixture(scope="module")
def served(
    lora_bundle: Path, cuda_bundle: Path, emulated_cuda: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("served")
    sources = sorted(file for bundle in (lora_bundle, cuda_bundle) for file in (bundle / "kernels").glob("*.cu"))
    libraries = [library_of(file.read_text(), emulated_cuda) for file in sources]
    (folder / "base").symlink_to(lora_bundle)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LD_LIBRARY_PATH", f"{libcuda(emulated_cuda)}:{os.environ.get('LD_LIBRARY_PATH', '')}")
        patch.setenv("NEARFAR_EMULATED", ":".join(map(str, libraries)))
        patch.setenv("NEARFAR_FAULT", str(folder / "fault"))
        patch.setenv("NEARFAR_API_KEYS", "admin=a-secret-key")
        with nearfar_serve([str(folder / "base"), "--max-sequences", "4"], folder / "log", KEY) as process:
            yield Served(process, folder / "fault")


def reference_logprobs(bundle: Path, prompt: list[int]) -> list[float]:
    opened = open_bundle(bundle)
    runner = ReferenceRunner(opened, limits=Limits(rows=NEW_TOKENS), activation="float32")
    tokens = list(generate(runner, prompt, NEW_TOKENS, Sampler()))
    rows = [len(prompt) - 1 + index for index in range(len(tokens))]
    logits = runner.forward(
        make_batch([Chunk([*prompt, *tokens], 0, range(3), rows)], opened.manifest.page_size)
    ).logits
    logits = logits - logits.max(axis=1, keepdims=True)
    return [float(row[token] - np.log(np.exp(row).sum())) for row, token in zip(logits, tokens, strict=True)]


def test_many_clients_get_what_the_reference_computes(served: Served, lora_bundle: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        whole = list(pool.map(served.logprobs, PROMPTS * 2))
        streamed = list(pool.map(served.streamed_logprobs, PROMPTS))
    for prompt, found in zip(PROMPTS * 3, [*whole, *streamed], strict=True):
        expected = reference_logprobs(lora_bundle, list(prompt))
        assert len(found) == len(expected)
        np.testing.assert_allclose(found, expected, atol=F32)


# test_cuda_runner.py has adapters in batches, and server_fallback/api those that come and go.
@pytest.mark.exhaustive
def test_an_adapter_is_loaded_and_unloaded_while_others_are_answered(
    served: Served, tiny_checkpoints: Mapping[str, Path], tmp_path: Path
) -> None:
    make_adapter(tmp_path / "adapter", tiny_checkpoints["qwen3"], SELF_ATTENTION, rank=2, alpha=8, seed=1)
    base = served.logprobs([5, 6, 7])
    with ThreadPoolExecutor(4) as pool:
        others = [pool.submit(served.logprobs, prompt) for prompt in PROMPTS]
        served.manage("/v1/load_lora_adapter", lora_name="adapter", lora_path=str(tmp_path / "adapter"))
        adapted = served.logprobs([5, 6, 7], "adapter")
        assert all(len(other.result()) > 0 for other in others)
    assert adapted != pytest.approx(base, abs=F32)
    assert served.logprobs([5, 6, 7]) == pytest.approx(base, abs=F32)
    served.manage("/v1/unload_lora_adapter", lora_name="adapter")
    assert served.complete([5], "adapter").status_code == 404


# test_cuda_driver.py has threads and contexts, and server_fallback/executors models that come and go.
@pytest.mark.exhaustive
def test_a_second_model_comes_and_goes_beside_the_first(served: Served, cuda_bundle: Path) -> None:
    base = served.logprobs([5, 6, 7])
    with ThreadPoolExecutor(4) as pool:
        others = [pool.submit(served.logprobs, prompt) for prompt in PROMPTS]
        served.manage("/v1/models/load", model=str(cuda_bundle), name="second")
        assert len(served.logprobs([5, 6, 7], "second")) > 0
        assert all(len(other.result()) > 0 for other in others)
    # Its engine closes the runner on a thread of its own, and the context lives on.
    served.manage("/v1/models/unload", model="second")
    assert served.logprobs([5, 6, 7]) == pytest.approx(base, abs=F32)
    served.manage("/v1/models/load", model=str(cuda_bundle), name="second")
    assert len(served.logprobs([5, 6, 7], "second")) > 0


# server_fallback/engine_process has devices that fail, and test_cuda_driver.py the driver's errors.
@pytest.mark.exhaustive
def test_an_engine_whose_gpu_has_failed_gets_another_process(served: Served) -> None:
    """CUDA answers every call of a process after a fault with the same error."""
    before = {model: served.logprobs([5, 6, 7], model) for model in ("base", "second")}
    served.fault.touch()
    # The engine retries a few times before it gives up the device.
    for model in before:
        answers = [served.complete([5, 6, 7], model) for _ in range(6)]
        assert {answer.status_code for answer in answers} <= {500, 503}
        assert "CUDA_ERROR_ILLEGAL_ADDRESS" in answers[0].text
    assert httpx.get(f"{served.process.url}/health/live", timeout=WAIT_SECONDS).status_code == 200
    served.fault.unlink()
    give_up = time.monotonic() + WAIT_SECONDS
    for model, logprobs in before.items():
        while served.complete([5, 6, 7], model).status_code != 200:
            assert time.monotonic() < give_up
            time.sleep(0.1)
        assert served.logprobs([5, 6, 7], model) == pytest.approx(logprobs, abs=F32)
    served.process.process.terminate()
    assert served.process.process.wait(WAIT_SECONDS) == 0
