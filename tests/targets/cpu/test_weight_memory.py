"""The memory of weights: copies and mappings hold the same bytes, tables stay mapped, memory decides the default."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from nearfar.compiler.bundle.folder import open_bundle
from nearfar.compiler.runtime.errors import RequestError
from nearfar.targets.cpu import weight_memory
from nearfar.targets.cpu.weight_memory import COPIED, HUGE_PAGE, MAPPED, copies, requested_memory, weight_planes

GB = 10**9


# Bundles of test_cpu_runner.py, with and without a head of its own.
@pytest.mark.parametrize(
    ("checkpoint", "quantization", "options"),
    [("llama", "f32", {}), ("qwen3", "q4f16", {"context": 320, "activations": ("int8", "float16")})],
)
def test_copies_hold_the_bytes_of_the_files_and_tables_of_embeddings_stay_mapped(
    checkpoint: str,
    quantization: str,
    options: dict[str, object],
    compile_base: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bundle = open_bundle(compile_base(checkpoint, quantization, target="cpu", **options))
    monkeypatch.setenv("NEARFAR_WEIGHTS", MAPPED)
    mapped = weight_planes(bundle)
    assert all(isinstance(plane, np.memmap) for plane in mapped.values())
    monkeypatch.setenv("NEARFAR_WEIGHTS", COPIED)
    copied = weight_planes(bundle)
    assert list(copied) == list(mapped)
    for name, plane in copied.items():
        np.testing.assert_array_equal(plane, mapped[name])
        assert plane.ctypes.data % 64 == 0
    # A head that is the table itself reads all of it.
    table = {name for name in mapped if name.startswith("model.embed_tokens.weight.")}
    tied = bundle.manifest.spec.tie_word_embeddings
    assert {name for name, plane in copied.items() if isinstance(plane, np.memmap)} == (set() if tied else table)
    first = next(plane for name, plane in copied.items() if "down_proj" in name)
    flags = flags_of(first.ctypes.data)
    # Huge pages are requested, and the memory is not shared, because shared memory seldom gets them.
    assert "hg" in flags
    assert "sh" not in flags


def flags_of(address: int) -> list[str]:
    """The kernel's flags of the region that holds an address."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, _, values = line.partition(" ")
        if "-" in name:
            start, stop = (int(each, 16) for each in name.split("-"))
            inside = start <= address < stop
        elif inside and name == "VmFlags:":
            return values.split()
    raise AssertionError(address)


def test_weights_are_copied_if_they_fill_half_of_the_available_memory_at_most(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("NEARFAR_WEIGHTS", raising=False)
    monkeypatch.setattr(weight_memory, "available_bytes", lambda: 10 * GB)
    setting = tmp_path / "enabled"
    monkeypatch.setattr(weight_memory, "HUGE_PAGES", setting)
    # Copies in pages of 4 kB would gain nothing.
    assert not copies(GB, requested_memory())
    setting.write_text("always madvise [never]\n")
    assert not copies(GB, requested_memory())
    setting.write_text("always [madvise] never\n")
    assert copies(5 * GB, requested_memory())
    assert not copies(5 * GB + HUGE_PAGE, requested_memory())
    monkeypatch.setenv("NEARFAR_WEIGHTS", "copied")
    assert copies(100 * GB, requested_memory())
    monkeypatch.setenv("NEARFAR_WEIGHTS", "mapped")
    assert not copies(GB, requested_memory())
    monkeypatch.setenv("NEARFAR_WEIGHTS", "huge")
    with pytest.raises(RequestError, match="NEARFAR_WEIGHTS=huge: must be copied or mapped"):
        copies(GB, requested_memory())
