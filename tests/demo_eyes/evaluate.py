"""The share of held-out questions that the model answers word for word, with transformers: ``python -m
demo_eyes.evaluate [FOLDER]``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from .checkpoint import END, encode_prompt, read_checkpoint
from .pictures import Picture, Question, draw_picture

PICTURES = 400
LONGEST_ANSWER = 12
Table = Mapping[str, Mapping[str, float | int]]


def held_out_pictures(count: int) -> Sequence[Picture]:
    """Pictures that training does not draw, half of them mixed."""
    return [draw_picture(f"held out {index}", mixed=index % 2 > 0) for index in range(count)]


def measure(folder: Path, pictures: int = PICTURES) -> Table:
    """By task: the percentage of right answers, and the number of questions."""
    from .train import pixels_of

    model, tokenizer = read_checkpoint(folder)
    right: dict[str, list[bool]] = {}
    by_length: dict[int, list[tuple[torch.Tensor, list[int], Question]]] = {}
    for picture in held_out_pictures(pictures):
        pixels = pixels_of(picture.image)
        for question in picture.questions:
            prompt = encode_prompt(tokenizer, question.text)
            by_length.setdefault(len(prompt), []).append((pixels, prompt, question))
    for rows in by_length.values():
        ids = torch.tensor([prompt for _, prompt, _ in rows])
        with torch.no_grad():
            made = model.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                pixel_values=torch.stack([pixels for pixels, _, _ in rows])[:, None],
                max_new_tokens=LONGEST_ANSWER,
                do_sample=False,
            )[:, ids.shape[1] :].tolist()
        for tokens, (_, _, question) in zip(made, rows, strict=True):
            said = tokens[: tokens.index(END)] if END in tokens else tokens
            right.setdefault(question.task, []).append(tokenizer.decode(said) == question.answer)
    table = {task: {"percent": percent(each), "questions": len(each)} for task, each in sorted(right.items())}
    every = [each for answers in right.values() for each in answers]
    return {"all": {"percent": percent(every), "questions": len(every)}, **table}


def percent(right: Sequence[bool]) -> float:
    return round(100 * sum(right) / len(right), 1)


if __name__ == "__main__":
    from nearfar.compiler.demo import EYES_CHECKPOINT

    print(json.dumps(measure(Path(sys.argv[1]) if len(sys.argv) > 1 else EYES_CHECKPOINT), indent=2))
