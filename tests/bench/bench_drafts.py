"""What drafts save in both engines: the demo model for servers answers prompts without drafts, with those of the text,
with those of the text while they pay (the page's default, after it has measured the device), and with those of the
small demo model, which has the same tokenizer; a narrow Qwen3.5 with heads answers without drafts, and with those of
its heads. Half of the prompts have an answer in their context that the model repeats in whole or in part.

    .venv/bin/python tests/bench/bench_drafts.py

The Python engine runs on this machine's CPU, the page's engine on Dawn in Node. Prints a table and writes
`results/drafts.json`. Tokens, steps and dispatches do not depend on the machine. Times are those of the processor, of
all threads, which also compute the adapter's kernels if that is a CPU; the least of ``--rounds``, whose settings
alternate. The Qwen3.5 has random weights, so that its heads guess almost nothing: it shows what wrong guesses cost.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench_compile import machine
from checkpoints import QWEN3_5_0_8B, Shapes, write_checkpoint
from rich.console import Console
from rich.table import Table
from tokenizers import Tokenizer

from nearfar.compiler.bundle.folder import Bundle
from nearfar.compiler.demo import DEMOS
from nearfar.compiler.ir.sampling import Sampling
from nearfar.compiler.pipeline.compile import CompileOptions, compile_model
from nearfar.server_fallback.engine.config import EngineConfig
from nearfar.server_fallback.engine.request import GeneratedToken, TokenRequest
from nearfar.server_fallback.engine.speculation import Speculation
from nearfar.server_fallback.engine.token_engine import TokenEngine
from nearfar.server_fallback.executors.local_recipe import LocalRecipe, Planned
from nearfar.server_fallback.executors.memory import plan_memory

ROOT = Path(__file__).resolve().parents[2]
RESULTS = Path(__file__).parent / "results" / "drafts.json"
MODEL, DRAFT = "demo-far", "demo"
PROMPTS = (
    "tell me a story about a fox",
    "add quinoa flakes to the shopping list",
    "reverse hello",
)
# What the model answers to the first of PROMPTS, and what is asked after it.
STORY = (
    'Once upon a time there was a fox. One morning the fox saw a golden key by the river. "What a day," whispered the '
    "fox. A friendly cloud came to help, and the fox slept well. The end."
)
REPEATED = ("tell me a story about a fox", "tell me a story about a cat", "tell me a story about a small dragon")
# A quarter of the width and a sixth of the layers.
NARROW = Shapes(
    "Qwen3.5-narrow",
    {
        **QWEN3_5_0_8B.config, "vocab_size": 1024, "hidden_size": 256, "num_hidden_layers": 4,
        "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 64, "intermediate_size": 896,
        "linear_num_value_heads": 4, "linear_num_key_heads": 4, "linear_key_head_dim": 64,
        "linear_value_head_dim": 64, "max_position_embeddings": 1024,
    },
    draft_layers=1,
)  # fmt: skip
TOKENS = 32
# Checked at once.
GUESSES = 4
KV_BYTES = 1 << 28


@dataclass(frozen=True, slots=True)
class Setting:
    """``drafts``: "ngram", "heads", "auto", the name of a model, or None. ``repeats``: whether answers repeat text."""

    model: str
    drafts: str | None
    repeats: bool = False


SETTINGS = (
    *(Setting(MODEL, drafts, repeats) for repeats in (False, True) for drafts in (None, "ngram", "auto", DRAFT)),
    Setting(NARROW.name, None),
    Setting(NARROW.name, "heads"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--targets", nargs="+", choices=tuple(ENGINES), default=list(ENGINES))
    options = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(DEMOS[MODEL] / "tokenizer.json"))

    def encoded(turns: str) -> list[int]:
        ids: list[int] = tokenizer.encode(f"<bos>{turns}<end><assistant>", add_special_tokens=False).ids
        return ids

    story = f"<user>{PROMPTS[0]}<end><assistant>{STORY}<end>"
    asked = {
        False: [encoded(f"<user>{each}") for each in PROMPTS],
        True: [encoded(f"{story}<user>{each}") for each in REPEATED],
    }
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        checkpoints = {name: DEMOS[name] for name in (MODEL, DRAFT)}
        checkpoints[NARROW.name] = write_checkpoint(NARROW, folder / "checkpoint")
        bundles = {
            target: {
                name: compile_model(
                    str(path),
                    folder / target / name,
                    CompileOptions(target=target, context=512, activations=("float32",)),
                )
                for name, path in checkpoints.items()
            }
            for target in options.targets
        }
        rows = []
        for target in options.targets:
            answered, runs = ENGINES[target], []
            for number in range(options.rounds):
                print(f"{target}, round {number + 1} of {options.rounds}", flush=True)
                runs.append([answered(bundles[target], each, prompts_of(each, asked)) for each in settings_of(target)])
            rows += rows_of(target, runs)
    table = Table(title=machine())
    for column in rows[0]:
        table.add_column(column.replace("_", " "), justify="right")
    for row in rows:
        table.add_row(*map(str, row.values()))
    Console(width=160).print(table)
    about = {"machine": machine(), "prompts": len(PROMPTS), "rounds": options.rounds, "at once": GUESSES}
    RESULTS.write_text(json.dumps({**about, "rows": rows}, indent=2) + "\n")


def settings_of(target: str) -> list[Setting]:
    """Only the page measures whether drafts pay."""
    return [each for each in SETTINGS if target == "webgpu" or each.drafts != "auto"]


def prompts_of(setting: Setting, asked: dict[bool, list[list[int]]]) -> list[list[int]]:
    """The demo models' prompts; for random weights ids that they have."""
    prompts = asked[setting.repeats]
    return prompts if setting.model == MODEL else [[token % 256 for token in prompt] for prompt in prompts]


