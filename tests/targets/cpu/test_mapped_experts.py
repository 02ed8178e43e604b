"""The experts of a mixture stay mapped: a token reads the pages of those that it chooses, and no others."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from decoder_families import make_family
from light_bundle import few_kernels, one_compilation

from nearfar.compiler.bundle.folder import Bundle, open_bundle
from nearfar.compiler.pipeline.compile import CompileOptions, compile_model
from nearfar.compiler.runtime.batch import Chunk, make_batch
from nearfar.compiler.runtime.reference import ReferenceRunner
from nearfar.compiler.runtime.runner import Limits
from nearfar.server_fallback.executors.memory import weight_bytes
from nearfar.targets.cpu import weight_memory
from nearfar.targets.cpu.runner import CpuRunner
from nearfar.targets.cpu.weight_memory import COPIED, weight_planes

EXPERTS, CHOSEN = 24, 2
# Matrices of 256 and 128 kB.
SIZES = {
    "num_hidden_layers": 1,
    "hidden_size": 128,
    "moe_intermediate_size": 256,
    "num_experts": EXPERTS,
    "num_experts_per_tok": CHOSEN,
    "mlp_only_layers": [],
}
# Around a page that is read, Linux maps those of a range of 64 kB.
FAULT_AROUND = 64 << 10
LIMITS = Limits(tokens=16, sequences=1, rows=16, pages=4)


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("mixture")
    make_family("qwen3_moe", folder / "checkpoint", **SIZES)
    options = CompileOptions(quantization="f32", context=64, target="cpu", activations=("float32",), self_test=False)
    with few_kernels(), one_compilation():
        compile_model(str(folder / "checkpoint"), folder / "bundle", options)
    return open_bundle(folder / "bundle")


def expert_bytes(bundle: Bundle) -> int:
    """Those of all experts."""
    weights = bundle.manifest.weights
    return sum(plane.size for name in bundle.manifest.expert_weights for plane in weights[name].planes)


def drop_from_memory(folder: Path) -> None:
    """Let the system forget files that were just written. It maps pages that it still has together."""
    for path in folder.iterdir():
        with path.open("rb+") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def resident_bytes(folder: Path) -> int:
    """The bytes of mapped files below a folder that are in this process's memory."""
    total, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, _, rest = line.partition(" ")
        if "-" in name:
            inside = str(folder) in rest
        elif inside and name == "Rss:":
            total += int(rest.split()[0]) << 10
    return total


def test_a_token_reads_the_pages_of_the_experts_that_it_chooses(
    mixture: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NEARFAR_WEIGHTS", raising=False)
    # All weights could be copied.
    monkeypatch.setattr(weight_memory, "has_huge_pages", lambda: True)
    shards = mixture.path.resolve() / "weights"
    drop_from_memory(shards)
    of_one = expert_bytes(mixture) // EXPERTS
    runner = CpuRunner(mixture, limits=LIMITS)
    assert resident_bytes(shards) < 2 * FAULT_AROUND
    reference = ReferenceRunner(mixture, limits=LIMITS)
    seen = []
    for position, token in enumerate((3, 17, 5)):
        batch = make_batch([Chunk([token], position, [0], [0])], mixture.manifest.page_size)
        np.testing.assert_allclose(runner.forward(batch).logits, reference.forward(batch).logits, rtol=1e-4, atol=1e-5)
        seen.append(resident_bytes(shards))
    # Each of an expert's two matrices has an edge on both sides.
    edges = 4 * FAULT_AROUND
    others = 2 * FAULT_AROUND
    for tokens, resident in enumerate(seen, 1):
        assert resident <= tokens * CHOSEN * (of_one + edges) + others
    assert CHOSEN * of_one <= seen[0]
    assert seen[-1] < expert_bytes(mixture) / 2
    runner.close()


def test_experts_are_copied_on_request_only(mixture: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_memory, "copies", lambda size, wanted: True)  # noqa: ARG005
    experts = {f"{name}.w" for name in mixture.manifest.expert_weights}

    def mapped() -> set[str]:
        return {name for name, plane in weight_planes(mixture).items() if isinstance(plane, np.memmap)}

    monkeypatch.setenv("NEARFAR_WEIGHTS", COPIED)
    assert not mapped() & experts
    monkeypatch.delenv("NEARFAR_WEIGHTS")
    assert len(experts) == 2
    assert mapped() & {f"{name}.w" for name in mixture.manifest.weights if "embed" not in name} == experts


def test_a_server_counts_the_experts_that_a_token_reads(mixture: Bundle) -> None:
    all_weights = sum(plane.size for weight in mixture.manifest.weights.values() for plane in weight.planes)
    others = all_weights - expert_bytes(mixture)
    assert weight_bytes(mixture.manifest) == others + expert_bytes(mixture) * CHOSEN // EXPERTS
    assert weight_bytes(mixture.manifest.model_copy(update={"target": "cuda"})) == all_weights
