"""The share of commands that the model writes down word for word, with transformers: ``python -m demo_ears.evaluate
FOLDER``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from .checkpoint import END, NO_TIMESTAMPS, START, frames_of, read_checkpoint
from .voices import Utterance, silence, speak

UTTERANCES = 400
LONGEST = 16
Table = Mapping[str, float | int]


def measure(folder: Path, utterances: int = UTTERANCES) -> Table:
    """By set of voices: the percentage of commands without a wrong word; and that of silence and noise without any.
    None of these sounds is of the training.
    """
    model, tokenizer = read_checkpoint(folder)
    table: dict[str, float | int] = {"utterances": utterances}
    makers: Mapping[str, Callable[[int], Utterance]] = {
        "known voices": lambda number: speak(f"measure False {number}"),
        "held-out voices": lambda number: speak(f"measure True {number}", held_out=True),
        "no speech": lambda number: silence(f"measure {number}"),
    }
    for name, make in makers.items():
        right = 0
        for start in range(0, utterances, 50):
            spoken = [make(start + index) for index in range(50)]
            frames = torch.stack([torch.from_numpy(frames_of(each.samples)) for each in spoken])
            tokens = torch.tensor([[START, NO_TIMESTAMPS]] * len(spoken))
            with torch.no_grad():
                heard = model.model.encoder(frames).last_hidden_state
                for _ in range(LONGEST):
                    logits = model(encoder_outputs=(heard,), decoder_input_ids=tokens).logits[:, -1]
                    tokens = torch.cat([tokens, logits.argmax(-1, keepdim=True)], 1)
            for ids, utterance in zip(tokens[:, 2:].tolist(), spoken, strict=True):
                said = ids[: ids.index(END)] if END in ids else ids
                right += tokenizer.decode(said).strip() == utterance.text
        table[name] = round(100 * right / utterances, 1)
    return table


if __name__ == "__main__":
    print(json.dumps(measure(Path(sys.argv[1])), indent=2))
