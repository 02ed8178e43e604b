"""Train the demo model that sees: ``python -m demo_eyes.train [--plan first|mixed] [--start FOLDER] [--steps N]
[--seed N] [--output FOLDER]``. The plan "mixed" trains the result of "first" further.

Seed and step decide the pictures and the learning rate, so the same number of threads gives the same weights. Beside
the answers, a second head of the tower's rows learns what is drawn in each patch, without which the tower learns little
for the first thousand steps; it is not part of the model.
"""

from __future__ import annotations

import argparse
import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from PIL import Image
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional

from .checkpoint import (
    IMAGE_ID,
    PAD,
    PATCH,
    TILE,
    encode_turns,
    new_model,
    read_checkpoint,
    train_tokenizer,
    write_checkpoint,
)
from .evaluate import measure, write_accuracy
from .pictures import COLOURS, KINDS, SIDE, Picture, draw_picture

REPOSITORY = Path(__file__).parents[2]
NO_TARGET = -100


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """Everything that determines the result, except the code and the machine's arithmetic."""

    steps: int = 2500
    seed: int = 1
    pictures: int = 32
    # Questions about a picture, at most.
    turns: int = 4
    # Whether pictures are mixed, as `draw_picture` says.
    mixed: bool = False
    patch_weight: float = 0.5
    warmup_steps: int = 100
    muon_learning_rate: float = 0.02
    adam_learning_rate: float = 3e-3


@dataclass(frozen=True, slots=True)
class PictureBatch:
    """Pixels (pictures, 3, TILE, TILE), tokens (pictures, S), the token after each or NO_TARGET, and for each patch
    (pictures, patches) its kind and its colour.
    """

    pixels: Tensor
    tokens: Tensor
    targets: Tensor
    kinds: Tensor
    colours: Tensor


PLANS = MappingProxyType({"first": TrainingPlan(), "mixed": TrainingPlan(steps=1500, turns=6, mixed=True)})


def train(
    plan: TrainingPlan, start: Path | None = None, after_step: Callable[[int, float], None] = lambda *_: None
) -> tuple[Any, Tokenizer]:
    """``start``: the folder of the model to train further; None for random weights."""
    torch.manual_seed(plan.seed)
    model, tokenizer = (new_model(), train_tokenizer(plan.seed)) if start is None else read_checkpoint(start)
    model.train()
    size = model.config.vision_config.hidden_size
    heads = nn.ModuleList([nn.Linear(size, 1 + len(KINDS)), nn.Linear(size, 1 + len(COLOURS))])
    optimizers = _optimizers(plan, model, heads)
    tower, connector = model.model.vision_model, model.model.connector
    for step in range(plan.steps):
        made = batch(plan, tokenizer, step)
        with torch.autocast("cpu", torch.bfloat16):
            rows = tower(pixel_values=made.pixels).last_hidden_state
            embeds = model.get_input_embeddings()(made.tokens)
            replaced = (made.tokens == IMAGE_ID)[:, :, None].expand_as(embeds)
            embeds = embeds.masked_scatter(replaced, connector(rows).to(embeds.dtype))
            logits = model(inputs_embeds=embeds).logits
            seen = [head(rows).float().flatten(0, 1) for head in heads]
        counted = made.targets != NO_TARGET
        loss = functional.cross_entropy(logits[counted].float(), made.targets[counted])
        patches = functional.cross_entropy(seen[0], made.kinds.flatten())
        patches = patches + functional.cross_entropy(seen[1], made.colours.flatten())
        (loss + plan.patch_weight * patches).backward()
        factor = min(1.0, (step + 1) / plan.warmup_steps) * 0.5 * (1 + math.cos(math.pi * step / plan.steps))
        for optimizer, rate in zip(optimizers, (plan.muon_learning_rate, plan.adam_learning_rate), strict=True):
            for group in optimizer.param_groups:
                group["lr"] = rate * factor
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        after_step(step, loss.item())
    return model.eval(), tokenizer


