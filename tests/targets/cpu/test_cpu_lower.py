"""The content of a CPU bundle for this machine and for another, and the errors on machines that cannot run it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from light_bundle import kernels_for, one_compilation

from nearfar.compiler.bundle.folder import open_bundle
from nearfar.compiler.pipeline.compile import CompileOptions, compile_model
from nearfar.compiler.runtime.errors import DeviceError, RequestError, ToolError
from nearfar.compiler.runtime.runner import Limits
from nearfar.targets.cpu import levels, link
from nearfar.targets.cpu.runner import CpuRunner

CompileTiny = Callable[..., Path]
AARCH64_OF_ELF = 183
FOR_ARM: dict[str, Any] = {"target": "cpu", "arch": "aarch64", "context": 256, "activations": ("int8", "float32")}
ZEN3 = "flags : fpu sse2 avx2 fma f16c bmi1 bmi2 movbe\n"
ZEN5 = ZEN3.replace("\n", " avx512f avx512bw avx512cd avx512dq avx512vl avx512_vnni\n")


@pytest.fixture(scope="module")
def for_arm(tiny_checkpoints: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle for aarch64 with the kernels for short texts at the base level; `test_cpu_kernels.py` compiles every
    template for every level.
    """
    path = tmp_path_factory.mktemp("arm") / "bundle"
    with one_compilation(), kernels_for(Limits(tokens=2, sequences=1, rows=1, pages=1)):
        compile_model(str(tiny_checkpoints["embedding"]), path, CompileOptions(**FOR_ARM))
    return path


def test_a_library_for_aarch64_is_made_on_any_machine_with_every_kernel_that_the_manifest_names(
    for_arm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = for_arm
    manifest = open_bundle(path).manifest
    assert manifest.arch == "aarch64"
    assert {kernel.file for kernel in manifest.kernels.values()} == {"kernels/aarch64.so"}
    library = (path / "kernels/aarch64.so").read_bytes()
    assert library[:4] == b"\x7fELF"
    assert int.from_bytes(library[18:20], "little") == AARCH64_OF_ELF
    for kernel in manifest.kernels.values():
        assert f"\0{kernel.entry}\0".encode() in library, kernel.entry
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    with pytest.raises(DeviceError, match="is for aarch64 on Linux, this machine is x86_64"):
        CpuRunner(open_bundle(path))


def test_int8_beside_other_activations_has_rows_of_its_own(for_arm: Path) -> None:
    manifest = open_bundle(for_arm).manifest
    for step in manifest.plan("embed").steps:
        if step.op == "linear":
            rows = manifest.variants[step.variants]
            assert {row.activation for row in rows} == {"int8", "float32"}
            for row in rows:
                facts = manifest.kernels[row.kernels[-1]].facts
                assert facts["bits"] == (8 if row.activation == "int8" else 16)


def test_int8_is_for_cpus_webgpu_and_integer_weights(tiny_checkpoints: dict[str, Path], tmp_path: Path) -> None:
    for target, quantization in (("cuda", "q4f16"), ("webgpu", "f16"), ("cpu", "f16")):
        options = CompileOptions(target=target, quantization=quantization, activations=("int8",))
        with pytest.raises(RequestError, match="--activations int8: quantization"):
            compile_model(str(tiny_checkpoints["llama"]), tmp_path / "bundle", options)


def test_every_variants_list_ends_in_a_row_that_needs_nothing(compile_tiny: CompileTiny) -> None:
    # The bundle of test_cpu_runner.py.
    options = {"context": 320, "activations": ("float32",)}
    manifest = open_bundle(compile_tiny("qwen3", "q4f16", target="cpu", **options)).manifest
    for rows in manifest.variants.values():
        assert rows[-1].needs == []
        assert rows[-1].when is None
    assert (
        any("avx512" in row.needs for rows in manifest.variants.values() for row in rows) or manifest.arch != "x86_64"
    )


def test_an_unknown_architecture_is_refused() -> None:
    with pytest.raises(RequestError, match="--arch riscv64: is not known to the cpu target; known: x86_64, aarch64"):
        levels.by_name("riscv64")


def test_features_are_those_that_all_processors_have() -> None:
    assert levels.features(ZEN3) == {"avx2"}
    assert levels.features(ZEN5) == {"avx2", "avx512", "avx512_vnni"}
    assert levels.features(ZEN5 + ZEN3) == {"avx2"}
    assert levels.features("Features : fp asimd asimddp\n") == {"neon", "dotprod"}
    assert levels.features("") == frozenset()


def test_the_error_for_a_processor_without_the_base_level_names_what_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    levels.require("x86_64", levels.features(ZEN3))
    with pytest.raises(DeviceError, match="lacks avx2"):
        levels.require("x86_64", levels.features("flags : fpu sse2 avx\n"))


def test_linking_needs_no_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    # No user can create a folder there.
    monkeypatch.setenv("HOME", "/proc/none")
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/none")
    assert link.link([], "x86_64-linux-gnu").startswith(b"\x7fELF")


def test_linking_without_a_linker_and_a_link_that_fails_are_tool_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ToolError, match="could not link"):
        link.link([b"no object file"], "x86_64-linux-gnu")
    monkeypatch.setattr(link, "find_spec", lambda _: None)
    with pytest.raises(ToolError, match="install it with 'pip install ziglang'"):
        link.link([], "x86_64-linux-gnu")
