"""Pages of CPU kernels, which store keys element by element, travel to a device like those of any other target."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from cpu_pages import to_cpu

from nearfar.compiler.ir.kv_format import kv_format
from nearfar.compiler.ir.ops.kv_pages import append_kv
from nearfar.server_fallback.far_prefill.layout import Group, KvLayout, Layer

PAGES, HEADS, PAGE, HEAD_DIM = 3, 2, 16, 24


@pytest.mark.parametrize("kv", ["activation", "q8", "q4"])
def test_pages_of_cpu_kernels_travel_like_those_of_others(kv: Any) -> None:
    form, rng = kv_format(kv), np.random.default_rng(6)
    width, dtype = (HEAD_DIM, np.float32) if form is None else (form.words(HEAD_DIM), np.uint32)
    pages = np.zeros((PAGES, 2, HEADS, PAGE, width), dtype)
    rows = {role: rng.standard_normal((PAGES * PAGE, HEADS * HEAD_DIM)).astype(np.float32) for role in ("k", "v")}
    append_kv({"kv": pages, "slots": np.arange(PAGES * PAGE), **rows}, {"kv": kv})
    layout = KvLayout(PAGE, kv, "f32", (Group(None, (Layer("a", HEADS, HEAD_DIM),)),), ())
    of_cpu = replace(layout, keys_by_element=True)
    sent = [
        each.wire_pages(each.groups[0], data.tobytes(), "float32")
        for each, data in ((layout, pages), (of_cpu, to_cpu(pages, kv)))
    ]
    assert to_cpu(pages, kv).tobytes() != pages.tobytes()
    assert sent[0] == sent[1]
