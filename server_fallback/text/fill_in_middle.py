"""Fill in the middle: the prompt with which a model of code writes the text of a gap, between what is before and after
it.

Models have control tokens of their own for this, in one of a few forms. Sources: the model cards of Qwen2.5-Coder,
StarCoder, CodeGemma and DeepSeek-Coder, and `infilling_prompt_tokens` of Code Llama's repository.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from nearfar.compiler.runtime.errors import RequestError
from nearfar.compiler.runtime.text.tokenizer import Tokenizer

from ..schema.completions import ExtraFile

# A character that no tokenizer joins with the next one. Code Llama's reference uses it, too.
MARK = "\u263a"


@dataclass(frozen=True, slots=True)
class FimForm:
    """The names of tokens: before the prefix, the suffix and the middle, then those before the name of a repository and
    of a file, if there are any, and others that end a middle. ``spaced``: the tokenizer writes a space before every
    text, which the suffix does not have.
    """

    prefix: str
    suffix: str
    middle: str
    repository: str | None = None
    file: str | None = None
    ends: tuple[str, ...] = ()
    spaced: bool = False


FORMS = (
    # Qwen2.5-Coder and later models of Qwen, Granite 4.
    FimForm("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|repo_name|>", "<|file_sep|>", ("<|fim_pad|>",)),
    # CodeGemma.
    FimForm("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", None, "<|file_separator|>"),
    FimForm("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    # StarCoder 2, then StarCoder and Granite Code.
    FimForm("<fim_prefix>", "<fim_suffix>", "<fim_middle>", "<repo_name>", "<file_sep>", ("<fim_pad>",)),
    FimForm("<fim_prefix>", "<fim_suffix>", "<fim_middle>", "<reponame>", "<filename>", ("<fim_pad>",)),
    FimForm("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    # Code Llama.
    FimForm("\u2581<PRE>", "\u2581<SUF>", "\u2581<MID>", ends=("\u2581<EOT>",), spaced=True),
    # DeepSeek-Coder and later models of DeepSeek.
    FimForm("<\uff5cfim\u2581begin\uff5c>", "<\uff5cfim\u2581hole\uff5c>", "<\uff5cfim\u2581end\uff5c>"),
)


@dataclass(frozen=True, slots=True)
class Gap:
    """``suffix`` follows the gap, and ``middle`` begins it. ``files`` are others of the same repository."""

    suffix: str
    middle: str = ""
    files: Sequence[ExtraFile] = ()

    @property
    def text(self) -> str:
        """All of it, to count."""
        return "".join([self.suffix, self.middle, *(file.filename + file.text for file in self.files)])


class FillInMiddle:
    """How one model fills gaps. ``end_ids`` end a middle, and ``ends`` are their texts."""

    def __init__(self, tokenizer: Tokenizer, form: FimForm) -> None:
        self._tokenizer, self._form = tokenizer, form
        names = [form.prefix, form.suffix, form.middle, form.repository, form.file, *form.ends]
        self._ids = {name: token_id for name in names if name and (token_id := tokenizer.token_id(name)) is not None}
        self.ends = tuple(name for name in (form.repository, form.file, *form.ends) if name in self._ids)
        self.end_ids = frozenset(self._ids[name] for name in self.ends if name is not None)
        self._names = re.compile("|".join(map(re.escape, self._ids)))

    @staticmethod
    def of(tokenizer: Tokenizer) -> FillInMiddle:
        """Raises RequestError for a model without such tokens."""
        for form in FORMS:
            needed = [form.prefix, form.suffix, form.middle, *filter(None, (form.repository, form.file))]
            if all(tokenizer.token_id(name) is not None for name in needed):
                return FillInMiddle(tokenizer, form)
        known = ", ".join(dict.fromkeys(form.middle for form in FORMS))
        raise RequestError(
            f"suffix: this model has no tokens that fill a gap (known: {known}); leave it out, or use a model of code, "
            "such as Qwen2.5-Coder",
            param="suffix",
        )

    def prompt(self, prefix: str | Sequence[int], gap: Gap) -> list[int]:
        """The token ids of a prompt. What the texts spell of the form's tokens is text."""
        form = self._form
        before = self._text(prefix) if isinstance(prefix, str) else list(prefix)
        return [
            *self._tokenizer.encode(""),
            *self._files(gap.files),
            self._ids[form.prefix],
            *before,
            self._ids[form.suffix],
            *self._text(gap.suffix, follows=True),
            self._ids[form.middle],
            *(self._text(gap.middle, follows=True) if gap.middle else ()),
        ]

    def _files(self, files: Sequence[ExtraFile]) -> list[int]:
        """The repository's other files, and the beginning of the one with the gap."""
        form = self._form
        if not files:
            return []
        if form.file is None:
            return self._text("".join(f"{file.filename}\n{file.text}\n\n" for file in files))
        marked = [self._ids[form.file]]
        named = [[*marked, *self._text(f"{file.filename}\n{file.text}\n")] for file in files]
        repository = [] if form.repository is None else [self._ids[form.repository], *self._text("repository\n")]
        return [*repository, *(token_id for ids in named for token_id in ids), *marked]

    def _text(self, text: str, *, follows: bool = False) -> list[int]:
        """``follows``: no space is written before it."""
        ids, start = list[int](), 0
        # Tokens that are not special would be read in texts, so their names are cut in two.
        for cut in [*(match.start() + 1 for match in self._names.finditer(text)), len(text)]:
            ids += self._encoded(text[start:cut], follows=follows or start > 0)
            start = cut
        return ids

    def _encoded(self, text: str, *, follows: bool) -> list[int]:
        if not (follows and self._form.spaced):
            return self._tokenizer.encode(text, add_special_tokens=False)
        mark = self._tokenizer.encode(MARK, add_special_tokens=False)
        ids = self._tokenizer.encode(MARK + text, add_special_tokens=False)
        assert ids[: len(mark)] == mark, "the mark is a word of its own"
        return ids[len(mark) :]
