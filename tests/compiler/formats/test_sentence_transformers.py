"""The sentence-transformers files beside a checkpoint: those that are read, and those that are refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tiny_models import write_modules

from nearfar.compiler.errors import CheckpointError, UnsupportedModel
from nearfar.compiler.formats.sentence_transformers import read_embedding
from nearfar.compiler.ir.spec import EmbeddingSpec


def test_a_folder_without_modules_generates_text(tmp_path: Path) -> None:
    assert read_embedding(tmp_path) is None


@pytest.mark.parametrize("behind", [("Normalize",), ()])
def test_last_token_pooling_is_read(behind: tuple[str, ...], tmp_path: Path) -> None:
    write_modules(tmp_path, behind=behind)
    assert read_embedding(tmp_path) == EmbeddingSpec(pooling="last_token", normalize=bool(behind))


@pytest.mark.parametrize("mode", ["lasttoken", ["lasttoken"]])
def test_a_pooling_mode_by_name_is_read(mode: object, tmp_path: Path) -> None:
    write_modules(tmp_path)
    (tmp_path / "1_Pooling/config.json").write_text(json.dumps({"embedding_dimension": 72, "pooling_mode": mode}))
    assert read_embedding(tmp_path) == EmbeddingSpec(pooling="last_token", normalize=True)


def test_mean_pooling_is_refused_by_name(tmp_path: Path) -> None:
    write_modules(tmp_path, pooling="mean_tokens")
    with pytest.raises(UnsupportedModel, match="pooling mean_tokens is not supported; supported: lasttoken"):
        read_embedding(tmp_path)


def test_a_module_that_would_change_the_vector_is_refused(tmp_path: Path) -> None:
    write_modules(tmp_path, behind=("Dense", "Normalize"))
    with pytest.raises(UnsupportedModel, match="modules Transformer, Pooling, Dense, Normalize are not supported"):
        read_embedding(tmp_path)


def test_missing_and_damaged_files_are_checkpoint_errors(tmp_path: Path) -> None:
    write_modules(tmp_path)
    (tmp_path / "1_Pooling/config.json").unlink()
    with pytest.raises(CheckpointError, match=r"is missing, though modules\.json names it"):
        read_embedding(tmp_path)
    for text, message in (("{}", "must be a list of objects"), ("[", "not valid JSON")):
        (tmp_path / "modules.json").write_text(text)
        with pytest.raises(CheckpointError, match=message):
            read_embedding(tmp_path)
