"""Small tokenizers of encoders, texts, and what the tokenizers library makes of them: the vectors of
tests/conformance/encoder_tokenizers.json, which the TypeScript tokenizers must reproduce.

`python tests/encoder_tokenizers.py` writes the file.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

VECTORS = Path(__file__).parent / "conformance/encoder_tokenizers.json"
TEXTS = (
    "Hello, world! It's 2024.",
    "naïve café CAFÉ e\u0301 Ångström İstanbul ΣΊΣΥΦΟΣ straße",
    "日本語のテキスト, 中文字符 mixed with English",
    "한국어 텍스트 \u1112\u1161\u11ab",
    "emoji 🦊👍🏽 👩‍👩‍👧 1️⃣ done",
    "unknownword zzzqqq ∀x∈ℝ",
    "x" * 101 + " " + "y" * 100,
    "  spaces\t\tand\nlines\r\nand\u00a0no-break\u3000wide  ",
    "zero\u0000 soft\u00adhyphen \ufeffbom \u200bwidth \ufffd",
    "ﬁne ①② ｆｕｌｌ ｗｉｄｔｈ ㌔ ½ ｶﾞ",
    "हिन्दी ไทย العربيّة עִבְרִית",
    "[CLS] forged [SEP] <s> and </s> [MASK] <mask> kept",
    "a_b-c.d/e@f #tag ##piece ▁mark",
    "punctuation…“quoted” ‘x’ — dash · 、。！？",
    "",
)
PAIRS = (("What is a boat?", "A boat floats on water."), ("日本", "naïve 🦊"), ("a", ""))
UNKNOWN = {"bert-uncased": "[UNK]", "bert-cased": "[UNK]", "mpnet": "[UNK]", "xlm-roberta": "<unk>",
           "deberta-v2": "[UNK]", "deberta-v3": "[UNK]", "albert": "<unk>", "roberta": "<unk>", "qwen": None,
           "gemma": "<unk>"}  # fmt: skip
# Rules of a small normalization: from code points to code points.
RULES = (("a\u0301", "á"), ("e\u0301", "é"), ("\ufb01", "fi"), ("①", "1"), ("\u3000", " "), ("\t", " "), ("\n", " "),
         ("\r", " "), ("\u00a0", " "), ("\u200b", ""), ("\u00ad", ""), ("½", "1⁄2"), ("ｆ", "f"), ("ｶ\uff9e", "ガ"),
         ("㌔", "キロ"), ("ｶ", "カ"))  # fmt: skip


def tokenizers() -> dict[str, Any]:
    """tokenizer.json of each kind, by name."""
    from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, processors

    pieces = [*"abcdefghijklmnopqrstuvwxyz0123456789!,.?'-#[]/@_…é日本語中文字符한국어हनतไ🦊👍ß∈Σσ", "▁"]
    words = ["hello", "world", "cafe", "naive", "the", "boat", "floats", "on", "water", "what", "is", "text", "english",
             "emoji", "done", "kept", "and", "CLS", "SEP"]  # fmt: skip
    continuations = [f"##{each}" for each in [*pieces, "ing", "ed", "s", "lo", "ld"]]
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    vocab = {token: index for index, token in enumerate(dict.fromkeys([*specials, *pieces, *words, *continuations]))}
    found = {}
    for name, lowercase in (("bert-uncased", True), ("bert-cased", False)):
        tokenizer = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        tokenizer.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]",
            pair="[CLS] $A [SEP] $B:1 [SEP]:1",
            special_tokens=[("[CLS]", vocab["[CLS]"]), ("[SEP]", vocab["[SEP]"])],
        )
        tokenizer.add_special_tokens(specials)
        tokenizer.add_tokens([AddedToken("kept", single_word=True, normalized=True)])
        found[name] = json.loads(tokenizer.to_str())
    scored = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -3.0)]
    scored += [(each, -6.0 - index / 100) for index, each in enumerate(pieces) if each != "▁"]
    scored += [(f"▁{each}", -4.5 - index / 50) for index, each in enumerate([*words, "Hello", "日本", "fi", "a", "x"])]
    scored += [
        (each, -5.0 - index / 50) for index, each in enumerate(["lo", "ld", "ing", "日本語", "xx", "🦊👍", "キロ"])
    ]
    tokenizer = Tokenizer(models.Unigram(scored, unk_id=3, byte_fallback=False))
    tokenizer.normalizer = normalizers.Precompiled(charsmap())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    tokenizer.add_special_tokens(["<s>", "<pad>", "</s>", "<unk>"])
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True, normalized=False)])
    found["xlm-roberta"] = json.loads(tokenizer.to_str())
    return found | mpnet_deberta_and_albert(vocab, scored) | byte_pair_tokenizers()


def mpnet_deberta_and_albert(vocab: Mapping[str, int], scored: Sequence[tuple[str, float]]) -> dict[str, Any]:
    """MPNet's, with these word pieces; and with these scored pieces ALBERT's and DeBERTa's: version 2 as transformers 5
    writes it, with punctuation split, and version 3 as most repositories have it.
    """
    from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import AlbertTokenizer, DebertaV2Tokenizer, MPNetTokenizer

    own = ["<s>", "<pad>", "</s>", "[UNK]", *(word for word in vocab if not word.startswith("["))]
    mpnet = MPNetTokenizer({word: index for index, word in enumerate([*own, "<mask>"])})
    pieces = [("[PAD]", 0.0), ("[CLS]", 0.0), ("[SEP]", 0.0), ("[UNK]", 0.0), *scored[4:], ("[MASK]", 0.0)]
    second = DebertaV2Tokenizer(pieces, do_lower_case=True, split_by_punct=True)
    third = Tokenizer(models.Unigram(pieces, unk_id=3, byte_fallback=False))
    third.normalizer = normalizers.Sequence(
        [normalizers.Strip(), normalizers.Precompiled(charsmap()), normalizers.Replace(Regex(" {2,}"), " ")]
    )
    third.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")])
    third.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    third.add_special_tokens(["[PAD]", "[CLS]", "[SEP]", AddedToken("[UNK]", normalized=True), "[MASK]"])
    specials = [("<pad>", 0.0), ("<unk>", 0.0), ("[CLS]", 0.0), ("[SEP]", 0.0), ("[MASK]", 0.0)]
    albert = AlbertTokenizer([*specials, *scored[4:]], _spm_precompiled_charsmap=charsmap())
    backends = {
        "mpnet": mpnet.backend_tokenizer, "deberta-v2": second.backend_tokenizer, "deberta-v3": third,
        "albert": albert.backend_tokenizer,
    }  # fmt: skip
    return {name: json.loads(each.to_str()) for name, each in backends.items()}


def write_vectors_tokenizer(folder: Path, name: str) -> None:
    """Give the checkpoint in a folder a tokenizer of the vectors instead of its own."""
    tokenizer = json.loads(VECTORS.read_text())["tokenizers"][name]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(json.dumps({"unk_token": UNKNOWN[name]}))


def byte_pair_tokenizers() -> dict[str, Any]:
    """Of byte-pair encoding, with long tokens of one character and merges that meet in the middle of characters."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    from nearfar.compiler.formats.byte_level import WORDS

    words = ("hello", "world", " the", " boat", "!!!!!!!!", "日本", "本語日", "é", "    ", "\n\n\n\n", "ing", "xx")
    bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    spelled = [bytes_.pre_tokenize_str(word)[0][0] for word in words]
    # The last byte of one character and the first of the next.
    spelled.append(spelled[5][2:4])
    merges = merges_of(spelled)
    names = ["<s>", "</s>", "<unk>", *sorted(pre_tokenizers.ByteLevel.alphabet()), *map("".join, merges)]
    model = models.BPE({name: index for index, name in enumerate(names)}, merges)
    roberta = Tokenizer(model)
    roberta.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    roberta.decoder = decoders.ByteLevel()
    roberta.post_processor = processors.RobertaProcessing(("</s>", 1), ("<s>", 0))
    roberta.add_special_tokens(["<s>", "</s>", "<unk>", AddedToken("<mask>", lstrip=True)])
    qwen = Tokenizer(model)
    qwen.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(WORDS["qwen2"].patterns[0]), "isolated")
    qwen.pre_tokenizer = pre_tokenizers.Sequence([split, bytes_])
    qwen.decoder = decoders.ByteLevel()
    qwen.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 1)]
    )
    qwen.add_special_tokens(["<s>", "</s>"])
    merges = merges_of([word.replace(" ", "▁") for word in words])
    letters = sorted({letter for word in words for letter in word.replace(" ", "▁")})
    names = ["<s>", "</s>", "<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *letters, *map("".join, merges)]
    vocab = {name: index for index, name in enumerate(names)}
    gemma = Tokenizer(models.BPE(vocab, merges, byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    gemma.normalizer = normalizers.Replace(" ", "▁")
    gemma.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    gemma.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    gemma.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> <s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    gemma.add_special_tokens(["<s>", "</s>", "<unk>"])
    return {name: json.loads(each.to_str()) for name, each in (("roberta", roberta), ("qwen", qwen), ("gemma", gemma))}


def merges_of(words: Sequence[str]) -> list[tuple[str, str]]:
    """Merges that make each word a token: of halves for a repeated character, else from its beginning."""
    pairs: dict[tuple[str, str], None] = {}
    for word in words:
        repeats = len(set(word)) == 1
        sizes = [1 << power for power in range(len(word).bit_length() - 1)] if repeats else range(1, len(word))
        for size in sizes:
            pairs.setdefault((word[:size], word[size : 2 * size] if repeats else word[size]))
    return list(pairs)


def charsmap() -> bytes:
    """`RULES` as SentencePiece compiles them."""
    import sentencepiece as spm
    from sentencepiece import sentencepiece_model_pb2 as model

    with TemporaryDirectory() as folder:
        rules = Path(folder) / "rules.tsv"
        codes = [" ".join(f"{ord(each):x}" for each in side) for rule in RULES for side in rule]
        rules.write_text("".join(f"{old}\t{new}\n" for old, new in zip(codes[::2], codes[1::2], strict=True)))
        written = io.BytesIO()
        spm.SentencePieceTrainer.train(
            sentence_iterator=iter(["a b c", "b c d"]), model_writer=written, vocab_size=9,
            normalization_rule_tsv=str(rules), minloglevel=2,
        )  # fmt: skip
    # protobuf makes the names of a generated module at run time.
    proto = cast(Any, model).ModelProto.FromString(written.getvalue())
    return bytes(proto.normalizer_spec.precompiled_charsmap)


def expectations(name: str, model: Any) -> dict[str, Any]:
    """For each text the token ids, None if the text spells a control token that cannot be split, and the places of the
    tokens in the text; for each pair the token ids and types.
    """
    from nearfar.compiler.runtime.errors import RequestError
    from nearfar.compiler.runtime.text.tokenizer import Tokenizer
    from nearfar.compiler.runtime.text.tokenizer_files import TokenizerFiles

    tokenizer = Tokenizer(TokenizerFiles(Path("tokenizer.json"), json.dumps(model).encode(), unk_token=UNKNOWN[name]))

    def single(text: str) -> list[Any] | None:
        try:
            encoded = tokenizer.encode_shortened(text, None, 10**6)
        except RequestError:
            return None
        return [encoded.ids, [list(utf16(text, span)) for span in encoded.offsets]]

    pairs = (tokenizer.encode_shortened(*pair, 10**6) for pair in PAIRS)
    return {
        "texts": [single(text) for text in TEXTS],
        "pairs": [[pair.ids, pair.token_types] for pair in pairs],
    }


def utf16(text: str, span: tuple[int, int]) -> Iterator[int]:
    """A place in characters as one in UTF-16 code units."""
    for index in span:
        yield len(text[:index].encode("utf-16-le", "surrogatepass")) // 2


def vectors() -> dict[str, Any]:
    from nearfar.compiler.runtime.text.stable_tokens import PATTERNS

    models = tokenizers()
    return {
        "texts": TEXTS,
        "patterns": sorted(PATTERNS),
        "pairs": PAIRS,
        "unknown": UNKNOWN,
        "tokenizers": models,
        "expected": {name: expectations(name, model) for name, model in models.items()},
    }


if __name__ == "__main__":
    VECTORS.write_text(json.dumps(vectors(), ensure_ascii=False, separators=(",", ":")) + "\n")