def batch(plan: TrainingPlan, tokenizer: Tokenizer, step: int) -> PictureBatch:
    rows, squares, patches = [], [], []
    for index in range(plan.pictures):
        seed = f"train {plan.seed}{' mixed' if plan.mixed else ''} {step} {index}"
        picture = draw_picture(seed, mixed=plan.mixed)
        questions = list(picture.questions)
        random.Random(seed).shuffle(questions)
        squares.append(pixels_of(picture.image))
        patches.append(patch_labels(picture))
        rows.append(encode_turns(tokenizer, [(each.text, each.answer) for each in questions[: plan.turns]]))
    longest = max(len(ids) for ids, _ in rows)
    tokens = torch.full((len(rows), longest), PAD)
    targets = torch.full((len(rows), longest), NO_TARGET)
    for row, (ids, counted) in enumerate(rows):
        tokens[row, : len(ids)] = torch.tensor(ids)
        following = torch.tensor([token if said else NO_TARGET for token, said in zip(ids, counted, strict=True)][1:])
        targets[row, : len(ids) - 1] = following
    labels = torch.stack(patches)
    return PictureBatch(torch.stack(squares), tokens, targets, labels[:, 0], labels[:, 1])


def patch_labels(picture: Picture) -> Tensor:
    """(2, patches): the kind and the colour of what covers most of a patch that it covers a tenth of, 0 for none."""
    across = TILE // PATCH
    parts = np.asarray(picture.parts).reshape(across, SIDE // across, across, SIDE // across)
    shares = np.stack([(parts == number).mean((1, 3)).ravel() for number in range(1, len(picture.things) + 1)])
    found = np.where(shares.max(0) >= 0.1, 1 + shares.argmax(0), 0)
    colours = list(COLOURS)
    kinds = np.array([0, *(1 + KINDS.index(kind) for kind, _ in picture.things)])
    tints = np.array([0, *(1 + colours.index(colour) for _, colour in picture.things)])
    return torch.from_numpy(np.stack([kinds[found], tints[found]]))


def pixels_of(image: Image.Image) -> Tensor:
    """(3, TILE, TILE), as SmolVLM's processor prepares a picture."""
    small = np.asarray(image.resize((TILE, TILE), Image.Resampling.LANCZOS), np.float32)
    return torch.from_numpy(small / 127.5 - 1).permute(2, 0, 1)


def _optimizers(plan: TrainingPlan, model: Any, heads: nn.Module) -> tuple[torch.optim.Optimizer, ...]:
    """Muon for the layers' matrices (Jordan et al. 2024), AdamW for everything else."""
    matrices = {name: each for name, each in model.named_parameters() if each.ndim == 2 and "layers." in name}
    others = [each for name, each in model.named_parameters() if name not in matrices]
    muon = torch.optim.Muon(list(matrices.values()), lr=plan.muon_learning_rate)
    others += heads.parameters()
    return muon, torch.optim.AdamW(others, lr=plan.adam_learning_rate, betas=(0.9, 0.95), weight_decay=0.0)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m demo_eyes.train", description=__doc__)
    parser.add_argument("--plan", choices=PLANS, default="first")
    parser.add_argument("--start", type=Path, metavar="FOLDER", help="the model to train further")
    parser.add_argument("--steps", type=int, help="default: those of the plan")
    parser.add_argument("--seed", type=int, default=TrainingPlan().seed)
    parser.add_argument("--output", type=Path, default=REPOSITORY / "build/demo-eyes")
    parser.add_argument("--threads", type=int, default=1, help="the same result needs the same number (default: 1)")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    started, losses = time.perf_counter(), []

    def after_step(step: int, loss: float) -> None:
        losses.append(loss)
        if (step + 1) % 50 == 0:
            mean = sum(losses[-50:]) / 50
            print(f"step {step + 1}: loss {mean:.4f}, {time.perf_counter() - started:.0f} s", flush=True)

    plan = replace(PLANS[options.plan], seed=options.seed)
    if options.steps is not None:
        plan = replace(plan, steps=options.steps)
    model, tokenizer = train(plan, options.start, after_step)
    write_checkpoint(options.output, model, tokenizer)
    write_accuracy(options.output / "accuracy.json", table := measure(options.output))
    print(f"trained in {time.perf_counter() - started:.0f} s; the model is in {options.output}\n{table}")


if __name__ == "__main__":
    main()
