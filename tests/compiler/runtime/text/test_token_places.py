"""The characters of tokens: those of the tokenizers library."""

from __future__ import annotations

from tokenizers import Tokenizer as Backend

from nearfar.compiler.demo import FINDER_CHECKPOINT
from nearfar.compiler.runtime.text.tokenizer import Tokenizer
from nearfar.compiler.runtime.text.tokenizer_files import TokenizerFiles

TEXT = "😀 My name is K. O'Neill, e\u0301 José  李娜"


def test_a_token_with_a_space_begins_with_its_first_letter() -> None:
    path = FINDER_CHECKPOINT / "tokenizer.json"
    theirs = Backend.from_file(str(path)).encode(TEXT)
    ours = Tokenizer(TokenizerFiles.at(path)).encode_shortened(TEXT, None, 100)
    assert (ours.ids, ours.offsets) == (theirs.ids, theirs.offsets)
    first = ours.offsets[theirs.tokens.index("ĠK")]
    assert TEXT[slice(*first)] == "K"
