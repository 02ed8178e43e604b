"""Measure a demo model: the share of held-out prompts answered exactly right, by task, split and weight format.

``python -m demo_model.evaluate [FOLDER] [--tasks near|far|hard] [--output FILE]`` measures a checkpoint folder, prints
the table and writes it as JSON (``FOLDER/accuracy.json``). Weights are packed and unpacked with the compiler's own
formats; activations stay float32.
"""

from __future__ import annotations

import argparse
import copy
import json
import re
from collections.abc import Collection
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType

import torch
from rich.console import Console
from rich.table import Table
from tokenizers import Tokenizer

from nearfar.compiler.demo import CHECKPOINT
from nearfar.compiler.quant import by_name

from .corpus import CORPORA, HARD, NEAR, WITHOUT_SLOTS, Corpus, held_out_examples
from .example import Example, Split
from .model import Llama
from .saved_model import read_checkpoint
from .tokenizer import BOS, END, PAD, encode_prompt

FORMATS = ("f32", "q8f16", "q4f16")
SPLITS = (Split.HELD_OUT_SLOTS, Split.HELD_OUT_PARAPHRASES)
# The prompts of the evaluation have their own seed. Which values are held out does not depend on it.
SEED = 2024
LONGEST_ANSWER_TOKENS = 120
TASK_SETS = MappingProxyType({**CORPORA, "hard": HARD})


@dataclass(frozen=True, slots=True)
class Cell:
    """One figure: ``right`` of ``prompts`` answered exactly."""

    task: str
    split: str
    format: str
    prompts: int
    right: int

    @property
    def percent(self) -> float:
        return 100 * self.right / self.prompts


def measure(
    model: Llama,
    tokenizer: Tokenizer,
    corpus: Corpus = NEAR,
    tasks: Collection[str] | None = None,
    splits: tuple[Split, ...] = SPLITS,
    formats: tuple[str, ...] = FORMATS,
    prompts: int = 200,
) -> list[Cell]:
    """Measure every combination of task, split and format with up to ``prompts`` different prompts. ``tasks`` None
    means all.
    """
    cells = []
    for name in formats:
        quantized = copy.deepcopy(model).eval()
        quantize_in_place(quantized, name)
        for task in corpus if tasks is None else tasks:
            for split in splits:
                if split is Split.HELD_OUT_SLOTS and task in WITHOUT_SLOTS:
                    continue
                examples = held_out_examples(task, split, prompts, SEED, corpus)
                answers = answer_all(quantized, tokenizer, [example.prompt for example in examples])
                right = sum(is_right(example, answer) for example, answer in zip(examples, answers, strict=True))
                cells.append(Cell(task, split.value, name, len(examples), right))
    return cells


def is_right(example: Example, answer: str) -> bool:
    if example.accepted:
        return re.fullmatch(example.accepted, answer) is not None
    return answer == example.answer


def quantize_in_place(model: Llama, name: str) -> None:
    """Pack every matrix, including the tied embedding, in a weight format and unpack it."""
    quantization = by_name(name)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                matrix = parameter.detach().numpy()
                parameter.copy_(torch.from_numpy(quantization.unpack(quantization.pack(matrix), matrix.shape[1])))


@torch.no_grad()
def answer_all(model: Llama, tokenizer: Tokenizer, prompts: list[str]) -> list[str]:
    """Return greedy answers to prompts, each the only turn of its conversation. All rows advance by one token per step.
    After the end of its prompt, a row continues with its own output, so rows of different lengths need no padding on
    the left.
    """
    histories = [[BOS, *encode_prompt(tokenizer, prompt)] for prompt in prompts]
    return [tokenizer.decode(answer) for answer in continue_greedily(model, histories)]


@torch.no_grad()
def continue_greedily(model: Llama, histories: list[list[int]]) -> list[list[int]]:
    """Token ids that follow each history, up to and without ``<end>``, at most LONGEST_ANSWER_TOKENS."""
    length = min(max(map(len, histories)) + LONGEST_ANSWER_TOKENS, model.model.config.max_position_embeddings)
    cache = model.empty_cache(len(histories), length)
    answers: list[list[int]] = [[] for _ in histories]
    finished = [False] * len(histories)
    current = torch.tensor([history[0] for history in histories])
    for index in range(length):
        positions = torch.full((len(histories), 1), index)
        chosen = model.logits(model.model(current[:, None], positions, cache, index)[:, 0]).argmax(-1).tolist()
        for row, history in enumerate(histories):
            if index + 1 < len(history):
                chosen[row] = history[index + 1]
            elif finished[row] or chosen[row] == END:
                finished[row], chosen[row] = True, PAD
            else:
                answers[row].append(chosen[row])
        if all(finished):
            break
        current = torch.tensor(chosen)
    return answers


def write_accuracy(path: Path, cells: list[Cell]) -> None:
    path.write_text(json.dumps({"seed": SEED, "cells": [asdict(cell) for cell in cells]}, indent=1) + "\n")


def show_table(cells: list[Cell], console: Console) -> None:
    """Print one row per task, with a column for each format under each split."""
    table = Table(title="exact answers to held-out prompts, percent")
    table.add_column("task")
    formats = list(dict.fromkeys(cell.format for cell in cells))
    for split in SPLITS:
        for name in formats:
            table.add_column(f"{split.value.removeprefix('held_out_')}\n{name}", justify="right")
    percents = {(cell.task, cell.split, cell.format): f"{cell.percent:.1f}" for cell in cells}
    for task in dict.fromkeys(cell.task for cell in cells):
        table.add_row(task, *(percents.get((task, split.value, name), "") for split in SPLITS for name in formats))
    console.print(table)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m demo_model.evaluate", description="Measure a demo checkpoint.")
    parser.add_argument(
        "folder", type=Path, nargs="?", default=CHECKPOINT, help="default: the checkpoint in the repository"
    )
    parser.add_argument("--tasks", choices=TASK_SETS, default="near", help="default: near")
    parser.add_argument("--output", type=Path, help="default: FOLDER/accuracy.json")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    cells = measure(*read_checkpoint(options.folder), TASK_SETS[options.tasks])
    write_accuracy(options.output or options.folder / "accuracy.json", cells)
    show_table(cells, Console())


if __name__ == "__main__":
    main()
