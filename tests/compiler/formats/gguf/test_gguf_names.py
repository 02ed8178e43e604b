"""Choosing one GGUF file of a repository or a folder by its name or its quantization, and the error if the choice is
ambiguous.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from gguf_files import make_gguf

from nearfar.compiler.formats import load
from nearfar.compiler.formats.gguf.names import choose_files, label_of
from nearfar.compiler.formats.hub import hub_model
from nearfar.compiler.publish.licenses import LICENSE_FILES
from nearfar.compiler.runtime.errors import CheckpointError

PARTS = [f"Q8_0/big-Q8_0-{number:05d}-of-00003.gguf" for number in (1, 2, 3)]
FILES = [
    *PARTS, "m-Q4_K_M.gguf", "m-Q4_K_S.gguf", "m-UD-Q4_K_XL.gguf", "m.IQ2_XXS.gguf", "m-f16.gguf", "mmproj-m-f16.gguf",
    "m.imatrix.gguf", "README.md", "config.json",
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("Qwen3-0.6B-Q4_K_M.gguf", "Q4_K_M"),
        ("qwen2.5-0.5b-instruct-q8_0.gguf", "q8_0"),
        ("model.BF16.gguf", "BF16"),
        ("gpt-oss-20b-MXFP4.gguf", "MXFP4"),
        ("m-UD-Q4_K_XL.gguf", "UD-Q4_K_XL"),
        ("tinyllama.gguf", None),
    ],
)
def test_the_quantization_is_at_the_end_of_the_name(name: str, label: str | None) -> None:
    assert label_of(name) == label


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ("Q4_K_M", ["m-Q4_K_M.gguf"]),
        ("q4_k_s", ["m-Q4_K_S.gguf"]),
        ("UD-Q4_K_XL", ["m-UD-Q4_K_XL.gguf"]),
        ("F16", ["m-f16.gguf"]),
        ("Q8_0", PARTS),
        ("m.IQ2_XXS.gguf", ["m.IQ2_XXS.gguf"]),
        ("big-Q8_0-00002-of-00003.gguf", PARTS),
        ("Q8_0/big-Q8_0.gguf", PARTS),
    ],
)
def test_a_choice_is_a_quantization_or_a_file(choice: str, expected: list[str]) -> None:
    assert choose_files(FILES, choice, "o/n") == expected


@pytest.mark.parametrize(
    ("files", "choice", "words"),
    [
        (FILES, None, "has several GGUF files; choose one: IQ2_XXS, Q4_K_M, Q4_K_S, Q8_0, UD-Q4_K_XL, f16"),
        (FILES, "Q4_K", r"has no 'Q4_K'; it has IQ2_XXS, .*did you mean 'Q4_K_[MS]'"),
        (["a-Q4_0.gguf", "b-Q4_0.gguf"], "Q4_0", "'Q4_0' are several files: a-Q4_0.gguf, b-Q4_0.gguf"),
        (["mmproj-f16.gguf", "x.bin"], None, "has no GGUF file"),
    ],
)
def test_a_choice_that_is_not_clear_lists_what_there_is(files: list[str], choice: str | None, words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        choose_files(files, choice, "o/n")


def test_names_of_repositories_may_end_with_a_choice() -> None:
    assert hub_model("Qwen/Qwen3-0.6B") == ("Qwen/Qwen3-0.6B", None)
    assert hub_model("Qwen/Qwen3-0.6B-GGUF:Q4_K_M") == ("Qwen/Qwen3-0.6B-GGUF", "Q4_K_M")
    assert hub_model("a/b:sub/c-00001-of-00002.gguf") == ("a/b", "sub/c-00001-of-00002.gguf")
    assert hub_model("a/b:") is None
    assert hub_model("a/b/c") is None


def test_a_repository_gives_only_the_files_of_the_choice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    path, _ = make_gguf("llama", tmp_path / "made")
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    asked: list[list[str]] = []

    def download(repository: str, *, allow_patterns: list[str], ignore_patterns: Any = None) -> str:  # noqa: ARG001
        asked.append(allow_patterns)
        if "m-Q4_K_M.gguf" in allow_patterns:
            shutil.copy(path, snapshot / "m-Q4_K_M.gguf")
        return str(snapshot)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    monkeypatch.setattr(huggingface_hub, "list_repo_files", lambda _: FILES)
    assert load("owner/name:Q4_K_M").path == snapshot / "m-Q4_K_M.gguf"
    # With the files that may state its license.
    assert asked == [["m-Q4_K_M.gguf", "README.md", *LICENSE_FILES]]
    # Without a choice, the repository may have a folder of safetensors.
    with pytest.raises(CheckpointError, match="owner/name: has several GGUF files; choose one: IQ2_XXS"):
        load("owner/name")


def test_a_folder_with_one_file_is_that_file(tmp_path: Path) -> None:
    path, _ = make_gguf("llama", tmp_path / "made")
    (tmp_path / "folder").mkdir()
    shutil.copy(path, tmp_path / "folder" / "m-Q4_0.gguf")
    assert load(str(tmp_path / "folder")).path == tmp_path / "folder" / "m-Q4_0.gguf"
    with pytest.raises(CheckpointError, match=r"n-Q4_0\.gguf: there is no such file; .* has m-Q4_0\.gguf"):
        load(str(tmp_path / "folder" / "n-Q4_0.gguf"))
    shutil.copy(path, tmp_path / "folder" / "m-Q8_0.gguf")
    with pytest.raises(CheckpointError, match="has several GGUF files; choose one: Q4_0, Q8_0"):
        load(str(tmp_path / "folder"))