def answered_in_python(bundles: dict[str, Bundle], setting: Setting, prompts: list[list[int]]) -> dict[str, Any]:
    """The answers with a setting, and what they took."""
    kind: Any = {None: None, DRAFT: "draft"}.get(setting.drafts, setting.drafts)
    planned = planned_for(bundles[setting.model], states=8, drafts=kind == "heads")
    small = planned_for(bundles[DRAFT]) if kind == "draft" else None
    speculation = None if kind is None else Speculation(kind, GUESSES)
    engine = LocalRecipe(planned, small, EngineConfig(speculation=speculation)).open()
    assert isinstance(engine, TokenEngine)
    return asyncio.run(answers_of(engine, prompts))


def planned_for(bundle: Bundle, *, states: int = 2, drafts: bool = False) -> Planned:
    """For one answer at a time."""
    memory = plan_memory(
        bundle.manifest,
        sequences=1,
        tokens=64,
        kv_bytes=KV_BYTES,
        extra_rows=GUESSES,
        states=states,
        drafts=drafts,
    )
    return Planned(bundle, memory)


async def answers_of(engine: TokenEngine, prompts: list[list[int]]) -> dict[str, Any]:
    async def answer(prompt: list[int]) -> list[int]:
        request = TokenRequest(prompt, TOKENS, Sampling())
        return [item.token_id async for item in engine.generate(request) if isinstance(item, GeneratedToken)]

    await answer(prompts[0])
    before, start = engine.stats(), time.process_time()
    answers = [await answer(prompt) for prompt in prompts]
    seconds, after = time.process_time() - start, engine.stats()
    device = engine.device
    await engine.close()
    return {
        "device": device,
        "answers": answers,
        "steps": after.steps - before.steps,
        "drafted": after.drafted_tokens - before.drafted_tokens,
        "accepted": after.accepted_tokens - before.accepted_tokens,
        "dispatches": 0,
        "milliseconds": 1000 * seconds,
    }


def answered_in_node(bundles: dict[str, Bundle], setting: Setting, prompts: list[list[int]]) -> dict[str, Any]:
    """As `answered_in_python`, in the page's engine."""
    command = ["node", "dist/tools/bench_drafts.js", str(bundles[setting.model].path), "--prompts", json.dumps(prompts)]
    command += ["--max-tokens", str(TOKENS)]
    if setting.drafts is not None:
        draft = str(bundles[DRAFT].path) if setting.drafts == DRAFT else setting.drafts
        command += ["--draft", draft, "--draft-tokens", str(GUESSES)]
    finished = subprocess.run(command, cwd=ROOT / "web", stdout=subprocess.PIPE, text=True, check=True)
    result: dict[str, Any] = json.loads(finished.stdout)
    return result


def rows_of(target: str, runs: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """A row for each setting. Raises AssertionError if drafts change an answer."""
    rows = []
    settings = settings_of(target)
    for setting, results in zip(settings, zip(*runs, strict=True), strict=True):
        plain = runs[0][settings.index(replace(setting, drafts=None))]["answers"]
        assert all(result["answers"] == plain for result in results), f"{setting}: drafts change the answers"
        first, tokens = results[0], sum(map(len, plain))
        rows.append(
            {
                "target": target,
                "device": first["device"],
                "model": setting.model,
                "repeats": setting.repeats,
                "drafts": setting.drafts or "none",
                "tokens": tokens,
                "guesses": first["drafted"],
                "accepted": first["accepted"],
                "tokens_a_step": round(tokens / first["steps"], 2),
                "dispatches_a_token": round(first["dispatches"] / tokens, 1) or None,
                "milliseconds_a_token": round(min(each["milliseconds"] for each in results) / tokens, 2),
            }
        )
    return rows


ENGINES = {"cpu": answered_in_python, "webgpu": answered_in_node}

if __name__ == "__main__":
    main()
