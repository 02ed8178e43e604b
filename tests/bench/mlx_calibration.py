"""Runs a calibration of mlx-lm (gptq, awq or dwq) with its own defaults on a given text.

python mlx_calibration.py METHOD CHECKPOINT TARGET TEXT GROUP
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import mlx.core as mx

LENGTH = 256
VALIDATED = 16


def main() -> None:
    method, checkpoint, target, text, group = sys.argv[1:]
    module = importlib.import_module(f"mlx_lm.quant.{method}")
    content = Path(text).read_text(encoding="utf-8")

    def windows(tokenizer: Any) -> list[list[int]]:
        tokens = tokenizer.encode(content, add_special_tokens=False)
        return [tokens[start : start + LENGTH] for start in range(0, len(tokens) - LENGTH, LENGTH)]

    def rows(tokenizer: Any, *_: Any) -> mx.array:
        return mx.array(windows(tokenizer))

    def parts(tokenizer: Any, *_: Any) -> Any:
        # Each with the number of its first tokens that do not count.
        own = [(each, 0) for each in windows(tokenizer)]
        return own[VALIDATED:], own[:VALIDATED]

    module.load_data = parts if method == "dwq" else rows  # type: ignore[attr-defined]
    sys.argv = [method, "--model", checkpoint, "--mlx-path", target, "--bits", "4", "--group-size", group]
    if method != "dwq":
        sys.argv += {"gptq": ["--fallback-group-size", group], "awq": ["--embed-group-size", group]}[method]
    module.main()


if __name__ == "__main__":
    main()
