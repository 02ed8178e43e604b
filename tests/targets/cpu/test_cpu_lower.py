"""What a CPU bundle holds, for this machine and for another; and what machines are told that cannot run it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from nearfar.compiler.bundle import open_bundle
from nearfar.compiler.errors import DeviceError, RequestError, ToolError
from nearfar.targets.cpu import levels, link
from nearfar.targets.cpu.runner import CpuRunner

CompileTiny = Callable[..., Path]
AARCH64_OF_ELF = 183
ZEN3 = "flags : fpu sse2 avx2 fma f16c bmi1 bmi2 movbe\n"
ZEN5 = ZEN3.replace("\n", " avx512f avx512bw avx512cd avx512dq avx512vl avx512_vnni\n")


def test_a_library_for_aarch64_is_made_on_any_machine_with_every_kernel_that_the_manifest_names(
    compile_tiny: CompileTiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = compile_tiny("embedding", "q4f16", target="cpu", arch="aarch64", activations=("float32",))
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


def test_every_variants_list_ends_in_a_row_that_needs_nothing(compile_tiny: CompileTiny) -> None:
    manifest = open_bundle(compile_tiny("llama", "f32", target="cpu")).manifest
    for rows in manifest.variants.values():
        assert rows[-1].needs == []
        assert rows[-1].when is None
    assert any("avx512" in row.needs for rows in manifest.variants.values() for row in rows) or manifest.arch != "x86_64"


def test_an_unknown_architecture_is_refused() -> None:
    with pytest.raises(RequestError, match="--arch riscv64: is not known to the cpu target; known: x86_64, aarch64"):
        levels.by_name("riscv64")


def test_features_are_those_that_all_processors_have() -> None:
    assert levels.features(ZEN3) == {"avx2"}
    assert levels.features(ZEN5) == {"avx2", "avx512", "avx512_vnni"}
    assert levels.features(ZEN5 + ZEN3) == {"avx2"}
    assert levels.features("Features : fp asimd asimddp\n") == {"neon", "dotprod"}
    assert levels.features("") == frozenset()


def test_a_processor_without_the_base_is_told_what_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    levels.require("x86_64", levels.features(ZEN3))
    with pytest.raises(DeviceError, match="lacks avx2"):
        levels.require("x86_64", levels.features("flags : fpu sse2 avx\n"))


def test_linking_without_a_linker_and_a_link_that_fails_are_tool_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ToolError, match="could not link"):
        link.link([b"no object file"], "x86_64-linux-gnu")
    monkeypatch.setattr(link, "find_spec", lambda _: None)
    with pytest.raises(ToolError, match="install it with 'pip install ziglang'"):
        link.link([], "x86_64-linux-gnu")
