"""The number of pages and the memory for a manifest."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from nearfar.compiler.bundle.folder import open_bundle
from nearfar.compiler.bundle.manifest import Manifest
from nearfar.compiler.measure.report import make_report
from nearfar.compiler.runtime.errors import RequestError
from nearfar.server_fallback.executors.memory import context_bytes, page_bytes, plan_memory, weight_bytes


@pytest.fixture(scope="module")
def manifest(compile_tiny: Callable[..., Path]) -> Manifest:
    return open_bundle(compile_tiny("qwen3", "q4f16")).manifest


def test_every_sequence_gets_its_complete_context_if_there_is_memory(manifest: Manifest) -> None:
    plan = plan_memory(manifest, sequences=4, tokens=64, kv_bytes=1 << 30, extra_rows=3)
    one = manifest.pages_for(manifest.context)
    assert (plan.limits.pages, plan.limits.sequences, plan.limits.tokens, plan.limits.rows) == (4 * one, 4, 64, 7)
    # The compiler's report has the same numbers for one sequence.
    report = make_report(manifest)
    alone = plan_memory(manifest, sequences=1, tokens=64, kv_bytes=1 << 30)
    assert alone.kv_bytes == context_bytes(manifest, 64) == report.kv_bytes_per_token * one * manifest.page_size
    assert alone.total_bytes == report.runtime_memory_bytes
    assert weight_bytes(manifest) == report.weight_bytes


def test_layers_with_a_window_get_the_pages_of_their_window(windowed_bundle: Path) -> None:
    manifest = open_bundle(windowed_bundle).manifest
    window_pages = 1 + 4 + 2
    plan = plan_memory(manifest, sequences=3, tokens=64, kv_bytes=1 << 30)
    assert (plan.limits.pages, plan.limits.window_pages) == (3 * 16, 3 * window_pages)
    full, window = page_bytes(manifest)
    assert plan.kv_bytes == 3 * (16 * full + window_pages * window)
    report = make_report(manifest)
    assert report.kv_bytes == context_bytes(manifest, 64) == 16 * full + window_pages * window
    assert report.kv_bytes_per_token == (full + window) // manifest.page_size
    # Two of three layers of each kind have pages; the third one reads those of another layer.
    read = 3 * (256 * full // 2 + 11 * window // 2) // manifest.page_size
    assert report.bytes_per_token_at_context - report.weight_bytes_per_token == read
    # With less memory, all sequences still get their windows, unless the full layers of one sequence would not fit.
    small = plan_memory(manifest, sequences=3, tokens=64, kv_bytes=25 * full + 3 * window_pages * window)
    assert (small.limits.pages, small.limits.window_pages) == (25, 3 * window_pages)
    equal = plan_memory(manifest, sequences=3, tokens=64, kv_bytes=18 * (full + window))
    assert (equal.limits.pages, equal.limits.window_pages) == (18, 18)
    least = plan_memory(manifest, sequences=3, tokens=64, kv_bytes=report.kv_bytes)
    assert (least.limits.pages, least.limits.window_pages) == (16, window_pages)
    assert least.kv_bytes == report.kv_bytes
    with pytest.raises(RequestError, match="allow more with --kv-memory"):
        plan_memory(manifest, sequences=3, tokens=64, kv_bytes=report.kv_bytes - 1)


def test_less_memory_is_fewer_pages_down_to_one_context(manifest: Manifest) -> None:
    one = manifest.pages_for(manifest.context)
    least = plan_memory(manifest, sequences=1, tokens=64, kv_bytes=1 << 30).kv_bytes
    page = least // one
    plan = plan_memory(manifest, sequences=4, tokens=64, kv_bytes=least + page + page // 2)
    assert plan.limits.pages == one + 1
    assert plan.kv_bytes == least + page
    assert plan_memory(manifest, sequences=4, tokens=64, kv_bytes=least).limits.pages == one
    with pytest.raises(
        RequestError,
        match=rf"needs {least:,} bytes of keys and values, but {least - 1:,} are available; allow more with "
        rf"--kv-memory",
    ):
        plan_memory(manifest, sequences=4, tokens=64, kv_bytes=least - 1)
