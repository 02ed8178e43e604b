from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearfar.compiler.runtime.errors import BundleError, RequestError
from nearfar.compiler.runtime.text.text_stream import TextStream
from nearfar.compiler.runtime.text.tokenizer import Tokenizer
from nearfar.compiler.runtime.text.tokenizer_files import TokenizerFiles
from nearfar.server_fallback.text.vocabulary import Vocabulary, read_vocabulary

DEMO = Path(__file__).parents[3] / "compiler/demo/nearfar-demo/tokenizer.json"


def vocabulary(
    folder: Path, vocab: Any, decoder: Any, *, added: Any = (), size: int = 4, ends: tuple[int, ...] = ()
) -> Vocabulary:
    path = folder / "tokenizer.json"
    path.write_text(json.dumps({"model": {"vocab": vocab}, "decoder": decoder, "added_tokens": list(added)}))
    return read_vocabulary(path, size, ends)


def test_byte_level_tokens_are_their_bytes_and_added_ones_their_text(tmp_path: Path) -> None:
    added = [{"id": 2, "content": "<é>", "special": False}, {"id": 3, "content": "</s>", "special": True}]
    decoder = {"type": "Sequence", "decoders": [{"type": "ByteLevel"}]}
    read = vocabulary(tmp_path, {"Ġa": 0, "Ã": 1, "beyond": 9}, decoder, added=added, size=6, ends=(3, 4))
    assert read.tokens == (b" a", b"\xc3", "<é>".encode(), b"</s>", None, None)
    assert [read.name(token) for token in range(5)] == [" a", "\ufffd", "<é>", "</s>", ""]
    # Special tokens and tokens that end an answer have no text.
    assert read.spoken() == [b" a", b"\xc3", "<é>".encode(), b"", b"", b""]
    assert read.size == 6


@pytest.mark.parametrize(
    "decoder",
    [
        {
            "type": "Sequence",
            "decoders": [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}],
        },
        {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Metaspace"}]},
    ],
)
def test_byte_fallback_tokens_are_bytes_and_spaces(tmp_path: Path, decoder: Any) -> None:
    read = vocabulary(tmp_path, [["<0xC3>", 0.0], ["▁a▁", -1.0], ["é", -2.0]], decoder, size=4)
    assert read.tokens == (b"\xc3", b" a ", "é".encode(), None)


def test_without_byte_fallback_a_token_is_its_characters(tmp_path: Path) -> None:
    assert vocabulary(tmp_path, {"<0xC3>": 0}, None, size=1).tokens == (b"<0xC3>",)


def test_tokens_with_spaces_between_them_make_no_grammar(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="WordPiece"):
        vocabulary(tmp_path, {"a": 0}, {"type": "WordPiece"}).spoken()


def test_a_file_that_is_not_a_tokenizer_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    for text in ("{", "[]", "{}", '{"model": {"vocab": [1]}}', '{"model": {"vocab": {}}, "decoder": {}}'):
        path.write_text(text)
        with pytest.raises(BundleError, match="is not a tokenizer"):
            read_vocabulary(path, 4, ())
    with pytest.raises(BundleError):
        read_vocabulary(tmp_path / "none.json", 4, ())


@given(st.text(max_size=40))
def test_the_bytes_of_a_texts_tokens_are_the_text_however_it_is_streamed(text: str) -> None:
    read = read_vocabulary(DEMO, 1024, ())
    tokenizer = Tokenizer(TokenizerFiles.at(DEMO))
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert b"".join(read.tokens[token] or b"" for token in ids) == text.encode()
    stream = TextStream(tokenizer, skip_special_tokens=False)
    assert "".join([*(stream.feed(token) for token in ids), stream.finish()]) == text
