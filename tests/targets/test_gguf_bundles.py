"""Compiled GGUF files: the integers of blocks arrive unchanged, and each target computes with them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from decoder_families import TOKENS
from gguf import GGMLQuantizationType as Type
from gguf_files import WIDER, make_gguf
from test_architectures import kernels_that_run as kernels_that_run
from test_architectures import opened as opened
from test_architectures import target as target
from tolerances import relative_error

from nearfar.compiler.bundle.folder import Bundle, open_bundle
from nearfar.compiler.export.bundle_tensors import bundle_tensors
from nearfar.compiler.formats import load
from nearfar.compiler.formats.checkpoint import StoredMatrix
from nearfar.compiler.measure.checkpoint_reference import CheckpointReference
from nearfar.compiler.pipeline.compile import CompileOptions, compile_any, compile_model
from nearfar.compiler.pipeline.target import open_runner
from nearfar.compiler.runtime.batch import Chunk, make_batch
from nearfar.compiler.runtime.runner import Limits

CONTEXT = 64
# Sharp attention amplifies differences in the order of sums, and the rounding of the 16-bit activations of CPUs.
LIMITS = {"cpu": 1e-2, "webgpu": 1e-3, "cuda": 1e-3}
# Sizes that are whole blocks of 256.
BLOCKS = {
    "qwen35": {"linear_key_head_dim": 64, "linear_value_head_dim": 64},
    "lfm2moe": {"moe_intermediate_size": 256},
}
# The GGUF type that mixes such as "Q4_K_M" give to each matrix by name, and to all others.
MIXES = {
    "Q4_K_M": {"attn_v": Type.Q6_K, "ffn_down": Type.Q6_K, "token_embd": Type.Q6_K, "": Type.Q4_K},
    "Q5_K_S": {"token_embd": Type.Q8_0, "attn_q": Type.Q5_1, "": Type.Q5_K},
    "Q3_K_L": {"output": Type.Q6_K, "ffn_down": Type.Q5_0, "attn_q": Type.Q2_K, "": Type.Q3_K},
    "Q4_0": {"token_embd": Type.Q8_0, "ffn_down": Type.Q4_1, "": Type.Q4_0},
    "IQ2_M": {"token_embd": Type.IQ3_S, "attn_v": Type.IQ4_XS, "ffn_down": Type.IQ3_XXS, "": Type.IQ2_S},
    "TQ1_0": {"token_embd": Type.Q4_K, "attn": Type.TQ2_0, "ffn_up": Type.IQ1_S, "": Type.TQ1_0},
}


def test_mlx_computes_with_codes_of_all_widths(tmp_path: Path) -> None:
    pytest.importorskip("mlx.core")
    types = {"token_embd": Type.Q4_1, "attn_v": Type.Q8_0, "attn_k": Type.Q5_0, "ffn_down": Type.Q5_1, "": Type.Q4_K}
    path, _ = make_gguf(
        "llama", tmp_path, lambda name: next(kind for part, kind in types.items() if part in name), WIDER
    )
    options = CompileOptions(target="mlx", context=CONTEXT, activations=("float32",))
    bundle = compile_any(str(path), tmp_path / "bundle", options)
    reference = CheckpointReference(load(str(path)), len(TOKENS))
    expected = reference.logits(next(iter(reference.hidden([TOKENS]))))
    runner = open_runner("mlx", bundle, Limits(tokens=64, sequences=1, rows=64, pages=2))
    found = logits_of(runner, CONTEXT)
    runner.close()
    assert relative_error(found, expected) < 1e-3


def logits_of(runner: Any, page_size: int) -> npt.NDArray[np.float32]:
    pages = list(range(-(-len(TOKENS) // page_size)))
    state = (0, 0) if runner.manifest.spec.states is not None else None
    batch = make_batch([Chunk(TOKENS, 0, pages, range(len(TOKENS)), state=state)], page_size)
    return np.array(runner.forward(batch).logits)


# Other tests cover the kernels of every format, and PARTS mixes on webgpu and cpu.
@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("label", "target"), [(label, target) for label in MIXES for target in LIMITS], indirect=["target"]
)
@pytest.mark.usefixtures("kernels_that_run")
def test_a_mixed_file_computes_with_the_values_of_its_blocks(
    label: str, target: str, opened: Any, tmp_path: Path
) -> None:
    require_same_logits("llama", MIXES[label], target, opened, tmp_path)


# Files whose types differ within a matrix of the graph: a, b and z of a gated delta rule; experts' gates and what they
# gate. The weights of the last two do not contain the factor of residuals.
PARTS = {
    "qwen35": ({"ssm_alpha": Type.F32, "ssm_beta": Type.Q8_0, "attn_gate": Type.Q5_K, "": Type.Q4_K}, "cpu"),
    "lfm2moe": ({"ffn_up_exps": Type.Q6_K, "ffn_down": Type.Q6_K, "": Type.Q4_K}, "cpu"),
    "granite": ({"attn_v": Type.Q6_K, "": Type.Q4_K}, "cuda"),
    "granitemoe": ({"ffn_up_exps": Type.Q6_K, "": Type.Q4_K}, "webgpu"),
}


@pytest.mark.parametrize(
    ("architecture", "target"),
    [
        pytest.param(name, target, marks=() if target == "cpu" else pytest.mark.exhaustive)
        for name, (_, target) in PARTS.items()
    ],
    indirect=["target"],
)
@pytest.mark.usefixtures("kernels_that_run")
def test_parts_of_a_matrix_have_types_of_their_own(architecture: str, target: str, opened: Any, tmp_path: Path) -> None:
    bundle = require_same_logits(architecture, PARTS[architecture][0], target, opened, tmp_path)
    # The weights are those of the file, whatever the graph multiplies them by.
    read = load(str(tmp_path / "model.gguf"))
    written = bundle_tensors(bundle)
    assert written.keys() == read.tensors.keys()
    for name, tensor in written.items():
        if read.tensors[name].shape[1:] and isinstance(read.tensors[name], StoredMatrix):
            np.testing.assert_array_equal(
                tensor.rows(np.arange(tensor.shape[0])), read.tensors[name].rows(0, tensor.shape[0])
            )


def require_same_logits(architecture: str, types: Mapping[str, Type], target: str, opened: Any, folder: Path) -> Bundle:
    """Compile a file with these types of matrices, by a part of their names. Returns the bundle."""

    def stored(name: str) -> Type:
        return next(kind for part, kind in types.items() if part in name)

    path, _ = make_gguf(architecture, folder, stored, {**WIDER, **BLOCKS.get(architecture, {})})
    options = CompileOptions(target=target, context=CONTEXT, activations=("float32",))
    bundle = compile_model(str(path), folder / "bundle", options)
    reference = CheckpointReference(load(str(path)), len(TOKENS))
    expected = reference.logits(next(iter(reference.hidden([TOKENS]))))
    found = logits_of(opened(open_bundle(bundle.path)), bundle.manifest.page_size)
    assert relative_error(found, expected) < LIMITS[target]
    return open_bundle(bundle.path)
