"""`make gpu-static`: its set-up, which ends with an error that names what is missing, the names of kernels, compilers
that crash, and the budget. The real compilers and every kernel's budget are exhaustive, and skipped where the packages
cannot be had.
"""

from __future__ import annotations

import shutil
import struct
import sys
import tarfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, lacks
from gpu_static import budget, packages
from gpu_static.budget import Budget, excesses, read_budget, write_budget
from gpu_static.devices import DEVICES, Statistics, compile_shaders
from gpu_static.intel_shim import SCRIPTS, build_intel_shim
from gpu_static.kernels import FIRST_WORD, keep_loops, sources_of, translate
from gpu_static.measure import Figures, first_kernels, make_bundles, measure
from gpu_static.packages import Compilers, prepare, print_progress

from nearfar.compiler.bundle.entries import KernelEntry, VariantEntry
from nearfar.compiler.bundle.manifest import Manifest
from nearfar.compiler.ir.expr import Condition
from nearfar.compiler.runtime.errors import NearfarError, OutputError, ToolError, Unavailable

FIGURES = Figures(occupancy=10, registers=19, spills=0, instructions=400, per_weight=5.5)
ADRENO = DEVICES[0]


# --- the set-up ---


def test_a_machine_without_a_c_compiler_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    which = shutil.which
    monkeypatch.setattr(shutil, "which", lambda name: None if name == "cc" else which(name) or name)
    with pytest.raises(ToolError, match=r"^gpu-static: cc is not installed"):
        prepare(tmp_path, print)


def test_a_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "check_machine", lambda: None)
    monkeypatch.setattr(packages, "NEEDED_BYTES", 1 << 60)
    with pytest.raises(OutputError, match=r"needs \d+ MB, and its disk has"):
        prepare(tmp_path, print)


def test_an_archive_out_of_reach_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not (shutil.which("apt-get") and packages.KEYRING.exists()):
        lacks("apt-get or Debian's keyring is not installed")
    archive = "http://127.0.0.1:9/debian"
    monkeypatch.setattr(packages, "ARCHIVE", archive)
    with pytest.raises(Unavailable, match=f"apt-get failed; it downloads from {archive}.*127.0.0.1:9"):
        packages.fetch(tmp_path, print)


def test_a_set_up_that_hangs_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "SETUP_SECONDS", 0.2)
    with pytest.raises(Unavailable, match=r"did not end within 0.2 seconds"):
        list(packages.lines(["sleep", "60"], time.monotonic() + 0.2))


def test_a_source_that_does_not_compile_is_named(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "mesa.orig.tar.xz", "w:xz") as tar:
        for script, *_ in SCRIPTS:
            (tmp_path / script).write_text("import sys; sys.exit('no such GPU')")
            tar.add(tmp_path / script, f"mesa-1/src/intel/dev/{script}")
    with pytest.raises(ToolError, match=r"libintel_noop_drm_shim.so cannot be built: no such GPU"):
        build_intel_shim(tmp_path / "mesa.orig.tar.xz", tmp_path, tmp_path / "mesa")


# --- kernels ---


def projection(**facts: object) -> dict[str, Any]:
    weight = {"kind": "q4", "scale_dtype": "float16", "group": 32, "offset": ""}
    own = {"outputs": 96, "columns": 64, "x_dtype": "float16", "y_dtype": "float32", "store": [], "weight": weight}
    shape = {"threads": 64, "lanes": 16, "rows": 4, "unroll": 2}
    return {"template": "linear_vector", "facts": {"facts": {**own, **facts}, "shape": shape}}


def test_every_kernel_has_a_name_of_its_own() -> None:
    kernels = {
        "plain": projection(),
        "rounded": projection(y_dtype="float16"),
        "gated": projection(store=[{"op": "gate_halves"}]),
        "merge": {"template": "attention_merge", "facts": {"heads": {"activation": "float32"}, "split": 128}},
    }
    entries = {name: KernelEntry.model_construct(file=f"{name}.wgsl", **each) for name, each in kernels.items()}
    found = {each.name: (each.label, each.weights) for each in sources_of(Path(), entries)}
    shape = "threads=64 lanes=16 rows=4 unroll=2"
    # A block has 32 columns of four rows, or of four rows in each half.
    assert found == {
        "plain": (f"linear_vector 96x64 f16 {shape} facts.y_dtype=float32", 256),
        "rounded": (f"linear_vector 96x64 f16 {shape} facts.y_dtype=float16", 256),
        "gated": (f"linear_vector 192x64 gated f16 {shape}", 512),
        "merge": ("attention_merge f32", 0),
    }


