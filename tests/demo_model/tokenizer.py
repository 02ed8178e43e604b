"""The demo's tokenizer: byte-level BPE trained on the demo's own language, with one token per digit, and its chat
template.

A conversation is ``<bos>`` and then, for each turn, ``<user>prompt<end><assistant>answer<end>``. A system message is
``text<end>``.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from .corpus import training_examples
from .example import Example

VOCABULARY_SIZE = 1024
SPECIAL_TOKENS = ("<bos>", "<user>", "<assistant>", "<end>", "<pad>")
BOS, USER, ASSISTANT, END, PAD = range(len(SPECIAL_TOKENS))
# Every digit is a separate token, because merged digits would hide the columns of a sum.
PIECES = r" ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+"
# The model was not trained on system messages and ignores what precedes the last question, so their text is context
# without a role.
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] == 'system' %}{{ message['content'] + '<end>' }}"
    "{% elif message['role'] in ['user', 'assistant'] %}{{ '<' + message['role'] + '>' + message['content'] + '<end>' "
    "}}"
    "{% else %}{{ raise_exception('the roles are system, user and assistant, not ' + message['role']) }}{% endif %}{% "
    "endfor %}"
    "{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}"
)


def train_tokenizer(seed: int, examples: int = 20_000) -> Tokenizer:
    """Train the BPE on a seeded sample of the corpus; the special tokens take ids 0 to 4."""
    return train_bpe(_texts(seed, examples), VOCABULARY_SIZE, SPECIAL_TOKENS)


def train_bpe(texts: Iterable[str], vocabulary: int, special_tokens: Sequence[str], pieces: str = PIECES) -> Tokenizer:
    """Byte-level BPE of parts of ``pieces`` (a pattern), whose first ids are the special tokens'."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pieces), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[AddedToken(token, special=True) for token in special_tokens],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def encode_prompt(tokenizer: Tokenizer, prompt: str) -> list[int]:
    """The tokens from ``<user>`` to ``<assistant>``; the answer follows."""
    return [USER, *tokenizer.encode(prompt, add_special_tokens=False).ids, END, ASSISTANT]


def encode_turn(tokenizer: Tokenizer, example: Example) -> tuple[list[int], int]:
    """Returns a complete turn and the number of its prompt tokens, which have no loss."""
    prompt = encode_prompt(tokenizer, example.prompt)
    return [*prompt, *tokenizer.encode(example.answer, add_special_tokens=False).ids, END], len(prompt)


def _texts(seed: int, examples: int) -> Iterator[str]:
    for example in islice(training_examples(random.Random(f"{seed}/tokenizer")), examples):
        yield example.prompt
        yield example.answer
