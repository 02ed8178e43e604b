"""Models with recurrent layers in the engine: mixed requests that share prefixes, are preempted and speculate get
transformers' greedy tokens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from decoder_families import make_family
from draft_assistant import DraftAssistant as make_with_assistant
from draft_heads import DraftHeads as make_with_heads
from plain_target import compile_plain
from tiny_models import VOCAB_SIZE

from nearfar.compiler.bundle.folder import Bundle
from nearfar.compiler.bundle.manifest import Manifest
from nearfar.compiler.ir.kv_format import KvName
from nearfar.compiler.ir.sampling import Sampling
from nearfar.compiler.pipeline.compile import CompileOptions, compile_any
from nearfar.compiler.pipeline.target import open_runner
from nearfar.compiler.runtime.errors import RequestError
from nearfar.compiler.runtime.reference import ReferenceRunner
from nearfar.compiler.runtime.runner import Limits, Runner
from nearfar.server_fallback.engine.config import EngineConfig
from nearfar.server_fallback.engine.draft_heads import DraftAssistant, DraftHeads
from nearfar.server_fallback.engine.draft_model import DraftModel
from nearfar.server_fallback.engine.model import TokenModel
from nearfar.server_fallback.engine.request import GeneratedToken, TokenRequest
from nearfar.server_fallback.engine.speculation import Speculation
from nearfar.server_fallback.engine.stats import EngineStats
from nearfar.server_fallback.engine.token_engine import TokenEngine
from nearfar.server_fallback.engine.verification import Verification
from nearfar.server_fallback.executors.memory import bytes_of_state, plan_memory

CONTEXT, ANSWER = 96, 14


def greedy(folder: Path, prompts: Sequence[list[int]]) -> list[list[int]]:
    """The next ANSWER tokens of each prompt, computed by transformers from all tokens each time."""
    import torch
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(folder).float().eval()
    answers = []
    with torch.no_grad():
        for prompt in prompts:
            tokens = list(prompt)
            while len(tokens) < len(prompt) + ANSWER:
                tokens.append(int(model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0, -1].argmax()))
            answers.append(tokens[len(prompt) :])
    return answers


async def answered(engine: TokenEngine, prompt: list[int], priority: int, *, samples: bool) -> list[int]:
    sampling = Sampling(temperature=0.8, seed=len(prompt)) if samples else Sampling()
    request = TokenRequest(prompt, ANSWER, sampling, priority=priority, ignore_eos=True)
    return [item.token_id async for item in engine.generate(request) if isinstance(item, GeneratedToken)]


async def verified(engine: TokenEngine, prompt: list[int], answer: list[int]) -> list[int]:
    """An answer by rounds of four drafts, of which the first 0 to 4 are right."""
    verification = Verification(engine, TokenRequest(prompt, ANSWER, ignore_eos=True))
    tokens: list[int] = []
    while len(tokens) < ANSWER:
        right = (len(tokens) + len(prompt)) % 5
        drafts = answer[len(tokens) : len(tokens) + right]
        wrong = [(token + 1) % VOCAB_SIZE for token in answer[len(tokens) + right : len(tokens) + 4]]
        tokens += (await verification.check([*drafts, *wrong])).token_ids
    return tokens


def served(
    runner: Runner,
    prompts: Sequence[list[int]],
    drafts: Sequence[list[int]] | None,
    draft: ReferenceRunner | Literal["heads"] | None = None,
    *,
    samples: bool = False,
) -> tuple[list[list[int]], EngineStats]:
    """The answers to all prompts in two waves, so that the second one finds the prefixes of the first in the cache.
    With the answers as ``drafts``, by rounds of verification; or with the drafts of a model or of heads. With
    ``samples``, every other answer is sampled.
    """

    async def work() -> tuple[list[list[int]], EngineStats]:
        model, speculation = TokenModel.of(runner.manifest), None
        drafter: DraftModel | None = None
        if draft == "heads":
            assert isinstance(runner.manifest, Manifest)
            heads = DraftAssistant if runner.manifest.has_assistant else DraftHeads
            drafter, speculation = heads(runner, model), Speculation("heads", tokens=3)
        elif draft is not None:
            drafter, speculation = DraftModel(draft, TokenModel.of(draft.manifest)), Speculation("draft")
        engine = TokenEngine(runner, model, EngineConfig(speculation=speculation), draft=drafter)
        answers: list[list[int]] = []
        for wave in (range(len(prompts) // 2), range(len(prompts) // 2, len(prompts))):
            if drafts is None:
                tasks = [
                    answered(engine, prompts[index], index % 3, samples=samples and index % 2 > 0) for index in wave
                ]
            else:
                tasks = [verified(engine, prompts[index], drafts[index]) for index in wave]
            answers += await asyncio.gather(*tasks)
        stats = engine.stats()
        await engine.close()
        return answers, stats

    return asyncio.run(work())


def test_a_bundle_of_onnx_keeps_states_beside_whole_sequences(tmp_path: Path) -> None:
    """A page holds a sequence, and the prefix cache finds a state where one ended."""
    make_family("qwen3_5_text", tmp_path / "checkpoint")
    prompts = [[(7 * i + length) % VOCAB_SIZE for i in range(length)] for length in (21, 18, 5, 9)]
    answers = greedy(tmp_path / "checkpoint", prompts)
    turns = [prompt + answer + [3, 5] for prompt, answer in zip(prompts[:2], answers, strict=False)]
    prompts += [*turns, list(prompts[1]), [9, 8, 7]]
    expected = [*answers, *greedy(tmp_path / "checkpoint", prompts[4:])]
    options = CompileOptions(target="onnx", quantization="f32", context=CONTEXT, activations=("float32",))
    bundle = compile_any(str(tmp_path / "checkpoint"), tmp_path / "onnx", options)
    # Two layers, whose convolutions see the last three inputs.
    assert bytes_of_state(bundle.manifest) == 2 * 4 * (3 * (2 * 2 * 18 + 4 * 14) + 4 * 18 * 14)
    for states, drafts in ((4, None), (12, None), (12, expected)):
        limits = Limits(tokens=32, sequences=4, rows=20, pages=8, states=states)
        runner = open_runner("onnx", bundle, limits)
        found, stats = served(runner, prompts, drafts)
        assert found == expected, (states, drafts)
        assert (stats.state_hits > 0) == (states > 4)
        runner.close()


# Layers of states beside attention, and a model without pages.
@pytest.mark.parametrize("family", [pytest.param("lfm2", marks=pytest.mark.exhaustive), "qwen3_5_text", "mamba2"])
def test_mixed_requests_get_the_tokens_of_transformers(family: str, tmp_path: Path) -> None:
    make_family(family, tmp_path / "checkpoint")
    random = np.random.default_rng(36)
    system = random.integers(1, VOCAB_SIZE, 21).tolist()
    first = [system[:length] + random.integers(1, VOCAB_SIZE, 8).tolist() for length in (21, 21, 18, 5)]
    first.append(list(first[0]))
    first_answers = greedy(tmp_path / "checkpoint", first)
    # Later turns of two conversations, a prompt again, and one that leaves a conversation in its middle.
    turns = [prompt + answer + [3, 5] for prompt, answer in zip(first[:2], first_answers, strict=False)]
    second = [*turns, list(first[1]), [*turns[0][:30], 7, 7], [9, 8, 7]]
    expected = [*first_answers, *greedy(tmp_path / "checkpoint", second)]
    bundle = compile_plain(tmp_path / "checkpoint", tmp_path / "bundle", "f32", CONTEXT)
    for states, drafts in ((4, None), (6, None), (12, None), (12, expected), (12, "of itself")):
        limits = Limits(tokens=32, sequences=4, rows=20, pages=6, states=states)
        runner = ReferenceRunner(bundle, limits=limits, activation="float32")
        small = Limits(tokens=20, sequences=3, rows=3, pages=18, states=6)
        draft = ReferenceRunner(bundle, limits=small, activation="float32") if drafts == "of itself" else None
        answers, stats = served(runner, [*first, *second], None if isinstance(drafts, str) else drafts, draft)
        assert answers == expected, (states, drafts)
        assert (stats.state_hits > 0) == (states > 4)
        assert stats.preemptions > 0 or drafts is not None
        assert (stats.drafted_tokens > stats.accepted_tokens > 0) == isinstance(drafts, list)
        assert draft is None or stats.accepted_tokens == stats.drafted_tokens > 0


@pytest.mark.parametrize(
    ("kv", "assists"),
    [
        ("activation", False),
        pytest.param("q8", False, marks=pytest.mark.exhaustive),
        pytest.param("activation", True, marks=pytest.mark.exhaustive),
        ("q8", True),
    ],
)
def test_heads_of_a_model_draft_tokens_and_change_none(kv: KvName, assists: bool, tmp_path: Path) -> None:
    """Of seven requests in two waves, with prefixes in the cache, some are sampled. The small pool preempts. The rows
    that the model keeps for its heads are no keys and values, and stay as they are. An assistant needs no pages.
    """
    if assists:
        make_with_assistant(tmp_path, agree=0.01)
    else:
        make_with_heads(tmp_path / "checkpoint", agree=0.01)
    assistant = tmp_path / "assistant" if assists else None
    bundle = compile_plain(tmp_path / "checkpoint", tmp_path / "bundle", "f32", CONTEXT, kv=kv, assistant=assistant)
    words = {name for name, state in bundle.manifest.states.items() if state.dtype == "uint32"}
    own = {f"layers.{layer}.kv" for layer in range(4)} if assists else {"layers.1.kv", "draft.layers.0.kv"}
    assert words == (own if kv == "q8" else set())
    random = np.random.default_rng(4)
    system = random.integers(1, VOCAB_SIZE, 21).tolist()
    prompts = [system[:length] + random.integers(1, VOCAB_SIZE, 8).tolist() for length in (21, 21, 18, 5)]
    prompts += [list(prompts[0]), [*prompts[1], 7, 7, 3], [5]]
    expected, plain = served(opened(bundle, pages=40), prompts, None, samples=True)
    assert plain.drafted_tokens == 0
    for pages, draft_pages in ((40, 40), (6, 40), (40, 4)):
        answers, stats = served(
            opened(bundle, pages=pages, draft_pages=draft_pages), prompts, None, "heads", samples=True
        )
        assert answers == expected, pages
        assert stats.drafted_tokens > stats.accepted_tokens > 0
        assert (draft_pages < pages and not assists) or 4 * stats.accepted_tokens > stats.drafted_tokens
        assert (stats.preemptions > 0) == (pages < 40)


def opened(bundle: Bundle, pages: int, draft_pages: int = 0) -> ReferenceRunner:
    limits = Limits(tokens=32, sequences=4, rows=20, pages=pages, states=12, draft_pages=draft_pages)
    return ReferenceRunner(bundle, limits=limits, activation="float32")


def test_the_memory_of_states_is_planned_and_what_states_cannot_do_is_refused(tmp_path: Path) -> None:
    make_family("lfm2", tmp_path / "checkpoint")
    bundle = compile_plain(tmp_path / "checkpoint", tmp_path / "bundle", "f32", CONTEXT)
    manifest = bundle.manifest
    one = bytes_of_state(manifest)
    # Two layers, whose convolutions see the last two inputs.
    assert one == 2 * 2 * manifest.spec.hidden_size * 4
    few, many = (plan_memory(manifest, sequences=2, tokens=32, kv_bytes=1 << 24, states=states) for states in (3, 10))
    assert (few.limits.states, few.state_bytes, many.state_bytes) == (3, 3 * one, 10 * one)
    assert many.total_bytes - few.total_bytes == 7 * one
    with pytest.raises(RequestError, match=r"3 states .* --state-snapshots"):
        plan_memory(manifest, sequences=2, tokens=32, kv_bytes=few.kv_bytes // 2 + 3 * one - 1, states=3)
    runner = ReferenceRunner(bundle, limits=few.limits, activation="float32")
    model = TokenModel.of(manifest)
    with pytest.raises(RequestError, match="the draft model's runner has 3 slots for states; open it with 4"):
        TokenEngine(
            ReferenceRunner(bundle, limits=Limits(sequences=1, rows=4)),
            model,
            EngineConfig(speculation=Speculation("draft")),
            draft=DraftModel(runner, model),
        )

    async def shift() -> None:
        engine = TokenEngine(runner, model)
        with pytest.raises(RequestError, match="recurrent layers, whose states cannot lose old tokens"):
            await anext(engine.generate(TokenRequest([1, 2], 4, when_full=1)))
        await engine.close()

    asyncio.run(shift())