def test_the_loops_of_a_copy_are_not_unrolled(tmp_path: Path) -> None:
    header = [0x07230203, 0x10300, 0, 9, 0]
    capability, merge, last = [2 << 16 | 17, 1], [4 << 16 | 246, 7, 8, 0], [1 << 16 | 253]
    words = [*header, *capability, *merge, *last]
    assert len(header) == FIRST_WORD
    shader, copy = tmp_path / "a.spv", tmp_path / "b.spv"
    shader.write_bytes(struct.pack(f"<{len(words)}I", *words))
    keep_loops(shader, copy)
    merge[3] = 2
    expected = [*header, *capability, *merge, *last]
    assert list(struct.unpack(f"<{len(words)}I", copy.read_bytes())) == expected


# --- compilers ---

DRIVER = """
import json, sys
print(json.dumps({"device": "none"}))
for file in map(str.strip, sys.stdin):
    if file.endswith("crash"): sys.stdout.flush(); sys.exit("assertion failed")
    values = {"Max Waves Per Core": 8, "Registers used": 24, "STP Count": 1, "LDP Count": 2, "Instruction Count": 90}
    refused = file.endswith("refused")
    print(json.dumps({"file": file, **({"error": "is not SPIR-V"} if refused else {"executables": [values]})}))
"""


class Scripted(Compilers):
    """Compilers in place of which a script runs."""

    __slots__ = ()

    def command(self, *command: Path | str, preload: str | None = None) -> list[str]:  # noqa: ARG002
        return [sys.executable, "-c", str(self.program)]


def scripted(script: str) -> Compilers:
    return Scripted(Path(), script, {})  # type: ignore[arg-type]


def test_a_shader_that_crashes_the_compiler_costs_only_itself() -> None:
    names = ("first", "crash", "refused", "last")
    compiled = compile_shaders(scripted(DRIVER), ADRENO, {name: Path(name) for name in names})
    expected = Statistics(occupancy=8, registers=24, spills=3, instructions=90)
    assert compiled.statistics == {"first": expected, "last": expected}
    assert compiled.errors == {
        "crash": "the compiler ended with 1: assertion failed",
        "refused": "is not SPIR-V",
    }


def test_a_driver_that_does_not_start_is_named() -> None:
    script = "import sys; sys.exit('the driver finds no device (-3)')"
    with pytest.raises(ToolError, match=r"adreno-740: the driver does not start \(1\): the driver finds no device"):
        compile_shaders(scripted(script), ADRENO, {"any": Path("any")})


# --- the budget ---


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, []),
        ({"occupancy": 12, "registers": 30, "instructions": 900, "per_weight": 5.4}, []),
        ({"occupancy": 8}, ["llama: linear on adreno-740: occupancy 8, was 10"]),
        ({"spills": 1, "tuned": True}, ["llama: linear on adreno-740: 1 spills, were 0"]),
        ({"per_weight": 5.51}, ["llama: linear on adreno-740: 5.51 instructions a weight, were 5.5"]),
    ],
)
def test_what_is_worse_than_the_budget(change: dict[str, Any], expected: list[str]) -> None:
    before = {"llama": {"linear": {"adreno-740": FIGURES}}}
    after = {"llama": {"linear": {"adreno-740": replace(FIGURES, **change)}}}
    assert excesses(before, after) == expected


def test_a_kernel_may_spill_only_where_a_tuner_chooses_it_whatever_the_budget() -> None:
    figures = [replace(FIGURES, spills=3, tuned=tuned) for tuned in (True, False)]
    found = [excesses(same, same) for each in figures for same in [{"llama": {"linear": {"adreno-740": each}}}]]
    spills = "llama: linear on adreno-740: 3 spills, and such GPUs run it before a tuner has measured"
    assert found == [[], [spills]]


def test_the_kernels_that_a_vendor_takes_first() -> None:
    def row(name: str, when: Condition = None, activation: str | None = "float16", *needs: str) -> VariantEntry:
        return VariantEntry(kernels=[name], when=when, activation=activation, needs=list(needs))  # type: ignore[arg-type]

    few: Condition = ["<=", "S", 4]
    rows = [
        row("small", few, "float16", "vendor-intel"),
        row("usual", few),
        row("tuned", few),
        row("half", few, "float16", "shader-f16"),
        row("subgroup", None, None, "subgroups"),
        row("full", few, "float32"),
        row("any", None, None),
        row("last", ["<=", "S", 8]),
    ]
    manifest = Manifest.model_construct(variants={"linear": rows})
    assert first_kernels(manifest, "intel") == {"small", "subgroup", "full", "any"}
    assert first_kernels(manifest, "amd") == {"usual", "subgroup", "full", "any"}


