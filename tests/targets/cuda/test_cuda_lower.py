"""Cubins: NVRTC accepts the generated sources, large kernels stay within registers and limits, and a bundle contains
the right files.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Never

import pytest

from nearfar.compiler import quant
from nearfar.compiler.arch import by_model_type
from nearfar.compiler.bundle.folder import open_bundle
from nearfar.compiler.ir.heads import Heads
from nearfar.compiler.ir.plan import make_plan
from nearfar.compiler.ir.spec import ModelSpec, RopeSpec
from nearfar.compiler.kernels.cuda.attention_mma import tile_of
from nearfar.compiler.kernels.projection import Projection
from nearfar.compiler.passes import run_passes
from nearfar.compiler.pipeline.compile import CompileOptions, compile_model
from nearfar.compiler.runtime.errors import RequestError, ToolError
from nearfar.targets.context import Context
from nearfar.targets.cuda import nvrtc
from nearfar.targets.cuda.arch import DEFAULT_CUDA, max_dynamic_bytes, parse_arch
from nearfar.targets.cuda.lower import MAX_BINDING_BYTES
from nearfar.targets.cuda.nvrtc import check_arch, compile_cubin, load_nvrtc
from nearfar.targets.cuda.source import cuda, source_file
from nearfar.targets.cuda.variants import variants_of
from nearfar.targets.variant import KernelCall

CompileTiny = Callable[..., Path]
pytestmark = pytest.mark.usefixtures("nvrtc")

# A layer of Qwen3-0.6B.
SPEC = ModelSpec(
    model_type="qwen3", vocab_size=151936, hidden_size=1024, num_layers=1, num_heads=16, num_kv_heads=8, head_dim=128,
    intermediate_size=3072, max_position_embeddings=40960, rms_norm_eps=1e-6, rope=RopeSpec(theta=1e6),
    tie_word_embeddings=True,
    qkv_bias=False, output_bias=False, mlp_bias=False, qk_norm=True,
)  # fmt: skip
LARGE_TEMPLATES = ("attention_decode_mma", "attention_few_rows", "attention_mma", "attention_tile", "linear_few")


def is_large(call: KernelCall) -> bool:
    """Whether a kernel is one of the largest of its kind. NVRTC needs five seconds for the complete list."""
    template = call.template.__name__
    if template != "linear_mma":
        return template in LARGE_TEMPLATES
    facts: Projection = call.facts["facts"]
    if template == "linear_mma" and (facts.gated or call.facts["shape"].rows < 64):
        return facts.gated
    return facts.weight_rows == 4096


@pytest.mark.exhaustive
def test_the_largest_kernels_of_a_real_model_spill_no_register_and_keep_to_the_limits() -> None:
    fmt = quant.by_name("q4f16")
    plan = make_plan(run_passes(by_model_type("qwen3").forward(SPEC, 16, 4096), fmt, MAX_BINDING_BYTES))
    context = Context(plan, fmt, ("float16",))
    calls = {
        call.name: call for step in plan.steps for variant in variants_of(step, context) for call in variant.kernels
    }
    kernels = [cuda(call.build(), "sm_90") for call in calls.values() if is_large(call)]
    assert len(kernels) >= 6
    cubin, log = compile_cubin(source_file(kernels), "sm_90", "largest")
    assert cubin.startswith(b"\x7fELF")
    facts = re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", log)
    assert facts == [("0", "0", "0")] * len(kernels)
    used = re.findall(r"Used (\d+) registers(?:.*?(\d+) bytes smem)?", log)
    assert len(used) == len(kernels)
    assert all(int(registers) <= 255 and int(shared or 0) <= 48 << 10 for registers, shared in used)
    # Attention and some projections need more shared memory than a kernel can declare: launches add it.
    added = {(each.kernel.workgroup_size, each.dynamic_bytes) for each in kernels if each.dynamic_bytes}
    assert added == {(128, 96 << 10), (128, 103492), (256, 50240), (256, 58496), (128, 53824)}


@pytest.mark.parametrize(
    ("arch", "head_dim", "expected"),
    [
        ("sm_86", 128, {64: 3, 128: 3}),
        ("sm_80", 128, {64: 2, 128: 3}),
        ("sm_90a", 128, {64: 3, 128: 3}),
        ("sm_86", 256, {64: 2}),
        ("sm_80", 256, {64: 3, 128: 3}),
        ("sm_90", 256, {64: 2, 128: 3}),
    ],
)
def test_prefill_attention_has_the_stages_and_rows_that_fit_an_architecture(
    arch: str, head_dim: int, expected: dict[int, int]
) -> None:
    heads = Heads(8, 4, head_dim, 16, "bfloat16")
    tiles = {rows: tile_of(heads, rows, max_dynamic_bytes(arch)) for rows in (64, 128)}
    assert {rows: tile.stages for rows, tile in tiles.items() if tile is not None} == expected


def test_a_bundle_holds_readable_sources_beside_its_cubins(cuda_bundle: Path) -> None:
    manifest = open_bundle(cuda_bundle).manifest
    assert (manifest.target, manifest.arch) == ("cuda", "sm_90")
    files = {kernel.file for kernel in manifest.kernels.values()}
    assert all(re.fullmatch(r"kernels/sm_90_\d\.cubin", file) for file in files)
    for name, kernel in manifest.kernels.items():
        source = (cuda_bundle / kernel.file).with_suffix(".cu").read_text()
        assert f"void __launch_bounds__({kernel.workgroup_size}) {kernel.entry}(" in source, name
        assert "#include" not in source
    open_bundle(cuda_bundle).verify()


def test_an_unknown_architecture_is_refused_with_the_known_ones() -> None:
    assert check_arch(None) == "sm_90"
    assert check_arch("sm_80") == "sm_80"
    names = ("sm_90", "sm_90a", "sm_90-cuda12", "sm_100")
    assert [parse_arch(name).name for name in names] == [*names]
    # Hopper's own instructions need the letter, which other GPUs' code must not have.
    assert [parse_arch(name).gpu for name in names] == ["sm_90a", "sm_90a", "sm_90a", "sm_100"]
    for arch in ("sm_75", "sm_91"):
        with pytest.raises(RequestError, match=r"--arch .*known: sm_80, "):
            check_arch(arch)
    for arch in ("sm_91x", "gfx942", "90", "sm_90-cuda11", "sm_90-cuda"):
        with pytest.raises(RequestError, match=r"--arch .*such as sm_90, or sm_90-cuda12 for drivers of CUDA 12"):
            check_arch(arch)


def no_library(cuda: int) -> Never:
    raise OSError(f"libnvrtc.so.{cuda}: cannot open shared object file")


def test_without_nvrtc_the_error_states_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc, "load_library", no_library)
    with pytest.raises(ToolError, match=r"or choose an --arch of CUDA 13, whose NVRTC is installed$"):
        check_arch("sm_90-cuda12")
    monkeypatch.setattr(nvrtc, "find_spec", lambda _: None)
    for arch, package in (("sm_90", r"'nearfar\[cuda\]'$"), ("sm_90-cuda12", "nvidia-cuda-nvrtc-cu12$")):
        with pytest.raises(ToolError, match=rf"needs its NVRTC, which was not found .*pip install {package}"):
            check_arch(arch)


@pytest.mark.usefixtures("compiled_once")
def test_kernels_for_older_drivers_are_those_for_newer_ones(
    tiny_checkpoints: dict[str, Path], cuda_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    newer = nvrtc.load_library(DEFAULT_CUDA)
    monkeypatch.setattr(nvrtc, "load_library", lambda _: newer)
    options = CompileOptions(
        target="cuda", quantization="q4f16", context=300, activations=("float16",), self_test=False, arch="sm_90-cuda12"
    )
    bundle = compile_model(str(tiny_checkpoints["qwen3"]), tmp_path / "bundle", options)
    assert bundle.manifest.arch == "sm_90-cuda12"
    assert bundle.manifest.kernels.keys() == open_bundle(cuda_bundle).manifest.kernels.keys()


@pytest.mark.exhaustive
def test_cubins_for_older_drivers_are_compiled_by_the_nvrtc_of_cuda_12(
    compile_tiny: CompileTiny, cuda_bundle: Path
) -> None:
    try:
        load_nvrtc(12)
    except ToolError as error:
        pytest.skip(error.message)
    options = {"context": 300, "activations": ("float16",), "self_test": False}
    bundle = open_bundle(compile_tiny("qwen3", "q4f16", target="cuda", arch="sm_90-cuda12", **options))
    assert bundle.manifest.arch == "sm_90-cuda12"
    found, newer = (
        [file.read_bytes() for file in sorted((path / "kernels").glob("*.cubin"))]
        for path in (bundle.path, cuda_bundle)
    )
    # CUDA 13 raised the ABI version of cubins, a byte of their ELF header, for GPUs before sm_100.
    assert {cubin[8] for cubin in found} == {7}
    assert {cubin[8] for cubin in newer} == {8}
    assert sum(map(len, found)) < 1.2 * sum(map(len, newer))


def test_other_architectures_compile() -> None:
    source = source_file(()) + 'extern "C" __global__ void k(uint* x) { x[0] = pair_bf16(1.0f, 2.0f); }'
    for arch in ("sm_80", "sm_89", "sm_90a"):
        assert check_arch(arch) == arch
        assert compile_cubin(source, arch, arch)[0].startswith(b"\x7fELF")


def test_bfloat16_is_for_targets_that_have_it_and_weights_of_16_bits(
    tiny_checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    for target, quantization in (("webgpu", "q4f16"), ("cuda", "q4f32")):
        options = CompileOptions(target=target, quantization=quantization, activations=("bfloat16",))
        with pytest.raises(RequestError, match="--activations bfloat16: quantization"):
            compile_model(str(tiny_checkpoints["qwen3"]), tmp_path / "bundle", options)


def test_the_last_variant_of_every_step_runs_anywhere(cuda_bundle: Path) -> None:
    manifest = open_bundle(cuda_bundle).manifest
    for rows in manifest.variants.values():
        for activation in (entry.dtype for entry in manifest.activations):
            fitting = [row for row in rows if row.activation in (None, activation)]
            assert fitting[-1].when is None
            assert fitting[-1].needs == []
