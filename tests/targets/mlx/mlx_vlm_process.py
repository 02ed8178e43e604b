"""Runs mlx-vlm in a separate process, as `mlx_lm_process.py` runs mlx-lm.

    python mlx_vlm_process.py JOBS.json

JOBS.json is a list of {"folder", "inputs": a .npz file with the arguments of transformers' model, "token_ids",
"placeholders": the tokens whose rows are features, "max_tokens", "output": a .npz file to write}. The output has
"features" (F, E), those of all further layers behind the first ones, "logits" (T, V) and "answer", the greedy tokens.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def answer(job: dict[str, Any]) -> None:
    import mlx.core as mx
    import numpy as np
    from mlx_vlm.generate import generate_step
    from mlx_vlm.utils import load_model

    model = load_model(Path(job["folder"]))
    inputs = {name: mx.array(values) for name, values in np.load(job["inputs"]).items()}
    ids = mx.array([job["token_ids"]])
    pixels, mask = inputs.pop("pixel_values", None), mx.ones_like(ids)
    made = model.get_input_embeddings(ids, pixels, mask=mask, **inputs)
    rows = np.flatnonzero(np.isin(job["token_ids"], job["placeholders"]))
    features = [np.array(made.inputs_embeds.astype(mx.float32))[0, rows]]
    further = getattr(made, "deepstack_visual_embeds", None)
    features += [] if further is None else [np.array(each.astype(mx.float32)) for each in further]
    kinds = {name: each for name, each in inputs.items() if name == "mm_token_type_ids"}
    given = {name: each for name, each in made.to_dict().items() if each is not None} | kinds
    logits = model.language_model(ids, cache=None, **given).logits[0]
    tokens = []
    for token, _ in generate_step(ids, model, pixels, mask, max_tokens=job["max_tokens"], temperature=0.0, **inputs):
        tokens.append(int(token))
        if len(tokens) == job["max_tokens"]:
            break
    np.savez(
        job["output"],
        features=np.concatenate(features, axis=1),
        logits=np.array(logits.astype(mx.float32)),
        answer=np.array(tokens),
    )


if __name__ == "__main__":
    for job in json.loads(Path(sys.argv[1]).read_text()):
        answer(job)
