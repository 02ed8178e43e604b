"""Texts on which tokenizers must agree."""

from __future__ import annotations

from pathlib import Path

import numpy as np

# The text on which a tiny vocabulary is trained.
CORPUS = Path(__file__).parents[1] / "README.md"
TEXTS = (
    "Hello, world! It's what they'd've said.",
    "  two  spaces   and\ttabs\n\n\nlines \r\n end ",
    "1234567890 3.14 v2.0 100,000",
    "Füße, naïve, Ελληνικά, русский, العربية, हिन्दी, 日本語, 한국어",
    "🙂👩‍👩‍👧 ⚙️ \u200b\ufeff x\u0301",
    "",
    " ",
    "\n",
    "def f(x):\n    return {'a': [x ** 2, x >> 1]}  # ok",
    "\x00\x7f\u2028",
)


def random_texts(count: int) -> list[str]:
    """Texts of random characters from random ranges of Unicode."""
    rng = np.random.default_rng(0)
    texts = []
    for _ in range(count):
        high = int(rng.choice([0x7F, 0x24F, 0x7FF, 0x3000, 0xD7FF]))
        letters = [chr(rng.integers(32, high)) for _ in range(int(rng.integers(1, 40)))]
        spaced = [letter if rng.random() < 0.8 else " " for letter in letters]
        texts.append("".join(spaced))
    return texts
