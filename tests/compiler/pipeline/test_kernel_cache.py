"""Compiled kernels are found again only by everything that they were made from."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from nearfar.compiler.ir.ops import OPS
from nearfar.compiler.ir.ops.parts import facts_of_part
from nearfar.compiler.kernels.builder import Kernel
from nearfar.compiler.kernels.elementwise import elementwise
from nearfar.compiler.pipeline import lower as lowering
from nearfar.compiler.pipeline.kernel_cache import FOLDERS, KernelCache
from nearfar.compiler.pipeline.lower import lower, lower_call, lower_calls_object, lower_object
from nearfar.targets.cpu.levels import AVX2
from nearfar.targets.cuda.nvrtc import Nvrtc, compile_cubin
from nearfar.targets.variant import KernelCall, kernel, with_roles
from nearfar.targets.webgpu.lower import TVM_TARGET


def never(*_: object) -> bytes:
    raise AssertionError("it is compiled again")


def gate(activation: str) -> Kernel:
    return elementwise("gate", "S", 64, part(activation))


def part(activation: str) -> dict[str, Any]:
    shapes = {"gate": ("S", 64), "up": ("S", 64)}
    return facts_of_part("gate", OPS["gate"], OPS["gate"].complete({"activation": activation}), shapes)


def call(activation: str, rows: str, **facts: Any) -> KernelCall:
    return kernel(elementwise, rows=rows, columns=64, part=part(activation), **facts)


def add(columns: int) -> Kernel:
    return elementwise("add", isa=AVX2.isa, rows="S", columns=columns, part={"op": "add"})


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


@pytest.fixture
def kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the user's compiled kernels."""
    monkeypatch.setenv("NEARFAR_KERNEL_CACHE", str(tmp_path / "kernels"))
    return tmp_path / "kernels"


def test_kernels_are_in_the_cache_folder_unless_a_variable_names_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEARFAR_CACHE", str(tmp_path))
    monkeypatch.delenv("NEARFAR_KERNEL_CACHE")
    assert KernelCache.of_user().folder == tmp_path / "kernels"
    monkeypatch.setenv("NEARFAR_KERNEL_CACHE", "~/kernels")
    assert KernelCache.of_user().folder == Path.home() / "kernels"


def test_a_result_is_found_by_all_parts_of_its_key(tmp_path: Path) -> None:
    cache = KernelCache(tmp_path)
    assert cache.kept(["a", b"bc"], lambda: b"one") == b"one"
    assert cache.kept([b"a", "bc"], never) == b"one"
    for key in (["ab", "c"], ["a", "bc", ""], ["a"]):
        assert cache.kept(key, lambda: b"another") == b"another", key


def test_a_damaged_file_is_made_again(tmp_path: Path) -> None:
    cache = KernelCache(tmp_path)
    cache.kept(["a"], lambda: b"some text")
    (file,) = files(tmp_path)
    whole = file.read_bytes()
    for damaged in (whole[:-1], whole[:20], b"", whole[:-1] + b"T"):
        file.write_bytes(damaged)
        assert cache.kept(["a"], lambda: b"made again") == b"made again"
    assert cache.kept(["a"], never) == b"made again"


def test_the_files_that_were_used_last_are_kept(tmp_path: Path) -> None:
    cache = KernelCache(tmp_path, max_bytes=FOLDERS * 3500)
    # Their files are in one folder, which has room for three of them.
    names = [
        name
        for name in map(str, range(100, 1000))
        if sha256(b"\3" + bytes(7) + name.encode()).hexdigest().startswith("0")
    ]
    first, second, third, fourth = names[:4]
    known: set[Path] = set()
    for age, name in ((300, first), (200, second), (100, third)):
        cache.kept([name], lambda: bytes(1000))
        (file,) = set(files(tmp_path)) - known
        known.add(file)
        os.utime(file, times=(time.time() - age,) * 2)
    cache.kept([first], never)
    cache.kept([fourth], lambda: bytes(1000))
    assert len(files(tmp_path)) == 3
    for name in (first, third, fourth):
        cache.kept([name], never)


