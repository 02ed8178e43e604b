"""What a watermark costs and how well it is found, with the demo model for servers on this machine's CPU.

    PYTHONPATH=tests .venv/bin/python tests/bench/bench_watermark.py --human FOLDER

Cost: the share of right answers to held-out prompts of the demo's tasks at temperature 0, the perplexity of sampled
stories under the model without the watermark and temperature, and the time of a step. The demo model leaves little to
chance at temperature 1; at 1.4, its stories have about the perplexity of a large model's free text.

Detection: the share of stories of some lengths, as text that is tokenized again, whose p-value is at most LEVEL; also
after a tenth of their words was replaced by words of other stories. A story goes on after its end, so that it has the
length. Wrongly found: parts of 200 tokens of the texts in FOLDER (.csv, .md, .txt), and stories without a mark, each
with keys of which none was used.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from bench_compile import machine
from demo_model.traffic import demo_prompts
from light_bundle import few_kernels
from rich.console import Console
from rich.table import Table

from nearfar.compiler.demo import DEMOS
from nearfar.compiler.ir.sampling import Sampling
from nearfar.compiler.ir.watermark import Watermark
from nearfar.compiler.pipeline.compile import CompileOptions, compile_model
from nearfar.compiler.runtime.text.tokenizer import Tokenizer
from nearfar.server_fallback.engine.config import EngineConfig
from nearfar.server_fallback.engine.request import GeneratedToken, PromptLogprobs, TokenRequest
from nearfar.server_fallback.engine.token_engine import TokenEngine
from nearfar.server_fallback.executors.local_recipe import LocalRecipe, Planned
from nearfar.server_fallback.executors.memory import plan_memory
from nearfar.server_fallback.text.watermark_detection import detect

RESULTS = Path(__file__).parent / "results" / "watermark.json"
MODEL = "demo-far"
# Temperature, share and strength; a strength of 0 is the model without a watermark.
SETTINGS = (
    (1.0, 0.25, 0.0), (1.0, 0.25, 2.0), (1.0, 0.25, 4.0), (1.0, 0.5, 2.0),
    (1.4, 0.25, 0.0), (1.4, 0.25, 2.0), (1.4, 0.25, 4.0), (1.4, 0.5, 2.0),
)  # fmt: skip
LENGTHS = (25, 50, 100, 200)
LEVEL, LEVELS = 1e-4, (0.01, 0.001, 1e-4)
ANIMALS = ("fox", "cat", "small dragon", "owl", "bear", "whale", "robot", "queen", "sailor", "mouse")
REPLACED = 0.1
SEQUENCES = 8


@dataclass(frozen=True, slots=True)
class Bench:
    tokenizer: Tokenizer
    stories: int
    prompts: int

    def prompt(self, text: str) -> list[int]:
        return self.tokenizer.encode_chat([{"role": "user", "content": text}])

    def tokens(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False)


async def answer(
    engine: TokenEngine, ids: Sequence[int], sampling: Sampling, most: int, *, ends: bool = True
) -> list[int]:
    request = TokenRequest(ids, most, sampling=sampling, ignore_eos=not ends)
    return [item.token_id async for item in engine.generate(request) if isinstance(item, GeneratedToken)]


async def log_probability(judge: TokenEngine, prompt: list[int], story: list[int]) -> float:
    """The mean of the story's tokens."""
    request = TokenRequest([*prompt, *story], 1, prompt_logprobs=len(story))
    async for item in judge.generate(request):
        if isinstance(item, PromptLogprobs):
            return float(np.mean(item.values[-len(story) :]))
    raise AssertionError


async def measured(
    bench: Bench, engine: TokenEngine, judge: TokenEngine, temperature: float
) -> tuple[dict[str, Any], list[str]]:
    """What a watermark costs, and long stories."""
    prompts = demo_prompts("eval", bench.prompts)
    answers = await asyncio.gather(*(answer(engine, bench.prompt(each.prompt), Sampling(), 64) for each in prompts))
    texts = map(bench.tokenizer.decode, answers)
    right = sum(prompt.is_right(text) for prompt, text in zip(prompts, texts, strict=True))
    asked = [bench.prompt(f"tell me a story about a {ANIMALS[index % len(ANIMALS)]}") for index in range(bench.stories)]
    sampled = [Sampling(temperature=temperature, seed=index) for index in range(bench.stories)]
    whole = await asyncio.gather(*(answer(engine, *each, 80) for each in zip(asked, sampled, strict=True)))
    began, before = time.perf_counter(), engine.stats().steps
    long = await asyncio.gather(
        *(answer(engine, *each, max(LENGTHS) + 40, ends=False) for each in zip(asked, sampled, strict=True))
    )
    step_ms = 1000 * (time.perf_counter() - began) / (engine.stats().steps - before)
    means = await asyncio.gather(*(log_probability(judge, *each) for each in zip(asked, whole, strict=True)))
    row = {
        "right of the tasks": percent(right / len(prompts)),
        "perplexity of stories": round(float(np.exp(-np.mean(means))), 3),
        "ms of a step": round(step_ms, 2),
    }
    return row, [bench.tokenizer.decode(story) for story in long]


