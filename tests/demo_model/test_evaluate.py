"""Evaluation: answers do not depend on the batch, weights pass through the compiler's own formats, and the table shows
the counts.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console
from tokenizers import Tokenizer

from demo_model.evaluate import Cell, answer_all, is_right, quantize_in_place, show_table, write_accuracy
from demo_model.example import Example
from demo_model.model import Llama, LlamaConfig
from demo_model.saved_model import read_checkpoint
from nearfar.compiler.demo import CHECKPOINT
from nearfar.compiler.quant import by_name

CELLS = [
    Cell("sum", "held_out_slots", "f32", 200, 199),
    Cell("sum", "held_out_paraphrases", "f32", 200, 150),
    Cell("small_talk", "held_out_paraphrases", "f32", 200, 100),
]


@pytest.fixture(scope="module")
def committed() -> tuple[Llama, Tokenizer]:
    return read_checkpoint(CHECKPOINT)


def test_a_prompt_is_answered_the_same_alone_and_in_company(committed: tuple[Llama, Tokenizer]) -> None:
    prompts = [
        "27+58",
        "tell me a story about a fox",
        "spell lamp",
        "turn on all the lights in the living room, please",
    ]
    assert answer_all(*committed, prompts) == [answer_all(*committed, [prompt])[0] for prompt in prompts]


@pytest.mark.parametrize("name", ["q8f16", "q4f16"])
def test_matrices_are_replaced_by_their_packed_values_and_norms_stay(name: str) -> None:
    torch.manual_seed(3)
    model = Llama(LlamaConfig(hidden_size=32, intermediate_size=48, num_hidden_layers=1))
    before = {key: value.clone() for key, value in model.state_dict().items()}
    quantize_in_place(model, name)
    quantization = by_name(name)
    for key, value in model.state_dict().items():
        matrix = before[key].numpy()
        expected = quantization.unpack(quantization.pack(matrix), matrix.shape[1]) if matrix.ndim == 2 else matrix
        np.testing.assert_array_equal(value.numpy(), expected)


def test_a_story_counts_as_right_in_each_of_its_forms_and_a_sum_in_one() -> None:
    story = Example("story", "", "one", "", accepted="one|two")
    assert is_right(story, "two")
    assert not is_right(story, "three")
    assert not is_right(Example("sum", "", "1 + 1 = 2", ""), "2")


def test_the_table_leaves_a_cell_empty_if_nothing_can_be_held_out(tmp_path: Path) -> None:
    console = Console(width=100, record=True, file=(tmp_path / "out").open("w"))
    show_table(CELLS, console)
    lines = {
        line.split()[1]: line for line in console.export_text().splitlines() if "sum" in line or "small_talk" in line
    }
    assert "99.5" in lines["sum"]
    assert "75.0" in lines["sum"]
    assert "50.0" in lines["small_talk"]
    console.file.close()


def test_the_table_is_stored_as_counts(tmp_path: Path) -> None:
    write_accuracy(tmp_path / "accuracy.json", CELLS)
    stored = json.loads((tmp_path / "accuracy.json").read_text())["cells"]
    assert stored[0] == {"task": "sum", "split": "held_out_slots", "format": "f32", "prompts": 200, "right": 199}
