"""The model as transformers' ModernBERT that labels tokens, its tokenizer and its folder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from demo_model.saved_model import write_json
from demo_model.tokenizer import PIECES, train_bpe
from tokenizers import Tokenizer, processors
from transformers import ModernBertConfig, ModernBertForTokenClassification

from nearfar.compiler.formats.classifier import CALIBRATION_FILE
from nearfar.compiler.ir.tasks import TransitionSpec

from .texts import KINDS, Example, examples

VOCABULARY = 768
SPECIAL_TOKENS = ("[PAD]",)
PAD = 0
# Tokens of a text. A window of a masker has 600 UTF-16 units, whose tokens may be its bytes.
CONTEXT = 2048
OUTSIDE = "O"
LABELS = (OUTSIDE, *(f"{part}-{kind}" for kind in KINDS for part in "BIES"))


def new_model() -> Any:
    """With random weights. The first and the last layer see the whole text, the others 16 tokens on each side."""
    return ModernBertForTokenClassification(
        ModernBertConfig(
            vocab_size=VOCABULARY,
            hidden_size=64,
            intermediate_size=96,
            num_hidden_layers=4,
            num_attention_heads=4,
            max_position_embeddings=CONTEXT,
            global_attn_every_n_layers=3,
            local_attention=32,
            pad_token_id=PAD,
            bos_token_id=None,
            eos_token_id=None,
            cls_token_id=None,
            sep_token_id=None,
            classifier_pooling="mean",
            attn_implementation="sdpa",
            id2label=dict(enumerate(LABELS)),
            label2id={label: index for index, label in enumerate(LABELS)},
            initializer_range=0.1,
        )
    )


def train_tokenizer() -> Tokenizer:
    """Byte-level BPE of the texts of training, in which each digit is a token."""
    texts = (each.text for each in examples("tokenizer", 6000, held_out=False))
    tokenizer = train_bpe(texts, VOCABULARY, SPECIAL_TOKENS, PIECES)
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=True, add_prefix_space=False)
    return tokenizer


def labelled(tokenizer: Tokenizer, example: Example) -> tuple[list[int], list[int]]:
    """The ids of a text's tokens, and the index of the label of each."""
    encoding = tokenizer.encode(example.text, add_special_tokens=False)
    labels = [0] * len(encoding.ids)
    for start, end, kind in example.spans:
        inside = [index for index, (first, last) in enumerate(encoding.offsets) if first < end and last > start]
        for index, part in zip(inside, parts_of(len(inside)), strict=True):
            labels[index] = LABELS.index(f"{part}-{kind}")
    return encoding.ids, labels


def parts_of(count: int) -> Iterator[str]:
    """The parts of a span of tokens by the BIOES scheme."""
    for index in range(count):
        yield "S" if count == 1 else "B" if index == 0 else "E" if index == count - 1 else "I"


def write_checkpoint(folder: Path, model: Any, tokenizer: Tokenizer) -> None:
    """A Hugging Face folder with weights in float16, and with the steps between labels of OpenAI's privacy filter."""
    folder.mkdir(parents=True, exist_ok=True)
    model.half().save_pretrained(folder)
    model.float()
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": SPECIAL_TOKENS[PAD]}
    write_json(folder / "tokenizer_config.json", {**settings, "model_max_length": CONTEXT})
    biases = {f"transition_bias_{each.name}": each.default for each in fields(TransitionSpec)}
    write_json(folder / CALIBRATION_FILE, {"operating_points": {"default": {"biases": biases}}})


def read_checkpoint(folder: Path) -> tuple[Any, Tokenizer]:
    """The model in float32."""
    model = ModernBertForTokenClassification.from_pretrained(folder, dtype=torch.float32).eval()
    return model, Tokenizer.from_file(str(folder / "tokenizer.json"))


def scores_of(model: Any, rows: Sequence[Sequence[int]]) -> list[torch.Tensor]:
    """The scores (T, LABELS) of texts, given by their tokens."""
    longest = max(map(len, rows))
    tokens = torch.tensor([[*row, *[PAD] * (longest - len(row))] for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
    with torch.no_grad():
        logits = model(input_ids=tokens, attention_mask=mask).logits
    return [each[: len(row)] for each, row in zip(logits, rows, strict=True)]
