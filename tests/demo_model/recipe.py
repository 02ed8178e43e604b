"""What the recipes of the models that see and hear share: the optimizers with their schedule, and the command."""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from tokenizers import Tokenizer
from torch import nn

from .saved_model import write_json

REPOSITORY = Path(__file__).parents[2]
# The target of a token that is not learned.
NO_TARGET = -100
AfterStep = Callable[[int, float], None]


@dataclass(frozen=True, slots=True)
class Schedule:
    """A plan is everything that determines the result, except the code and the machine's arithmetic."""

    steps: int
    seed: int = 1
    warmup_steps: int = 100
    muon_learning_rate: float = 0.02
    adam_learning_rate: float = 3e-3


SomePlan = TypeVar("SomePlan", bound=Schedule)


class Descent:
    """Muon for the layers' matrices (Jordan et al. 2024), AdamW for everything else, with a linear warm-up and half a
    cosine down to zero. ``heads`` learn with the model.
    """

    def __init__(self, plan: Schedule, model: nn.Module, heads: nn.Module) -> None:
        self._plan = plan
        trained = {name: each for name, each in model.named_parameters() if each.requires_grad}
        matrices = {name: each for name, each in trained.items() if each.ndim == 2 and "layers." in name}
        others = [each for name, each in trained.items() if name not in matrices]
        rate = plan.adam_learning_rate
        self._optimizers = (
            torch.optim.Muon(list(matrices.values()), lr=plan.muon_learning_rate),
            torch.optim.AdamW([*others, *heads.parameters()], lr=rate, betas=(0.9, 0.95), weight_decay=0.0),
        )

    def step(self, number: int) -> None:
        """Step ``number`` along the gradients, which are then removed."""
        plan = self._plan
        factor = min(1.0, (number + 1) / plan.warmup_steps) * 0.5 * (1 + math.cos(math.pi * number / plan.steps))
        rates = (plan.muon_learning_rate, plan.adam_learning_rate)
        for optimizer, rate in zip(self._optimizers, rates, strict=True):
            for group in optimizer.param_groups:
                group["lr"] = rate * factor
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)


def run(
    name: str,
    description: str | None,
    plans: Mapping[str, SomePlan],
    train: Callable[[SomePlan, Path | None, AfterStep], tuple[Any, Tokenizer]],
    write: Callable[[Path, Any, Tokenizer], None],
    measure: Callable[[Path], object],
) -> None:
    """The command ``python -m demo_<name>.train``: trains, writes the folder and its accuracy."""
    parser = argparse.ArgumentParser(prog=f"python -m demo_{name}.train", description=description)
    parser.add_argument("--plan", choices=plans, default=next(iter(plans)))
    parser.add_argument("--start", type=Path, metavar="FOLDER", help="the model to train further")
    parser.add_argument("--steps", type=int, help="default: those of the plan")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path, default=REPOSITORY / f"build/demo-{name}")
    parser.add_argument("--threads", type=int, default=1, help="the same result needs the same number (default: 1)")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    started, losses = time.perf_counter(), []

    def after_step(step: int, loss: float) -> None:
        losses.append(loss)
        if (step + 1) % 50 == 0:
            mean = sum(losses[-50:]) / 50
            print(f"step {step + 1}: loss {mean:.4f}, {time.perf_counter() - started:.0f} s", flush=True)

    plan = plans[options.plan]
    plan = replace(plan, seed=options.seed, steps=plan.steps if options.steps is None else options.steps)
    write(options.output, *train(plan, options.start, after_step))
    write_json(options.output / "accuracy.json", table := measure(options.output))
    print(f"trained in {time.perf_counter() - started:.0f} s; the model is in {options.output}\n{table}")
