"""Texts and pairs in one sequence, shortened as the tokenizers library does it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, models, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from nearfar.compiler.runtime.errors import RequestError
from nearfar.compiler.runtime.text.tokenizer import Tokenizer
from nearfar.compiler.runtime.text.tokenizer_files import TokenizerFiles

WORDS = ["[UNK]", "[CLS]", "[SEP]", "a", "b", "c", "d", "e", "[", "]", "SEP", "CLS"]
LONG = "a b c d e a b c"


def backend_of(folder: Path) -> tuple[Tokenizer, Any]:
    """A tokenizer of words that marks texts and pairs as BERT's does, and the library's."""
    backend = Backend(models.WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.add_special_tokens([AddedToken(word, special=True) for word in ("[UNK]", "[CLS]", "[SEP]")])
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    path = folder / "tokenizer.json"
    backend.save(str(path))
    return Tokenizer(TokenizerFiles.at(path)), backend


@pytest.mark.parametrize("limit", [5, 6, 9, 100])
def test_a_text_and_the_second_of_a_pair_are_shortened_at_the_end(tmp_path: Path, limit: int) -> None:
    tokenizer, backend = backend_of(tmp_path)
    backend.enable_truncation(limit, strategy="only_second")
    theirs = backend.encode("d", LONG)
    ours = tokenizer.encode_shortened("d", LONG, limit)
    assert (ours.ids, ours.token_types) == (theirs.ids, theirs.type_ids)
    backend.enable_truncation(limit)
    theirs, ours = backend.encode(LONG), tokenizer.encode_shortened(LONG, None, limit)
    assert (ours.ids, ours.token_types, ours.offsets) == (theirs.ids, theirs.type_ids, theirs.offsets)
    assert tokenizer.encode_shortened(LONG, None, 100).ids == tokenizer.encode(LONG)


def test_the_second_text_has_a_limit_of_its_own_and_the_first_must_leave_room(tmp_path: Path) -> None:
    tokenizer, _ = backend_of(tmp_path)
    assert tokenizer.encode_shortened("d", LONG, 100, 2).ids == tokenizer.encode_shortened("d", "a b", 100).ids
    with pytest.raises(RequestError, match="leaves none for a document"):
        tokenizer.encode_shortened("a b c", LONG, 6)
    assert tokenizer.beginning(LONG, 2) == "a b "
    assert tokenizer.beginning("a b", 2) == "a b"


def test_a_text_that_spells_a_control_token_does_not_make_one(tmp_path: Path) -> None:
    tokenizer, _ = backend_of(tmp_path)
    ids = tokenizer.encode_shortened("a [SEP] b", "[CLS] c", 100).ids
    assert (ids.count(1), ids.count(2)) == (1, 2)
    assert ids == [1, 3, 8, 10, 9, 4, 2, 8, 11, 9, 5, 2]
