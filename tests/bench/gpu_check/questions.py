"""Questions that the demo model answers with certainty, so that every correct device gives the same answer. With other
rounding, a token that is only slightly likelier than another may lose.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from nearfar.compiler.bundle.folder import Bundle
from nearfar.compiler.demo import CHECKPOINT
from nearfar.compiler.formats.huggingface import open_checkpoint
from nearfar.compiler.runtime.batch import Chunk, make_batch
from nearfar.compiler.runtime.reference import ReferenceRunner
from nearfar.compiler.runtime.runner import Limits
from nearfar.compiler.runtime.text.tokenizer import Tokenizer

MAX_TOKENS = 32
# The margin between the logit of a chosen token and any other. float16 activations change logits by a few hundredths.
MARGIN = 1.0
# Turns that make a prompt longer than 32 tokens, from which on ONNX Runtime's attention on WebGPU uses another kernel.
LONG_TURNS = 4
EARLIER = (
    {"role": "user", "content": "what is 12 + 30?"},
    {"role": "assistant", "content": "12 + 30 = 42"},
)


def confident_questions(bundle: Bundle, count: int, turns: int = 0) -> list[dict[str, Any]]:
    """``count`` sums with prompt_ids, the answer's token_ids without the end, and its text, as the reference computes
    them. ``turns`` precede each question.
    """
    tokenizer = Tokenizer(open_checkpoint(CHECKPOINT).tokenizer)
    runner = ReferenceRunner(bundle, limits=Limits(sequences=1))
    found = []
    for question in sums():
        before = [message for _ in range(turns) for message in EARLIER]
        prompt = tokenizer.encode_chat([*before, {"role": "user", "content": question}])
        answer = confident_answer(runner, bundle, prompt)
        if answer is not None:
            text = tokenizer.decode(answer)
            found.append({"question": question, "prompt_ids": list(prompt), "token_ids": answer, "text": text})
        if len(found) == count:
            return found
    raise AssertionError(f"the demo model answers only {len(found)} of these questions without doubt")


def sums() -> Iterator[str]:
    rng = np.random.default_rng(0)
    while True:
        a, b = rng.integers(10, 90, 2)
        yield f"what is {a} + {b}?"


def confident_answer(runner: ReferenceRunner, bundle: Bundle, prompt: list[int]) -> list[int] | None:
    """The greedy tokens up to the end; None if one of them is uncertain, or there is no end."""
    pages = range(bundle.manifest.pages_for(len(prompt) + MAX_TOKENS))
    chunk = Chunk(prompt, 0, pages, [len(prompt) - 1])
    tokens: list[int] = []
    for position in range(len(prompt), len(prompt) + MAX_TOKENS):
        logits = runner.forward(make_batch([chunk], bundle.manifest.page_size)).logits[0]
        second, first = np.partition(logits, -2)[-2:]
        if first - second < MARGIN:
            return None
        token = int(logits.argmax())
        if token in bundle.manifest.spec.eos_token_ids:
            return tokens
        tokens.append(token)
        chunk = Chunk([token], position, pages, [0])
    return None
