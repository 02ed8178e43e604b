"""The larger checkpoint: transformers computes the same logits, it answers harder prompts, and its table is correct."""

from __future__ import annotations

import json

import pytest
import torch
from demo_model.corpus import FAR
from demo_model.evaluate import answer_all, measure
from demo_model.example import Split
from demo_model.model import Llama
from demo_model.saved_model import read_checkpoint
from demo_model.tokenizer import BOS, encode_prompt
from tokenizers import Tokenizer

from nearfar.compiler.demo import CHECKPOINT, FAR_CHECKPOINT

# Both read the float16 weights as float32; the logits have a magnitude of about 10.
LOGIT_TOLERANCE = 1e-4
HARD_ANSWERS = {
    "dim the kitchen lights to 30 percent and lock the front door": (
        '[{"tool": "set_light", "room": "kitchen", "level": 30}, '
        '{"tool": "set_lock", "door": "front", "state": "locked"}]'
    ),
    "what is 12 + 30 + 7?": "12 + 30 + 7 = 42 + 7 = 49",
    "Ana has 12 apples, buys 5 more and eats 3. how many are left?": "12 + 5 - 3 = 17 - 3 = 14",
    "sort 5 81 20 44 9 63": "5, 9, 20, 44, 63, 81",
}


@pytest.fixture(scope="module")
def far() -> tuple[Llama, Tokenizer]:
    return read_checkpoint(FAR_CHECKPOINT)


def test_transformers_computes_the_same_logits(far: tuple[Llama, Tokenizer]) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is the oracle here")
    theirs = transformers.LlamaForCausalLM.from_pretrained(FAR_CHECKPOINT, dtype=torch.float32).eval()
    model, tokenizer = far
    tokens = torch.tensor([[BOS, *encode_prompt(tokenizer, next(iter(HARD_ANSWERS)))]])
    with torch.no_grad():
        ours = model.logits(model.model(tokens, torch.arange(tokens.shape[1])[None]))
        assert (ours - theirs(tokens).logits).abs().max() < LOGIT_TOLERANCE


def test_it_answers_prompts_that_the_near_model_cannot(far: tuple[Llama, Tokenizer]) -> None:
    prompts = list(HARD_ANSWERS)
    assert dict(zip(prompts, answer_all(*far, prompts), strict=True)) == HARD_ANSWERS
    near = answer_all(*read_checkpoint(CHECKPOINT), prompts)
    assert not set(near) & set(HARD_ANSWERS.values())


def test_both_models_have_one_tokenizer() -> None:
    assert (FAR_CHECKPOINT / "tokenizer.json").read_bytes() == (CHECKPOINT / "tokenizer.json").read_bytes()


@pytest.mark.parametrize("task", ["sum_of_several", "story_problem"])
def test_the_committed_table_is_measured_again_on_a_sample(far: tuple[Llama, Tokenizer], task: str) -> None:
    cells = json.loads((FAR_CHECKPOINT / "accuracy.json").read_text())["cells"]
    (committed,) = (c for c in cells if (c["task"], c["split"], c["format"]) == (task, "held_out_slots", "q4f16"))
    (cell,) = measure(*far, corpus=FAR, tasks=(task,), splits=(Split.HELD_OUT_SLOTS,), formats=("q4f16",), prompts=40)
    # With 40 prompts, the uncertainty is about 8 points.
    assert abs(cell.right / cell.prompts - committed["right"] / committed["prompts"]) < 0.1
