"""Runs mlx-whisper in a separate process, on the CPU.

    python mlx_whisper_process.py FOLDER INPUTS.npz OUTPUT.npz

INPUTS has "frames" (B, T, mel bins) and "tokens" (B, N); OUTPUT has "rows" and "logits".
"""

from __future__ import annotations

import sys


def main(folder: str, inputs: str, output: str) -> None:
    import mlx.core as mx
    import numpy as np
    from mlx_whisper.load_models import load_model

    mx.set_default_device(mx.cpu)
    model, given = load_model(folder), np.load(inputs)
    rows = model.embed_audio(mx.array(given["frames"]))
    logits = model.logits(mx.array(given["tokens"]), rows)
    np.savez(output, rows=np.array(rows.astype(mx.float32)), logits=np.array(logits.astype(mx.float32)))


if __name__ == "__main__":
    main(*sys.argv[1:])
