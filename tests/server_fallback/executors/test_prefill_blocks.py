"""The blocks of a prompt that is computed for a client: every page once, as the bundle's own 4-bit pages, whatever the
engine's format, with the states before the last page.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import aclosing
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from asgi import run
from page_model import page_bundle

from nearfar.compiler.bundle.folder import open_bundle
from nearfar.compiler.ir.kv_format import KV_FORMATS
from nearfar.compiler.ir.ops.kv_pages import append_kv, dequantize_pages, quantize_rows, read_pages, rotated
from nearfar.compiler.runtime.errors import DeviceError, RequestError, Unavailable
from nearfar.compiler.runtime.reference import ReferenceRunner
from nearfar.compiler.runtime.runner import Limits
from nearfar.server_fallback.engine.model import TokenModel
from nearfar.server_fallback.engine.retained_pages import RetainedPages
from nearfar.server_fallback.engine.token_engine import TokenEngine
from nearfar.server_fallback.executors.executor import Call
from nearfar.server_fallback.executors.local import LocalExecutor
from nearfar.server_fallback.executors.text_model import TextModel
from nearfar.server_fallback.far_prefill import blocks as far_blocks
from nearfar.server_fallback.far_prefill.blocks import Counts
from nearfar.server_fallback.far_prefill.layout import Group, KvLayout, Layer, State, pack_states, to_wire
from nearfar.server_fallback.schema.prefill import PrefillRequest

PAGE = 16
PROMPT = [(7 * index + 3) % 200 for index in range(8 * PAGE)]
VECTORS = json.loads((Path(__file__).parents[2] / "conformance/kv_rows.json").read_text())


def read(content: bytes) -> Iterator[tuple[dict[str, Any], bytes]]:
    while content:
        length, size = struct.unpack("<II", content[:8])
        fields, content = json.loads(content[8 : 8 + length]), content[8 + length :]
        data, content = content[:size], content[size:]
        assert sha256(data).hexdigest() == fields["sha256"]
        yield fields, data


def sent(
    bundle: Path, prompt: Sequence[int], start: int = 0, *, times: int = 1, changed: Mapping[str, Any] | None = None
) -> tuple[list[tuple[dict[str, Any], bytes]], Counts, bytes]:
    """The blocks of a prompt that is asked for some ``times``, and the pages that the engine holds after it."""
    opened = open_bundle(bundle)

    async def work() -> tuple[list[bytes], Counts, bytes]:
        runner = ReferenceRunner(opened, limits=Limits(tokens=64, sequences=2, rows=2, pages=64))
        engine = TokenEngine(runner, TokenModel.of(opened.manifest))
        text = TextModel.of(opened, "tiny")
        local, counts, found = LocalExecutor(engine, text), Counts(), list[bytes]()
        try:
            asked = {"model": "tiny", "tokenizer_sha256": text.tokenizer_sha256, "prompt": prompt, "start": start}
            request = PrefillRequest(**{**asked, **(changed or {})})
            for _ in range(times):
                counts = Counts()
                async with aclosing(local.prefill(request, Call("1"), counts)) as parts:
                    found = [part async for part in parts]
            held = await engine.read_prefix(prompt)
            return found, counts, held.data
        finally:
            await local.close()

    parts, counts, held = run(work())
    return list(read(b"".join(parts))), counts, held


def test_every_page_comes_once_and_is_what_the_engine_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(far_blocks, "PART_TOKENS", 3 * PAGE)
    bundle = page_bundle()
    found, counts, held = sent(bundle, PROMPT)
    (opened, _), *pages, (end, _) = found
    manifest = open_bundle(bundle).manifest
    assert opened == {
        "type": "opened", "version": 3, "start": 0, "tokens": len(PROMPT), "page_size": PAGE, "quantization": "f32",
        "groups": [{"window": None, "layers": [["layers.0.kv", 1, 32]]}], "states": [],
        "sha256": sha256(b"").hexdigest(),
    }  # fmt: skip
    assert [(each["start"], each["tokens"]) for each, _ in pages] == [(0, 16), (16, 48), (64, 48), (112, 16)]
    assert (end["type"], end["tokens"], end["cached_tokens"]) == ("end", len(PROMPT), 0)
    assert counts.computed_tokens == len(PROMPT)
    # The bundle's own 4-bit format, as its kernels would have stored the same numbers.
    numbers = np.frombuffer(held, "<f4").reshape(-1, 2, 1, PAGE, 32)
    stored = np.zeros((len(numbers), 2, 1, PAGE, 5), np.uint32)
    rows = {role: numbers[:, plane].transpose(0, 2, 1, 3).reshape(-1, 32) for plane, role in enumerate(("k", "v"))}
    append_kv({"kv": stored, "slots": np.arange(len(rows["k"])), **rows}, {"kv": "q4"})
    assert b"".join(data for _, data in pages) == stored.tobytes()
    assert manifest.page_size == PAGE


def test_a_client_that_comes_back_gets_the_rest_from_the_cache() -> None:
    whole, counts, _ = sent(page_bundle(), PROMPT, times=2)
    assert (counts.computed_tokens, whole[-1][0]["cached_tokens"]) == (0, len(PROMPT))
    rest, _, _ = sent(page_bundle(), PROMPT, start=4 * PAGE)
    pages = [b"".join(data for fields, data in found if fields["type"] == "pages") for found in (whole, rest)]
    assert pages[0].endswith(pages[1])
    assert len(pages[1]) == len(pages[0]) // 2


@pytest.mark.parametrize(
    ("changed", "code", "param"),
    [
        ({"tokenizer_sha256": "0" * 64}, "tokenizer_differs", "tokenizer_sha256"),
        ({"prompt": PROMPT[:-1]}, None, "prompt"),
        ({"start": 8}, None, "start"),
        ({"start": len(PROMPT) - PAGE}, None, "start"),
        ({"prompt": [*PROMPT[:-1], 10_000]}, None, "prompt"),
        ({"prompt": PROMPT * 2}, "context_length_exceeded", "prompt"),
    ],
)
def test_wrong_prompts_are_refused(changed: dict[str, Any], code: str | None, param: str) -> None:
    with pytest.raises(RequestError) as error:
        sent(page_bundle(), PROMPT, changed=changed)
    assert error.value.details.get("param") == param
    assert error.value.details.get("code") == code


@pytest.mark.parametrize("failures", [2, 99])
def test_pages_that_others_evict_are_computed_again_and_at_last_given_up(
    monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    read_prefix, left = TokenEngine.read_prefix, [failures]

    async def evicted(engine: TokenEngine, token_ids: Sequence[int], adapter: str | None = None) -> RetainedPages:
        left[0] -= 1
        return await read_prefix(engine, token_ids if left[0] < 0 else token_ids[:PAGE], adapter)

    monkeypatch.setattr(TokenEngine, "read_prefix", evicted)
    # The first part has one page, which is there.
    prompt = PROMPT[PAGE:]
    if failures < far_blocks.ATTEMPTS:
        assert sent(page_bundle(), prompt, start=PAGE)[0][-1][0]["type"] == "end"
    else:
        with pytest.raises(Unavailable, match="the cache kept 16 of 32 tokens"):
            sent(page_bundle(), prompt, start=PAGE)


@pytest.mark.parametrize("kv", ["activation", "q8", "q4", "fp8"])
@pytest.mark.parametrize("activation", ["float32", "float16", "bfloat16"])
def test_pages_of_every_format_travel_as_4_bits(kv: Any, activation: str) -> None:
    layout = KvLayout(4, kv, "f32", (Group(None, (Layer("a", 2, 16), Layer("b", 1, 24))),), ())
    rng = np.random.default_rng(5)
    computed = [rng.standard_normal((3, 2, heads, 4, size)).astype(np.float32) for heads, size in ((2, 16), (1, 24))]
    stored = [as_stored(each, kv, activation) for each in computed]
    data = b"".join(each[page].tobytes() for page in range(3) for each in stored)
    wire = np.frombuffer(layout.wire_pages(layout.groups[0], data, activation), "<u4").reshape(3, -1)
    expected = [each if kv == "q4" else to_wire(numbers_in(each, kv, activation)) for each in stored]
    assert wire.tolist() == np.concatenate([each.reshape(3, -1) for each in expected], axis=1).tolist()
    # Its steps are an eighth of the largest number of a row.
    form = KV_FORMATS["q4"]
    back = dequantize_pages(wire[:, : 2 * 2 * 4 * 3].reshape(3, 2, 2, 4, 3).copy(), form)
    back[:, 0] = rotated(back[:, 0])
    assert np.abs(back - computed[0]).max() < 0.6


def as_stored(rows: Any, kv: str, activation: str) -> Any:
    if kv == "activation":
        if activation == "bfloat16":
            return (rows.view(np.uint32) >> 16).astype(np.uint16)
        return rows.astype(activation)
    form = KV_FORMATS[kv]
    if form.rotates_keys:
        return to_wire(rows)
    words = quantize_rows(rows, form)
    return np.concatenate([words[..., :-1].reshape(*words.shape[:3], -1), words[..., -1]], axis=-1)


def numbers_in(stored: Any, kv: str, activation: str) -> Any:
    if kv != "activation":
        return read_pages(stored.reshape(*stored.shape[:3], 4, -1), {"kv": kv})
    if activation == "bfloat16":
        return (stored.astype(np.uint32) << 16).view(np.float32)
    return stored.astype(np.float32)


def test_numbers_that_are_not_finite_are_not_sent() -> None:
    with pytest.raises(DeviceError, match="not numbers"):
        to_wire(np.full((1, 2, 1, 4, 8), np.inf, np.float32))
    with pytest.raises(DeviceError, match="not numbers"):
        pack_states([State("a", (1,))], np.array([np.nan], "<f4").tobytes(), "q4")


@pytest.mark.parametrize("form", ["q4", "q8", "float16"])
def test_states_travel_as_requested_unless_a_number_does_not_fit(form: Any) -> None:
    """`web/test/prefill/layout.test.ts` reads the same."""
    vector = VECTORS["states"]
    states = [State(str(index), tuple(shape)) for index, shape in enumerate(vector["shapes"])]
    data = np.array(vector["values"], "<f4").tobytes()
    assert pack_states(states, data, form) == (bytes.fromhex(vector["forms"][form]["content"]), form)
    assert KvLayout(16, "activation", "f32", (), tuple(states)).state_bytes == len(data)
    window = State("window", (1, 2))
    large = np.array([1.5, 70000], "<f4").tobytes()
    assert pack_states([window], large, form) == (large, "float32")
    # Matrices have scales of float32.
    matrix = State("matrix", (1, 1, 8))
    assert pack_states([matrix], np.full(8, 1e9, "<f4").tobytes(), form)[1] == (
        "float32" if form == "float16" else form
    )


def test_the_vectors_of_rows_are_those_of_the_reference() -> None:
    """`web/test/prefill/rows.test.ts` requires the same of TypeScript."""
    for case in VECTORS["cases"]:
        rows = np.array(case["values"], np.float32).reshape(-1, case["head_dim"])
        assert rotated(rows).astype(float).ravel().tolist() == case["rotated"]
        for name, form in ((name, KV_FORMATS[name]) for name in ("q8", "q4")):
            if case["head_dim"] % form.multiple == 0:
                words = quantize_rows(rows, form)
                assert np.concatenate([words[:, :-1].ravel(), words[:, -1]]).tolist() == case[name]
    with np.errstate(over="ignore"):
        halves = np.array(VECTORS["halves"]["values"], np.float32).astype(np.float16)
    assert halves.view(np.uint16).tolist() == VECTORS["halves"]["bits"]
