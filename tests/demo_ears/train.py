"""Train the demo model that hears: ``python -m demo_ears.train [--plan first|quiet] [--start FOLDER] [--steps N]
[--seed N] [--output FOLDER]``. The plan "quiet" trains the result of "first" further.

Seed and step decide the sounds and the learning rate, so the same number of threads gives the same weights in a new
process. Beside the decoder, a second head of the encoder's rows learns the words by connectionist temporal
classification (Graves et al. 2006), which aligns them with the sound; it is not part of the model.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from demo_model.recipe import NO_TARGET, AfterStep, Descent, Schedule, run
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional

from .checkpoint import (
    END,
    FIRST_TIMESTAMP,
    NO_TIMESTAMPS,
    ROWS,
    TEXT,
    encode,
    frames_of,
    new_model,
    read_checkpoint,
    train_tokenizer,
    write_checkpoint,
)
from .evaluate import measure
from .voices import silence, speak

# The class of rows without a new word.
BLANK = TEXT


@dataclass(frozen=True, slots=True)
class TrainingPlan(Schedule):
    steps: int = 2500
    utterances: int = 32
    silent_share: float = 0.05
    # Whether windows without speech go on with what a transcriber forces, and then end.
    forced: bool = False
    stamped_share: float = 0.3
    aligned_weight: float = 0.3


@dataclass(frozen=True, slots=True)
class SpokenBatch:
    """Frames (utterances, MELS, FRAMES), tokens (utterances, S), the token after each or NO_TARGET, and the words."""

    frames: Tensor
    tokens: Tensor
    targets: Tensor
    words: list[Tensor]


PLANS = MappingProxyType(
    {
        "first": TrainingPlan(),
        "quiet": TrainingPlan(
            steps=100,
            silent_share=0.3,
            forced=True,
            aligned_weight=0.0,
            warmup_steps=20,
            muon_learning_rate=0.004,
            adam_learning_rate=6e-4,
        ),
    }
)


def train(
    plan: TrainingPlan, start: Path | None = None, after_step: AfterStep = lambda *_: None
) -> tuple[Any, Tokenizer]:
    """``start``: the folder of the model to train further; None for random weights."""
    torch.manual_seed(plan.seed)
    tokenizer = train_tokenizer()
    model = (new_model() if start is None else read_checkpoint(start)[0]).train()
    aligner = nn.Linear(model.config.d_model, TEXT + 1)
    descent = Descent(plan, model, aligner)
    for step in range(plan.steps):
        made = batch(plan, tokenizer, step)
        with torch.autocast("cpu", torch.bfloat16):
            heard = model.model.encoder(made.frames).last_hidden_state
            logits = model(encoder_outputs=(heard,), decoder_input_ids=made.tokens).logits
            aligned = aligner(heard).float().log_softmax(-1)
        counted = made.targets != NO_TARGET
        loss = functional.cross_entropy(logits[counted].float(), made.targets[counted])
        lengths = torch.full((len(made.words),), aligned.shape[1])
        words = torch.tensor([len(each) for each in made.words])
        by_row = functional.ctc_loss(aligned.transpose(0, 1), torch.cat(made.words), lengths, words, blank=BLANK)
        (loss + plan.aligned_weight * by_row).backward()
        descent.step(step)
        after_step(step, loss.item())
    return model.eval(), tokenizer


def batch(plan: TrainingPlan, tokenizer: Tokenizer, step: int) -> SpokenBatch:
    frames, rows = [], []
    silent = round(plan.silent_share * plan.utterances)
    for index in range(plan.utterances):
        seed = f"train {plan.seed} {step} {index}"
        utterance = silence(seed) if index < silent else speak(seed)
        frames.append(torch.from_numpy(frames_of(utterance.samples)))
        timestamps = index < silent + plan.stamped_share * plan.utterances
        rows.append(encode(tokenizer, utterance, timestamps=timestamps))
    longest = max(map(len, rows)) - 1
    tokens = torch.full((len(rows), longest), END)
    targets = torch.full((len(rows), longest), NO_TARGET)
    for row, ids in enumerate(rows):
        tokens[row, : len(ids) - 1] = torch.tensor(ids[:-1])
        targets[row, : len(ids) - 1] = torch.tensor(ids[1:])
    if plan.forced:
        for row in range(silent):
            tokens[row, 1] = forced_token(f"forced {plan.seed} {step} {row}")
    words = [torch.tensor([token for token in ids if token < TEXT], dtype=torch.long) for ids in rows]
    return SpokenBatch(torch.stack(frames), tokens, targets, words)


def forced_token(seed: str) -> int:
    """What a transcriber writes after the start even if nothing is said: a timestamp, or that there are none."""
    generator = random.Random(seed)
    return NO_TIMESTAMPS if generator.random() < 0.5 else FIRST_TIMESTAMP + generator.randrange(ROWS)


if __name__ == "__main__":
    run("ears", __doc__, PLANS, train, write_checkpoint, measure)
