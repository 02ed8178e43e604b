"""Train the demo finder: ``python -m demo_finder.train [--plan first|second|last] [--start FOLDER] [--steps N]
[--seed N] [--output FOLDER]``. Each plan but the first trains the result of the one before further.

Seed and step decide the texts and the learning rate, so the same number of threads gives the same weights.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from demo_model.recipe import NO_TARGET, AfterStep, Descent, Schedule, run
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional

from .checkpoint import PAD, labelled, new_model, read_checkpoint, train_tokenizer, write_checkpoint
from .evaluate import measure
from .texts import draw

# A text's tokens and their labels.
Row = tuple[list[int], list[int]]


@dataclass(frozen=True, slots=True)
class TrainingPlan(Schedule):
    """``until``: the step before which the training stops, although the learning rate is still high."""

    steps: int = 2600
    until: int = 2600
    texts: int = 32
    most_tokens: int = 112


PLANS = MappingProxyType(
    {
        "first": TrainingPlan(until=1000),
        "second": TrainingPlan(800, seed=2, warmup_steps=20, muon_learning_rate=0.014, adam_learning_rate=2e-3),
        "last": TrainingPlan(300, seed=3, warmup_steps=20, muon_learning_rate=0.01, adam_learning_rate=1.5e-3),
    }
)


def train(
    plan: TrainingPlan, start: Path | None = None, after_step: AfterStep = lambda *_: None
) -> tuple[Any, Tokenizer]:
    """``start``: the folder of the model to train further; None for random weights."""
    torch.manual_seed(plan.seed)
    model, tokenizer = (new_model(), train_tokenizer()) if start is None else read_checkpoint(start)
    descent = Descent(plan, model.train(), nn.Module())
    for step in range(min(plan.steps, plan.until)):
        rows, loss = batch(plan, tokenizer, step), 0.0
        count, half = sum(len(ids) for ids, _ in rows), len(rows) // 2
        # The short texts by themselves, because padding costs as much as tokens.
        for tokens, targets in (padded(rows[:half]), padded(rows[half:])):
            logits = model(input_ids=tokens, attention_mask=(tokens != PAD).long()).logits
            part = functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum") / count
            part.backward()
            loss += part.item()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        descent.step(step)
        after_step(step, loss)
    return model.eval(), tokenizer


def batch(plan: TrainingPlan, tokenizer: Tokenizer, step: int) -> list[Row]:
    """The texts of a step, the shortest first."""
    rng = random.Random(f"train {plan.seed} {step}")
    rows = [labelled(tokenizer, draw(rng)) for _ in range(plan.texts)]
    rows = [(ids[: plan.most_tokens], labels[: plan.most_tokens]) for ids, labels in rows]
    return sorted(rows, key=lambda row: len(row[0]))


def padded(rows: Sequence[Row]) -> tuple[Tensor, Tensor]:
    """Tokens (texts, longest), and the label of each or NO_TARGET."""
    longest = len(rows[-1][0])
    tokens = torch.full((len(rows), longest), PAD)
    targets = torch.full((len(rows), longest), NO_TARGET)
    for row, (ids, labels) in enumerate(rows):
        tokens[row, : len(ids)] = torch.tensor(ids)
        targets[row, : len(ids)] = torch.tensor(labels)
    return tokens, targets


if __name__ == "__main__":
    run("finder", __doc__, PLANS, train, write_checkpoint, measure)