def test_a_quarter_of_the_occupancy_is_needed_whatever_the_budget() -> None:
    figures = [replace(FIGURES, occupancy=count) for count in (4, 3)]
    found = [excesses(same, same) for each in figures for same in [{"llama": {"linear": {"adreno-740": each}}}]]
    assert found == [[], ["llama: linear on adreno-740: occupancy 3, at least 4 are needed"]]


def test_decode_attention_needs_an_eighth_of_the_occupancy() -> None:
    figures = [replace(FIGURES, occupancy=count) for count in (4, 3)]
    labels = ("attention_decode f16 heads=8", "linear")
    found = [
        excesses(same, same)
        for each in figures
        for label in labels
        for same in [{"llama": {label: {"amd-rdna3": each}}}]
    ]
    assert found == [
        [],
        ["llama: linear on amd-rdna3: occupancy 4, at least 8 are needed"],
        ["llama: attention_decode f16 heads=8 on amd-rdna3: occupancy 3, at least 4 are needed"],
        ["llama: linear on amd-rdna3: occupancy 3, at least 8 are needed"],
    ]


def test_a_kernel_that_only_one_side_has_is_no_success() -> None:
    before = {"llama": {"old": {"adreno-740": FIGURES}}}
    after = {"llama": {"new": {"adreno-740": FIGURES}}}
    assert excesses(before, after) == [
        "llama: new on adreno-740 is not in the budget",
        "llama: old is no longer a kernel",
    ]


def test_a_recorded_budget_reads_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "FILE", tmp_path / "budget.json")
    merge, tuned = replace(FIGURES, per_weight=None), replace(FIGURES, spills=2, tuned=True)
    kernels = {"linear": {"apple-m1": FIGURES, "amd-rdna3": tuned}, "merge": {"apple-m1": merge}}
    written = Budget({"dawn-tools": "1"}, {"llama": kernels})
    write_budget(written)
    assert read_budget() == written


def test_no_kernel_spills_that_a_gpu_takes_before_a_tuner_has_measured() -> None:
    spilling = {
        (label.split()[0], figures.tuned)
        for kernels in read_budget().bundles.values()
        for label, devices in kernels.items()
        for figures in devices.values()
        if figures.spills
    }
    assert spilling == {("attention_decode", True), ("attention_few_rows", True)}


# --- the compilers themselves ---


@pytest.fixture(scope="module")
def compilers() -> Compilers:
    try:
        return prepare(ROOT / "build/gpu-static", print_progress)
    except NearfarError as error:
        pytest.skip(error.message)


# More values than any GPU has registers: they are read before the barrier, and used after it.
SPILLING = """
@group(0) @binding(0) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read_write> y: array<vec4<f32>>;
@compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3<u32>) {{
  {reads}
  workgroupBarrier();
  {writes}
}}
"""


@pytest.mark.exhaustive
def test_every_compiler_says_that_too_many_values_spill(compilers: Compilers, tmp_path: Path) -> None:
    count = 400
    reads = "\n  ".join(f"let v{i} = x[id.x * {count} + {i}];" for i in range(count))
    writes = "\n  ".join(f"y[id.x * {count} + {i}] = v{i} * v{count - 1 - i};" for i in range(count))
    source, shader = tmp_path / "spilling.wgsl", tmp_path / "spilling.spv"
    source.write_text(SPILLING.format(reads=reads, writes=writes))
    translate(compilers, source, shader)
    for device in DEVICES:
        compiled = compile_shaders(compilers, device, {"spilling": shader})
        assert compiled.errors == {}
        assert compiled.statistics["spilling"].spills > 0, device.name


@pytest.mark.exhaustive
def test_every_kernel_is_within_its_budget(compilers: Compilers, tmp_path: Path) -> None:
    known = read_budget()
    if known.versions != compilers.versions:
        pytest.skip(f"the budget is that of {known.versions}, and Debian has {compilers.versions}")
    measured = measure(compilers, make_bundles(tmp_path / "bundles", print), tmp_path / "spirv", print)
    assert excesses(known.bundles, measured) == []