def test_a_folder_that_cannot_be_written_is_an_empty_cache(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    cache = KernelCache(tmp_path / "file")
    assert [cache.kept(["a"], lambda: b"text") for _ in range(2)] == [b"text"] * 2


def test_a_kernel_is_lowered_once_for_a_template_a_target_and_a_compiler(kernels: Path) -> None:
    import tvm

    silu = gate("silu")
    fresh = lower(silu, TVM_TARGET)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lowering, "lower_now", never)
        assert lower(silu, TVM_TARGET) == fresh
        # An edited template writes another function under the same name.
        edited = gate("relu")
        another_role = replace(silu, bindings=tuple(each.renamed({"up": "other"}) for each in silu.bindings))
        for other, target in ((edited, TVM_TARGET), (another_role, TVM_TARGET), (silu, {**TVM_TARGET, "tag": "x"})):
            with pytest.raises(AssertionError, match="compiled again"):
                lower(other, target)
        patch.setattr(tvm, "__version__", "another")
        with pytest.raises(AssertionError, match="compiled again"):
            lower(silu, TVM_TARGET)
    assert len(files(kernels)) == 1
    assert lower(edited, TVM_TARGET).source != fresh.source
    assert lower(another_role, TVM_TARGET).buffers == ("gate", "other", "y")


def test_what_a_call_of_a_template_gives_is_kept_for_its_facts_and_our_sources(kernels: Path) -> None:
    gpu, cpu = call("silu", "S"), call("silu", "S", isa=AVX2.isa)
    target = {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "x86-64-v3", "opt-level": 0}
    built, fresh = lower_call(gpu, TVM_TARGET)
    (on_cpu,), compiled = lower_calls_object([cpu], target, lambda _: None)
    assert len(files(kernels)) == 4
    # They have no function, but everything that a bundle lists.
    assert built == replace(gpu.build(), function=None)
    assert on_cpu == replace(cpu.build(), function=None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(KernelCall, "build", never)
        assert lower_call(gpu, TVM_TARGET) == (built, fresh)
        assert lower_calls_object([cpu], target, lambda _: None) == ([on_cpu], compiled)
        for other, used in (
            (call("relu", "S"), TVM_TARGET),
            (with_roles(gpu, up="other"), TVM_TARGET),
            (gpu, {**TVM_TARGET, "tag": "x"}),
        ):
            with pytest.raises(AssertionError, match="compiled again"):
                lower_call(other, used)
        patch.setattr(lowering, "sources_key", lambda: b"an edited template")
        with pytest.raises(AssertionError, match="compiled again"):
            lower_call(gpu, TVM_TARGET)
        with pytest.raises(AssertionError, match="compiled again"):
            lower_calls_object([cpu], target, lambda _: None)


def test_an_edited_file_of_the_compiler_or_a_target_gives_another_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("compiler/kernels/gate.py", "compiler/kernels/cuda/device.cuh", "targets/cpu/variants.py")
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("a = 1")
    monkeypatch.setattr(lowering, "PACKAGE", tmp_path)
    # As if each call were in a process that has imported the edited files.
    monkeypatch.setattr(lowering, "IMPORTED_NS", time.time_ns() + 10**12)
    key_now = lowering.sources_key.__wrapped__
    keys = [key_now()]
    for name in names:
        (tmp_path / name).write_text("a = 2")
        keys.append(key_now())
    (tmp_path / names[0]).rename(tmp_path / "compiler/kernels/other.py")
    keys.append(key_now())
    assert len(set(keys)) == len(keys)
    (tmp_path / "compiler/README.md").touch()
    assert key_now() == keys[-1]
    # A file that is newer than its import may not be what a template was read from.
    os.utime(tmp_path / names[1], ns=(0, lowering.IMPORTED_NS + 1))
    assert len({key_now(), key_now(), keys[-1]}) == 3


def test_objects_and_cubins_are_compiled_once(kernels: Path, nvrtc: None, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: ARG001
    target = {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "x86-64-v3", "opt-level": 0}
    on_cpu = [add(64)]
    source = 'extern "C" __global__ void k(float* x) { x[threadIdx.x] = 1.0f; }'
    fresh = lower_object(on_cpu, target), compile_cubin(source, "sm_90", "k.cu")
    monkeypatch.setattr(lowering, "lower_object_now", never)
    monkeypatch.setattr(Nvrtc, "compile", never)
    assert (lower_object(on_cpu, target), compile_cubin(source, "sm_90", "k.cu")) == fresh
    assert len(files(kernels)) == 2
    for compiled in (
        lambda: lower_object([add(96)], target),
        lambda: lower_object(on_cpu, {**target, "mcpu": "x86-64-v4"}),
        lambda: compile_cubin(source, "sm_80", "k.cu"),
        lambda: compile_cubin(source.replace("1.0f", "2.0f"), "sm_90", "k.cu"),
    ):
        with pytest.raises(AssertionError, match="compiled again"):
            compiled()
