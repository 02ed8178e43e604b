"""The positions of models with M-RoPE: those of transformers, in every chunk of a prompt. All runtimes have the same
vectors.

``python tests/compiler/runtime/test_rope_positions.py`` writes `tests/conformance/rope_positions.json`.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nearfar.compiler.runtime.batch import Chunk, make_batch
from nearfar.compiler.runtime.placed_features import rope_positions_between

RECORDED = Path(__file__).parents[2] / "conformance/rope_positions.json"
# For each prompt, the number of its tokens, and each picture's first token, rows and columns.
PROMPTS: dict[str, tuple[int, list[tuple[int, int, int]]]] = {
    "text": (4, []),
    "wide": (14, [(2, 2, 5)]),
    "high": (14, [(0, 5, 2)]),
    "several": (40, [(1, 3, 3), (11, 1, 6), (20, 6, 1), (27, 2, 4)]),
    "one": (3, [(1, 1, 1)]),
}


def vectors() -> dict[str, Any]:
    """The prompts with the positions that transformers gives their tokens."""
    import torch
    from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLModel

    config = SimpleNamespace(vision_config=SimpleNamespace(spatial_merge_size=1))
    model = SimpleNamespace(config=config, get_vision_position_ids=partial(Qwen3VLModel.get_vision_position_ids, None))
    found = {}
    for name, (length, pictures) in PROMPTS.items():
        types = torch.zeros((1, length), dtype=torch.int32)
        for first, rows, columns in pictures:
            types[0, first : first + rows * columns] = 1
        grids = torch.tensor([[1, rows, columns] for _, rows, columns in pictures]).reshape(-1, 3)
        ids = torch.zeros((1, length), dtype=torch.int64)
        positions, _ = Qwen3VLModel.get_rope_index(model, ids, types, image_grid_thw=grids)
        images = [{"offset": first, "length": rows * columns, "columns": columns} for first, rows, columns in pictures]
        found[name] = {"images": images, "positions": positions[:, 0].T.tolist()}
    return found


def test_the_vectors_are_those_of_transformers() -> None:
    assert json.loads(RECORDED.read_text()) == vectors()


@pytest.mark.parametrize("name", PROMPTS)
def test_a_chunk_has_the_positions_of_its_tokens(name: str) -> None:
    case = json.loads(RECORDED.read_text())[name]
    pictures = [(each["offset"], each["length"], each["columns"]) for each in case["images"]]
    length = len(case["positions"])
    for start in range(length):
        for stop in range(start + 1, length + 1):
            found = rope_positions_between(pictures, start, stop)
            assert found.tolist() == case["positions"][start:stop], (start, stop)


def test_tokens_of_text_have_one_position_beside_those_of_pictures() -> None:
    own = rope_positions_between([(1, 4, 2)], 0, 6)
    chunks = [Chunk([5] * 2, 7, [0]), Chunk([5] * 6, 0, [1], rope_positions=own)]
    declared = ("rope_positions",)
    found = make_batch(chunks, 16).arrays(declared)["rope_positions"]
    assert found.tolist() == [[7] * 3, [8] * 3, *own.tolist()]
    text = make_batch(chunks[:1], 16)
    assert text.rope_positions is None
    assert text.arrays(declared)["rope_positions"].tolist() == [[7] * 3, [8] * 3]


if __name__ == "__main__":
    RECORDED.write_text(json.dumps(vectors()) + "\n")
