"""Fill in the middle: each form's prompt against the library's reading of the same text, and the ends of answers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from answers import whole
from fake_source import FakeSource, byte_tokenizer, text_model
from tokenizers import Tokenizer as Backend
from tokenizers import models, normalizers, processors

from nearfar.compiler.runtime.errors import RequestError
from nearfar.compiler.runtime.text.tokenizer import Tokenizer
from nearfar.compiler.runtime.text.tokenizer_files import TokenizerFiles
from nearfar.server_fallback.executors.executor import Call
from nearfar.server_fallback.executors.local import LocalExecutor
from nearfar.server_fallback.schema.completions import CompletionRequest, ExtraFile
from nearfar.server_fallback.text.fill_in_middle import FillInMiddle, Gap

QWEN = ("<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>")
GEMMA = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|file_separator|>")
STAR = ("<fim_prefix>", "<fim_middle>", "<fim_suffix>", "<fim_pad>", "<filename>", "<reponame>")
STAR2 = ("<fim_prefix>", "<fim_middle>", "<fim_suffix>", "<fim_pad>", "<repo_name>", "<file_sep>")
DEEPSEEK = ("<｜fim▁hole｜>", "<｜fim▁begin｜>", "<｜fim▁end｜>")
FILES = [ExtraFile(filename="a.py", text="A"), ExtraFile(filename="b.py", text="B")]


def filling(folder: Path, markers: Sequence[str], *, special: bool = False) -> tuple[FillInMiddle, Any]:
    path = byte_tokenizer(folder, markers, special=special)
    return FillInMiddle.of(Tokenizer(TokenizerFiles.at(path))), Backend.from_file(str(path))


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize(
    ("markers", "expected", "with_files"),
    [
        (QWEN, "<|fim_prefix|>def f(<|fim_suffix|>\n<|fim_middle|>x",
         "<|repo_name|>repository\n<|file_sep|>a.py\nA\n<|file_sep|>b.py\nB\n<|file_sep|>"),
        (GEMMA, "<|fim_prefix|>def f(<|fim_suffix|>\n<|fim_middle|>x",
         "<|file_separator|>a.py\nA\n<|file_separator|>b.py\nB\n<|file_separator|>"),
        (STAR, "<fim_prefix>def f(<fim_suffix>\n<fim_middle>x",
         "<reponame>repository\n<filename>a.py\nA\n<filename>b.py\nB\n<filename>"),
        (STAR2, "<fim_prefix>def f(<fim_suffix>\n<fim_middle>x",
         "<repo_name>repository\n<file_sep>a.py\nA\n<file_sep>b.py\nB\n<file_sep>"),
        (DEEPSEEK, "<｜fim▁begin｜>def f(<｜fim▁hole｜>\n<｜fim▁end｜>x", "a.py\nA\n\nb.py\nB\n\n"),
    ],
)  # fmt: skip
def test_a_prompt_is_what_the_library_reads_in_its_text(
    tmp_path: Path, markers: Sequence[str], expected: str, with_files: str, special: bool
) -> None:
    fill, backend = filling(tmp_path, markers, special=special)
    assert fill.prompt("def f(", Gap("\n", "x")) == backend.encode(expected).ids
    assert fill.prompt("def f(", Gap("\n", "x", FILES)) == backend.encode(with_files + expected).ids
    assert (
        fill.prompt([1, 2], Gap(""))
        == backend.encode(expected.replace("def f(", "\u0001\u0002")[:-1].replace("\n", "")).ids
    )


@pytest.mark.parametrize("special", [False, True])
def test_tokens_that_texts_spell_stay_text(tmp_path: Path, special: bool) -> None:
    fill, backend = filling(tmp_path, QWEN, special=special)
    ids = fill.prompt("a<|fim_suffix|>b", Gap("<|fim_middle|>", files=[ExtraFile(filename="<|file_sep|>", text="")]))
    names = [backend.id_to_token(token_id) for token_id in ids]
    assert [name for name in names if name in QWEN] == [
        "<|repo_name|>", "<|file_sep|>", "<|file_sep|>", "<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>",
    ]  # fmt: skip
    assert "a<|fim_suffix|>b<|fim_suffix|><|fim_middle|>" in backend.decode(ids, skip_special_tokens=False)


def test_code_llama_s_suffix_has_no_space_of_the_tokenizer(tmp_path: Path) -> None:
    words = ["▁", *"abcdef()\n:", "ab", "▁ab", "cd"]
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *words]
    vocab = {piece: index for index, piece in enumerate(dict.fromkeys(pieces))}
    merges = [("a", "b"), ("▁", "ab"), ("c", "d")]
    backend = Backend(models.BPE(vocab=vocab, merges=merges, byte_fallback=True, unk_token="<unk>"))
    backend.add_special_tokens(["<s>", "▁<PRE>", "▁<MID>", "▁<SUF>", "▁<EOT>"])
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    spaces = normalizers.Replace(" ", "▁")
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), spaces])
    backend.save(str(tmp_path / "tokenizer.json"))
    fill = FillInMiddle.of(Tokenizer(TokenizerFiles.at(tmp_path / "tokenizer.json")))
    # The reference writes "<PRE> {prefix} <SUF>{suffix} <MID>", with this space alone.
    backend.normalizer = spaces
    mark = {name: backend.token_to_id(f"▁<{name}>") for name in ("PRE", "SUF", "MID", "EOT")}
    for before, after in (("ab(", "cd:\n"), ("ab cd", " ab"), ("a", "ab")):
        read = [backend.encode(text, add_special_tokens=False).ids for text in (f" {before}", after)]
        assert fill.prompt(before, Gap(after)) == [1, mark["PRE"], *read[0], mark["SUF"], *read[1], mark["MID"]]
    assert fill.end_ids == {mark["EOT"]}


def test_a_model_without_tokens_for_gaps_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"suffix: this model has no tokens that fill a gap .*Qwen2.5-Coder"):
        filling(tmp_path, ())


@pytest.mark.parametrize("special", [False, True])
def test_an_answer_ends_at_the_next_file(tmp_path: Path, special: bool) -> None:
    model = text_model(tmp_path, markers=QWEN, special=special)
    file_id = model.tokenizer.token_id("<|file_sep|>")
    assert file_id is not None
    # The engine ends at the token; what the model had drafted after it is cut with its text.
    source = FakeSource([*b"x, y", file_id, *(() if special else b"more")])
    executor = LocalExecutor(source, model)

    async def work() -> None:
        request = CompletionRequest(model="m", prompt="def f(", suffix="):\n", stop=["zz"])
        choice = (await whole(executor, request, Call("r"))).choices[0]
        assert (choice.text, choice.finish_reason, choice.stop_reason) == ("x, y", "stop", None)
        assert file_id in source.requests[0].last_token_ids
        for suffix in ("", None):
            await whole(executor, CompletionRequest(model="m", prompt="a", suffix=suffix), Call("r"))
            assert source.requests[-1].prompt_ids == [ord("a")]
        await whole(executor, CompletionRequest(model="m", prompt="", suffix="b"), Call("r"))
        with pytest.raises(RequestError, match="prompt has"):
            await whole(executor, CompletionRequest(model="m", prompt="", suffix="b" * 5000), Call("r"))
        with pytest.raises(RequestError, match="echo and suffix"):
            await whole(executor, CompletionRequest(model="m", prompt="", suffix="b", echo=True), Call("r"))
        await executor.close()

    asyncio.run(work())
