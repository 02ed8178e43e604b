from __future__ import annotations

from pathlib import Path

import pytest

from nearfar.compiler.cli.run import encode
from nearfar.compiler.runtime.errors import RequestError
from nearfar.compiler.runtime.text.tokenizer import Tokenizer
from nearfar.compiler.runtime.text.tokenizer_files import TokenizerFiles


def test_control_tokens_of_a_raw_prompt_are_split_unless_the_user_requests_them(tmp_path: Path) -> None:
    from tokenizers import Tokenizer as Backend
    from tokenizers import models, pre_tokenizers

    alphabet = {character: index for index, character in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    backend = Backend(models.BPE(vocab=alphabet, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.add_special_tokens(["<s>"])
    backend.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer(TokenizerFiles.at(tmp_path / "tokenizer.json", "{{ messages[0].content }}"))
    assert (
        encode(tokenizer, "<s>", raw=True)
        == encode(tokenizer, "<s>", raw=False)
        == [alphabet[character] for character in "<s>"]
    )
    assert encode(tokenizer, "<s>", raw=True, split_special_tokens=False) == [256]
    with pytest.raises(RequestError, match="--no-split-special-tokens needs --raw"):
        encode(tokenizer, "<s>", raw=False, split_special_tokens=False)