def found(bench: Bench, watermark: Watermark, stories: list[str]) -> dict[str, str]:
    """The share of stories that are found, by length, whole and with replaced words."""
    edited = replaced(stories)
    row = {}
    for name, texts in (("found", stories), ("with replaced words", edited)):
        for length in LENGTHS:
            values = np.array([detect(watermark, bench.tokens(text)[:length]).p_value for text in texts])
            row[f"{name}, {length} tokens"] = percent(np.mean(values <= LEVEL))
    row["green"] = percent(np.mean([detect(watermark, bench.tokens(text)).green_share for text in stories]))
    return row


def replaced(stories: list[str]) -> list[str]:
    """The stories, a tenth of whose words are those of other stories."""
    drawn, words = random.Random(0), [word for story in stories for word in story.split()]
    return [
        " ".join(drawn.choice(words) if drawn.random() < REPLACED else word for word in story.split())
        for story in stories
    ]


def wrongly_found(texts: list[list[int]], share: float, keys: int) -> dict[str, str]:
    """The share of pairs of a text without a mark and a key that are taken for marked, by level."""
    values = np.array(
        [
            detect(Watermark.of(f"key {number}".encode(), share), text).p_value
            for text in texts
            for number in range(keys)
        ]
    )
    return {"pairs": f"{len(values):,}", **{f"at {level:g}": f"{np.mean(values <= level):.2e}" for level in LEVELS}}


def human_texts(bench: Bench, folder: Path, most: int) -> list[list[int]]:
    """Parts of texts that people wrote, of as many tokens as the longest stories have."""
    files = sorted(file for end in ("csv", "md", "txt") for file in folder.rglob(f"*.{end}"))
    parts, size = list[list[int]](), max(LENGTHS)
    for file in files:
        token_ids = bench.tokens(file.read_text(encoding="utf-8"))
        parts += [token_ids[start : start + size] for start in range(0, len(token_ids) - size, size)]
    return random.Random(0).sample(parts, min(most, len(parts)))


def percent(share: Any) -> str:
    return f"{100 * share:.1f} %"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--human", type=Path, required=True, help="a folder with texts that people wrote")
    parser.add_argument("--human-parts", type=int, default=1000)
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--stories", type=int, default=100)
    parser.add_argument("--keys", type=int, default=50)
    given = parser.parse_args()
    rows: list[dict[str, Any]] = []
    plain: list[list[int]] = []
    with tempfile.TemporaryDirectory() as text:
        options = CompileOptions(target="cpu", context=512, activations=("float32",), watermark=True)
        with few_kernels():
            bundle = compile_model(str(DEMOS[MODEL]), Path(text) / "bundle", options)
        memory = plan_memory(bundle.manifest, sequences=SEQUENCES, tokens=256, kv_bytes=64 << 20)
        bench = Bench(Tokenizer(bundle.tokenizer_files()), given.stories, given.prompts)

        def engine(watermark: Watermark | None) -> TokenEngine:
            config = EngineConfig(max_waiting=2000, watermark=watermark, marks_all=watermark is not None)
            opened = LocalRecipe(Planned(bundle, memory), None, config).open()
            assert isinstance(opened, TokenEngine)
            return opened

        async def one(watermark: Watermark | None, temperature: float) -> tuple[dict[str, Any], list[str]]:
            own, judge = engine(watermark), engine(None)
            try:
                return await measured(bench, own, judge, temperature)
            finally:
                await asyncio.gather(own.close(), judge.close())

        for temperature, share, strength in SETTINGS:
            watermark = Watermark.of(b"a key of this benchmark", share, strength) if strength else None
            row, stories = asyncio.run(one(watermark, temperature))
            if watermark is None:
                plain += [bench.tokens(story)[: max(LENGTHS)] for story in stories]
            else:
                row |= found(bench, watermark, stories)
            rows.append({"temperature": temperature, "share": share, "strength": strength, **row})
            print(rows[-1], flush=True)
        human = human_texts(bench, given.human, given.human_parts)
    wrong = {
        f"{what}, share {share}": wrongly_found(texts, share, given.keys)
        for share in (0.25, 0.5)
        for what, texts in (("people", human), ("the model", plain))
    }
    table = Table(title=machine())
    for column in rows[-1]:
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(*(str(row.get(column, "")) for column in rows[-1]))
    Console(width=240).print(table)
    print(json.dumps(wrong, indent=2))
    about = {"machine": machine(), "model": MODEL, **{k: v for k, v in vars(given).items() if k != "human"}}
    RESULTS.write_text(json.dumps({**about, "rows": rows, "taken for marked": wrong}, indent=2) + "\n")


if __name__ == "__main__":
    main()
