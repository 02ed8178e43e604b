"""Sampling from the request's JSON to the device: the setting for each parameter, and answers compared with tokens that
plain Python chooses from the logits of transformers.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from asgi import ask_app
from fake_models import FakeModels
from tiny_models import VOCAB_SIZE

from nearfar.compiler.bundle.folder import Bundle, open_bundle
from nearfar.compiler.pipeline.target import open_runner
from nearfar.compiler.runtime.batch import Array, Batch
from nearfar.compiler.runtime.runner import Limits, Output
from nearfar.server_fallback.api.app import create_app
from nearfar.server_fallback.api.config import ApiConfig
from nearfar.server_fallback.engine.model import TokenModel
from nearfar.server_fallback.engine.token_engine import TokenEngine
from nearfar.server_fallback.executors.local import LocalExecutor
from nearfar.server_fallback.executors.text_model import TextModel

HI = [{"role": "user", "content": "hi"}]
PROMPT = [17, 301, 5, 88, 301, 44]
LogitsOf = Callable[[Sequence[int]], Sequence[float]]


class RecordingRunner:
    """A runner that records the batches that it computes, and the states that are written to its slots."""

    def __init__(self, runner: Any) -> None:
        self._runner = runner
        self.batches: list[Batch] = []
        self.states: list[tuple[str, list[float]]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def submit(self, batch: Batch) -> Future[Output]:
        self.batches.append(batch)
        return cast("Future[Output]", self._runner.submit(batch))

    def write_state(self, name: str, slot: int, values: Array) -> None:
        self.states.append((name, values.tolist()))
        self._runner.write_state(name, slot, values)


@pytest.fixture(scope="module")
def bundle(compile_base: Callable[..., Path]) -> Bundle:
    return open_bundle(compile_base("qwen3", "f32", target="cpu", lora_rank=4))


def answers(bundle: Bundle, path: str, *bodies: dict[str, Any]) -> tuple[list[list[str]], RecordingRunner]:
    """The texts of the answers to each request, sent one after the other, and what the device received."""
    runner = RecordingRunner(open_runner("cpu", bundle, Limits(tokens=16, sequences=2, rows=2, pages=32)))

    async def run() -> list[list[str]]:
        engine = TokenEngine(cast("Any", runner), TokenModel.of(bundle.manifest))
        local = LocalExecutor(engine, TextModel.of(bundle, "tiny"))
        app = create_app(FakeModels(loaded={"tiny": cast("Any", local)}), ApiConfig())
        try:
            replies = [await ask_app(app, "POST", path, {"model": "tiny", **body}) for body in bodies]
        finally:
            await local.close()
        assert [reply.status_code for reply in replies] == [200] * len(bodies), replies[0].text
        return [[choice.get("text", "") for choice in reply.json()["choices"]] for reply in replies]

    return asyncio.run(run()), runner


# The default settings of a request: temperature, top_k, top_p, min_p, the random number (left out here), and the three
# penalties.
DEFAULTS = [1.0, 0.0, 1.0, 0.0, None, 1.0, 0.0, 0.0]
COLUMNS = {
    "temperature": (0, 0.5, 0.5),
    "top_k": (1, 7, 7.0),
    "top_p": (2, 0.75, 0.75),
    "min_p": (3, 0.125, 0.125),
    "repetition_penalty": (5, 1.5, 1.5),
    "frequency_penalty": (6, 0.25, 0.25),
    "presence_penalty": (7, -0.5, -0.5),
}


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_each_parameter_becomes_one_setting_of_its_row(bundle: Bundle, path: str) -> None:
    asked: dict[str, Any] = {"prompt": "hi"} if path == "/v1/completions" else {"messages": HI}
    given: list[dict[str, Any]] = [{}, *({name: value} for name, (_, value, _) in COLUMNS.items())]
    _, runner = answers(bundle, path, *({**asked, "max_tokens": 1, **parameters} for parameters in given))
    sampled = [batch for batch in runner.batches if len(batch.sample_rows)]
    found = [batch.sample_settings.tolist() for batch in sampled]
    flags = [batch.sample_slots[:, 1].tolist() for batch in sampled]
    for parameters, [row], [flag] in zip(given, found, flags, strict=True):
        expected: list[float | None] = list(DEFAULTS)
        for name in parameters:
            column, _, expected[column] = COLUMNS[name]
        assert [value for index, value in enumerate(row) if index != 4] == expected[:4] + expected[5:], parameters
        # Only penalties use the counts of the slot.
        assert flag == (1 if any("penalty" in name for name in parameters) else 0), parameters


def test_the_engine_accepts_every_bound_of_the_api(bundle: Bundle) -> None:
    bounds: list[dict[str, Any]] = [
        {"temperature": 2, "top_p": 1, "top_k": -1, "min_p": 1, "frequency_penalty": 2, "presence_penalty": 2},
        {"temperature": 0, "top_p": 1e-30, "top_k": 1, "min_p": 0, "frequency_penalty": -2, "presence_penalty": -2},
    ]
    found, _ = answers(bundle, "/v1/completions", *({"prompt": PROMPT, "max_tokens": 1, **each} for each in bounds))
    assert len(found) == len(bounds)


def test_the_bias_and_the_prompts_tokens_are_written_to_the_slot(bundle: Bundle) -> None:
    body = {"prompt": PROMPT, "max_tokens": 1, "logit_bias": {"5": -100, "7": 2.5}, "presence_penalty": 1}
    _, runner = answers(bundle, "/v1/completions", body)
    assert [batch.sample_slots[:, 1].tolist() for batch in runner.batches if len(batch.sample_rows)] == [[1 | 2]]
    counts, bias = np.zeros(VOCAB_SIZE), np.zeros(VOCAB_SIZE)
    # The bit above the 16 bits of the count in the answer.
    counts[PROMPT] = 65536
    bias[[5, 7]] = -100, 2.5
    assert runner.states == [("token_counts", counts.tolist()), ("logit_bias", bias.tolist())]


@dataclass(frozen=True)
class ByHand:
    """The choice of each token as OpenAI, vLLM and the papers define it, in plain Python."""

    temperature: float = 1.0
    top_k: int = VOCAB_SIZE
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: Mapping[int, float] | None = None

    def answer(self, logits_of: LogitsOf, seed: int, count: int) -> list[int]:
        tokens, draws = list(PROMPT), mulberry32(seed)
        for _ in range(count):
            tokens.append(self.choose(list(logits_of(tokens)), tokens[len(PROMPT) :], next(draws)))
        return tokens[len(PROMPT) :]

    def choose(self, logits: list[float], answer: list[int], draw: float) -> int:
        for token in {*PROMPT, *answer}:
            logits[token] *= self.repetition_penalty if logits[token] < 0 else 1 / self.repetition_penalty
        for token, times in Counter(answer).items():
            logits[token] -= self.frequency_penalty * times + self.presence_penalty
        for token, bias in (self.logit_bias or {}).items():
            logits[token] += bias
        weights = [float(np.exp(logit / self.temperature)) for logit in logits]
        kept: list[int] = []
        best = sorted(range(len(weights)), key=lambda token: -weights[token])[: self.top_k]
        for token in best:
            if sum(weights[each] for each in kept) >= self.top_p * sum(weights[each] for each in best):
                break
            kept.append(token)
        kept = sorted(token for token in kept if weights[token] >= self.min_p * weights[best[0]])
        left = draw * sum(weights[token] for token in kept)
        for token in kept:
            left -= weights[token]
            if left < 0:
                return token
        return kept[-1]


def mulberry32(state: int) -> Iterator[float]:
    """The random number generator of a seed, as published (Ettinger 2017)."""
    word = 0xFFFFFFFF
    while True:
        state = (state + 0x6D2B79F5) & word
        mixed = (state ^ (state >> 15)) * (1 | state) & word
        mixed = (mixed + ((mixed ^ (mixed >> 7)) * (61 | mixed) & word)) & word ^ mixed
        yield (mixed ^ (mixed >> 14)) / 2**32


@pytest.fixture(scope="module")
def logits_of(tiny_checkpoints: Mapping[str, Path]) -> LogitsOf:
    """The logits after some tokens, by transformers."""
    import torch
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(tiny_checkpoints["qwen3"], dtype=torch.float32).eval()
    done: dict[tuple[int, ...], list[float]] = {}

    def logits(tokens: Sequence[int]) -> list[float]:
        if tuple(tokens) not in done:
            with torch.no_grad():
                done[tuple(tokens)] = model(torch.tensor([tokens])).logits[0, -1].double().tolist()
        return done[tuple(tokens)]

    return logits


ALL = ByHand(
    temperature=0.8,
    top_k=30,
    top_p=0.95,
    min_p=0.1,
    repetition_penalty=1.3,
    frequency_penalty=0.6,
    presence_penalty=0.4,
    logit_bias={5: 4.0, 17: -3.0, 301: 3.5, 200: 4.5},
)
SEED, TOKENS = 20, 16


def test_seeded_answers_with_all_filters_and_penalties_equal_those_of_plain_python(
    bundle: Bundle, logits_of: LogitsOf
) -> None:
    tokenizer = TextModel.of(bundle, "tiny").tokenizer

    def texts_of(sampling: ByHand) -> list[str]:
        return [tokenizer.decode(sampling.answer(logits_of, SEED + index, TOKENS)) for index in range(2)]

    expected = texts_of(ALL)
    # Every parameter matters: without it, each text would be different.
    for parameter in fields(ByHand):
        left_out: dict[str, Any] = {parameter.name: parameter.default}
        without = texts_of(replace(ALL, **left_out))
        assert [a != b for a, b in zip(without, expected, strict=True)] == [True, True], parameter.name
    given = {field.name: getattr(ALL, field.name) for field in fields(ByHand)}
    body = {"prompt": PROMPT, "n": 2, "seed": SEED, "max_tokens": TOKENS, **given}
    assert answers(bundle, "/v1/completions", body)[0] == [expected]
