"""Cached prefixes as bytes: another engine that receives them gives the same answers and computes only the rest."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from decoder_families import make_family
from engine_requests import LIMITS, OTHERS, PROMPT, Gate, collect, engine_on, ids, require_no_page_held, run, settle
from hash_model import answer_of
from hash_runner import HashRunner
from plain_target import compile_plain

from nearfar.compiler.bundle.folder import Bundle, open_bundle
from nearfar.compiler.runtime.errors import RequestError
from nearfar.compiler.runtime.reference import ReferenceRunner
from nearfar.compiler.runtime.runner import Limits
from nearfar.server_fallback.engine.encoded_prefix import MAGIC, PrefixKey, decode, encode
from nearfar.server_fallback.engine.images import PromptImage, prompt_keys
from nearfar.server_fallback.engine.model import TokenModel
from nearfar.server_fallback.engine.request import TokenRequest
from nearfar.server_fallback.engine.retained_pages import RetainedPages
from nearfar.server_fallback.engine.token_engine import TokenEngine

LONG = [13, 2, 3, 13, 10, 1, 5, 13, 1, 14, 4, 4, 9, 2, 7, 13]
KEY = PrefixKey("b" * 64, "float32", "a device")


@pytest.mark.parametrize("states", [0, 8])
def test_a_prefix_of_one_engine_continues_in_another(states: int) -> None:
    limits = replace(LIMITS, states=states)

    async def work() -> None:
        async with engine_on(HashRunner(limits, threaded=True)) as first:
            answer = await ids(first, LONG)
            await settle(first)
            tokens = [*LONG, *answer]
            pages = await first.read_prefix([*tokens, 3, 3, 3, 3])
            # The last token is not computed. A state is kept where the prompt, and where the answer, ends in a page.
            assert pages.token_ids == tokens[: (len(tokens) - 1) // 4 * 4]
            assert (await first.read_prefix(OTHERS[0])).token_ids == []
        async with engine_on(HashRunner(limits)) as second:
            assert await second.write_prefix(pages) == len(pages.token_ids)
            # A second time, nothing is written.
            assert await second.write_prefix(pages) == len(pages.token_ids)
            require_no_page_held(second)
            before = second.stats().computed_tokens
            found, end = await collect(second, [*tokens, 5])
            assert [token.token_id for token in found] == answer_of([*tokens, 5], 6, 64)[0]
            assert end.cached_tokens == len(pages.token_ids)
            assert second.stats().computed_tokens - before <= 6 + len(tokens) + 1 - end.cached_tokens
            assert await second.read_prefix(pages.token_ids) == pages
            # A prefix that leaves it in the middle starts from its pages, unless its state is unknown there.
            _, end = await collect(second, [*tokens[:13], 6, 6])
            assert end.cached_tokens == (0 if states else 12)

    run(work())


def test_pages_do_not_take_the_place_of_running_requests() -> None:
    async def work() -> None:
        async with engine_on(HashRunner(LIMITS)) as first:
            await ids(first, LONG)
            pages = await first.read_prefix(LONG)
        gate = Gate()
        # The prompt has seven steps, and the answer ten tokens.
        runner = HashRunner(
            replace(LIMITS, pages=16), threaded=True, hold=lambda step: None if step < 7 else gate(step)
        )
        async with engine_on(runner) as second:
            answers = second.generate(TokenRequest([9] * 50, 10, ignore_eos=True))
            await anext(answers)
            # It comes before the next steps, and 13 or more of the 16 pages are in use.
            written = asyncio.ensure_future(second.write_prefix(pages))
            await asyncio.sleep(0)
            gate.open()
            assert await written == 0
            await answers.aclose()
            await settle(second)
            assert await second.write_prefix(pages) == len(pages.token_ids)
            require_no_page_held(second)

    run(work())


def test_pages_that_do_not_fit_the_model_are_refused_and_change_nothing() -> None:
    async def work() -> None:
        async with engine_on(HashRunner(LIMITS)) as engine:
            tokens = LONG[:8]
            for pages, message in (
                (RetainedPages(LONG[:7], [0], "", b""), "7 tokens without .* whose pages have 4 tokens"),
                (RetainedPages(tokens, [1], "", b""), "do not fit this model"),
                (RetainedPages(tokens, [0], "c" * 64, b""), "the adapter cccccccccccc..., .* is not loaded"),
            ):
                with pytest.raises(RequestError, match=message):
                    await engine.write_prefix(pages)
            with pytest.raises(RequestError, match="adapter 'red' is not loaded"):
                await engine.read_prefix(tokens, "red")
            require_no_page_held(engine)
            assert await ids(engine) == answer_of(PROMPT, 6, 64)[0]

    run(work())


def test_adapters_with_the_same_matrices_share_prefixes_whatever_their_names() -> None:
    red, blue = ({"token_counts": np.full(16, value, np.float32)} for value in (1, 2))
    limits = replace(LIMITS, adapters=2)

    async def work() -> None:
        async with engine_on(HashRunner(limits)) as first:
            await first.load_adapter("red", red)
            await ids(first, LONG, adapter="red")
            pages = await first.read_prefix(LONG, "red")
            assert len(pages.token_ids) == 16
            assert (await first.read_prefix(LONG)).token_ids == []
        async with engine_on(HashRunner(limits)) as second:
            await second.load_adapter("other", blue)
            with pytest.raises(RequestError, match="is not loaded; load it first"):
                await second.write_prefix(pages)
            await second.load_adapter("same", red)
            assert await second.write_prefix(pages) == 16
            assert (await second.read_prefix(LONG, "same")).token_ids == LONG
            assert (await second.read_prefix(LONG, "other")).token_ids == []

    run(work())


@asynccontextmanager
async def engine_of(bundle: Bundle) -> AsyncIterator[TokenEngine]:
    limits = Limits(tokens=64, sequences=2, rows=2, pages=20, window_pages=20, states=6)
    engine = TokenEngine(ReferenceRunner(bundle, limits=limits, activation="float32"), TokenModel.of(bundle.manifest))
    yield engine
    await engine.close()


@pytest.mark.parametrize("family", ["gemma4_text", "qwen3_5_text"])
def test_windows_and_states_continue_with_the_same_tokens(
    family: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """gemma4_text has two page groups. An encoded prefix passes the pages on."""
    if family == "gemma4_text":
        bundle = open_bundle(request.getfixturevalue("windowed_bundle"))
    else:
        make_family(family, tmp_path / "checkpoint")
        bundle = compile_plain(tmp_path / "checkpoint", tmp_path / "bundle", "f32", 160)
    prompt = [(7 * i * i + 3 * i + 5) % 97 + 1 for i in range(83)]

    async def work() -> None:
        async with engine_of(bundle) as first:
            expected = await ids(first, [*prompt, 4], max_tokens=8, ignore_eos=True)
            data = encode(await first.read_prefix(prompt), KEY)
        async with engine_of(bundle) as second:
            pages = decode(data, KEY)
            assert len(pages.token_ids) == 80
            assert any(pages.dead_pages) == (family != "qwen3_5_text")
            with pytest.raises(RequestError, match=f"are {len(pages.data)} bytes, not {len(pages.data) - 1}"):
                await second.write_prefix(replace(pages, data=pages.data[:-1]))
            require_no_page_held(second)
            assert await second.write_prefix(pages) == 80
            found, end = await collect(second, [*prompt, 4], max_tokens=8, ignore_eos=True)
            assert [token.token_id for token in found] == expected
            assert end.cached_tokens == 80

    run(work())


def test_the_encoded_form_returns_everything_and_refuses_what_is_damaged_or_of_another_model() -> None:
    keys = prompt_keys([5, 9, 9, 6], [PromptImage(1, 2, "f" * 64)])
    assert min(keys) < 0
    pages = RetainedPages(keys, [0, 3], "d" * 64, bytes(range(100)))
    data = encode(pages, KEY)
    assert decode(data, replace(KEY, device="another")) == pages
    for at in range(len(data)):
        wrong = bytearray(data)
        wrong[at] ^= 0x80
        with pytest.raises(RequestError) as refused:
            decode(bytes(wrong), KEY)
        expected = "other version" if at == len(MAGIC) - 1 else "damaged"
        assert refused.value.details["cause"] == expected
    for cut in (b"", data[:20], data[:-1], data + b"0"):
        with pytest.raises(RequestError, match=r"the prefix is damaged|not the pages of a prefix"):
            decode(cut, KEY)
    for other in (replace(KEY, bundle="e" * 64), replace(KEY, activation="float16")):
        with pytest.raises(RequestError, match=r"computed by the bundle bbbbbbbbbbbb... with float32 .* on a device"):
            decode(data, other)
