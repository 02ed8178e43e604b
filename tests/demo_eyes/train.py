"""Train the demo model that sees: ``python -m demo_eyes.train [--plan first|mixed|shapes|last] [--start FOLDER]
[--steps N] [--seed N] [--output FOLDER]``. All plans but "first" train the result of another further.

Seed and step decide the pictures and the learning rate, so the same number of threads gives the same weights. Beside
the answers, a second head of the tower's rows learns what is drawn in each patch, without which the tower learns little
for the first thousand steps; it is not part of the model.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from demo_model.recipe import NO_TARGET, AfterStep, Descent, Schedule, run
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
from .evaluate import measure
from .pictures import COLOURS, KINDS, SIDE, Picture, draw_picture


@dataclass(frozen=True, slots=True)
class TrainingPlan(Schedule):
    steps: int = 2500
    pictures: int = 32
    # Questions about a picture, at most.
    turns: int = 4
    # Of pictures with questions for this task, only those.
    task: str | None = None
    # Whether pictures are mixed, as `draw_picture` says.
    mixed: bool = False
    patch_weight: float = 0.5


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


PLANS = MappingProxyType(
    {
        "first": TrainingPlan(),
        "shapes": TrainingPlan(steps=300, turns=6, mixed=True, task="shape", warmup_steps=20),
        "mixed": TrainingPlan(steps=1500, turns=6, mixed=True),
        "last": TrainingPlan(
            steps=400, turns=6, patch_weight=0.0, warmup_steps=20, muon_learning_rate=0.004, adam_learning_rate=6e-4
        ),
    }
)


def train(
    plan: TrainingPlan, start: Path | None = None, after_step: AfterStep = lambda *_: None
) -> tuple[Any, Tokenizer]:
    """``start``: the folder of the model to train further; None for random weights."""
    torch.manual_seed(plan.seed)
    model, tokenizer = (new_model(), train_tokenizer(plan.seed)) if start is None else read_checkpoint(start)
    model.train()
    size = model.config.vision_config.hidden_size
    heads = nn.ModuleList([nn.Linear(size, 1 + len(KINDS)), nn.Linear(size, 1 + len(COLOURS))])
    descent = Descent(plan, model, heads)
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
        descent.step(step)
        after_step(step, loss.item())
    return model.eval(), tokenizer


def batch(plan: TrainingPlan, tokenizer: Tokenizer, step: int) -> PictureBatch:
    rows, squares, patches = [], [], []
    for index in range(plan.pictures):
        seed = f"train {plan.seed}{' mixed' if plan.mixed else ''} {step} {index}"
        picture = draw_picture(seed, mixed=plan.mixed)
        questions = [each for each in picture.questions if each.task == plan.task] or list(picture.questions)
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


if __name__ == "__main__":
    run("eyes", __doc__, PLANS, train, write_checkpoint, measure)
