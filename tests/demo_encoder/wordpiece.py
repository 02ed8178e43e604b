"""The demo encoder's tokenizer: WordPiece in lower case, as BERT's. Its vocabulary is the texts' characters, their most
frequent words, and the endings that make other words of those.

The tokenizers library learns vocabularies too, but breaks ties in the order of a hash table, which differs in each run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
PAD, UNKNOWN, CLS, SEP, MASK = range(len(SPECIAL_TOKENS))
ENDINGS = 500
LONGEST_ENDING = 8


def make_wordpiece(texts: Iterable[str], size: int) -> Tokenizer:
    normalizer, splitter = normalizers.BertNormalizer(lowercase=True), pre_tokenizers.BertPreTokenizer()
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(word for word, _ in splitter.pre_tokenize_str(normalizer.normalize_str(text)))
    characters = sorted({character for word in counts for character in word})
    frequent = [word for word, count in _ranked(counts) if count > 1]
    endings: Counter[str] = Counter()
    known = set(frequent)
    for word, count in counts.items():
        for length in range(2, min(LONGEST_ENDING, len(word) - 3) + 1):
            if word[:-length] in known:
                endings[f"##{word[-length:]}"] += count
    pieces = [*SPECIAL_TOKENS, *characters, *(f"##{character}" for character in characters)]
    pieces += [ending for ending, _ in _ranked(endings)[:ENDINGS]]
    vocabulary = list(dict.fromkeys([*pieces, *frequent]))[:size]
    tokenizer = Tokenizer(models.WordPiece({piece: index for index, piece in enumerate(vocabulary)}, unk_token="[UNK]"))
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, splitter
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", CLS), ("[SEP]", SEP)]
    )
    return tokenizer


def _ranked(counts: Counter[str]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))
