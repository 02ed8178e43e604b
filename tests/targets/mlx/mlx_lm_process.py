"""Runs mlx-lm in a separate process, because importing it lowers the process's limit of open files.

    python mlx_lm_process.py JOBS.json

JOBS.json is a list of {"folder", "prompts": each token ids or a user's text, "max_tokens", "logits": a .npy file to
write}. The script prints one JSON list with, for each job, a list of {"prompt_ids", "token_ids"}: mlx-lm's encoding of
each prompt, and its greedy answer. The logits are those of the first prompt.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def answer(job: dict[str, Any]) -> list[dict[str, Any]]:
    import mlx.core as mx
    import numpy as np
    from mlx_lm import load, stream_generate

    model, tokenizer = load(job["folder"])
    answers = []
    for prompt in job["prompts"]:
        turns = [{"role": "user", "content": prompt}]
        ids = tokenizer.apply_chat_template(turns, add_generation_prompt=True) if isinstance(prompt, str) else prompt
        responses = list(stream_generate(model, tokenizer, ids, max_tokens=job["max_tokens"]))
        # The end token comes with the reason "stop".
        token_ids = [response.token for response in responses if response.finish_reason != "stop"]
        answers.append({"prompt_ids": list(ids), "token_ids": token_ids})
    np.save(job["logits"], np.array(model(mx.array([answers[0]["prompt_ids"]]))[0].astype(mx.float32)))
    return answers


if __name__ == "__main__":
    # mlx-lm also prints to standard output.
    answers = [answer(job) for job in json.loads(Path(sys.argv[1]).read_text())]
    print(json.dumps(answers))
