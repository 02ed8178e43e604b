"""Makes a reranker of a language model: the logits of one or two tokens, such as "yes" and "no", after a text that
holds a query and a document, score how relevant the document is. Qwen3-Reranker is such a model.

sentence-transformers' CrossEncoder names the tokens in modules.json (module LogitScore), and the checkpoint's chat
template writes the text, from messages of the roles "query" and "document".
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ..ir.tasks import ClassifierSpec
from ..runtime.errors import CheckpointError, RequestError, UnsupportedModel
from ..runtime.text.tokenizer import Tokenizer
from .checkpoint import Checkpoint, Tensor
from .classifier import cross_encoder_activation
from .sentence_transformers import module_config, read_chat_options, read_modules, read_prompts, types_of
from .spec_against_tensors import EMBEDDING, HEAD

# The tensor of the score's weights.
SCORE = "score.weight"
# The tokens that CrossEncoder reads if modules.json names none.
TRUE, FALSE = "yes", "no"
PARTS = ("query", "document")
# Options that are not variables of the chat template.
NOT_VARIABLES = ("add_generation_prompt", "restore_suffix", "truncation", "max_length", "padding")
# Qwen3-Reranker's text and instruction, for checkpoints whose chat template writes only chats.
CHAT_MARKS = ("<|im_start|>", "<|im_end|>", "<think>", "</think>")
TEMPLATE = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
    "<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}<|im_end|>\n"
    "<|im_start|>assistant\n<think>\n\n</think>\n\n"
)
INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"


@dataclass(frozen=True, slots=True)
class LogitScore:
    """The tokens whose logits make the score: that of ``true_id``, less that of ``false_id`` if there is one."""

    true_id: int
    false_id: int | None


@dataclass(frozen=True, slots=True)
class ScoreRow:
    """The weights of a score, a `Tensor` (1, E): the head's row of one token, less that of another."""

    head: Tensor
    score: LogitScore
    factor: float
    name: str = SCORE
    dtype: str = "F32"

    @property
    def shape(self) -> tuple[int, ...]:
        return 1, self.head.shape[1]

    def rows(self, start: int, stop: int) -> npt.NDArray[np.float32]:
        row = self._row(self.score.true_id)
        if self.score.false_id is not None:
            row = row - self._row(self.score.false_id)
        return np.ascontiguousarray((np.float32(self.factor) * row)[start:stop])

    def _row(self, token_id: int) -> npt.NDArray[np.float32]:
        return self.head.rows(token_id, token_id + 1)


def read_logit_score(path: Path) -> LogitScore | None:
    """The tokens that the modules.json in a folder names; None if it names no such module. Raises CheckpointError."""
    modules = read_modules(path)
    if types_of(modules) != ["Transformer", "LogitScore"]:
        return None
    config = module_config(path, modules[1])
    config.ignore("module_input_name")
    score = LogitScore(config.integer("true_token_id", minimum=0), config.optional_integer("false_token_id", minimum=0))
    config.finish()
    return score


def as_reranker(checkpoint: Checkpoint, score: LogitScore | None = None) -> Checkpoint:
    """A checkpoint that generates text, as a reranker. ``score`` None: the tokens are "yes" and "no", and if the chat
    template writes no pairs, the text is that of Qwen3-Reranker.

    Raises RequestError for a checkpoint without these tokens or without a text for pairs; UnsupportedModel for caps of
    logits, which change the score; and CheckpointError.
    """
    spec, path = checkpoint.spec, checkpoint.path
    tokenizer = Tokenizer(checkpoint.tokenizer)
    instruction = _default_prompt(path)
    template = template_of_pairs(path, tokenizer, instruction)
    if score is None:
        score = _yes_or_no(path, tokenizer)
        if template is None:
            template, instruction = _text_of_qwen3(path, tokenizer), instruction or INSTRUCTION
    elif template is None and (tokenizer.chat_template is not None or instruction is not None):
        raise CheckpointError(
            f"{path}: its chat template does not write pairs, which are messages of the roles {' and '.join(PARTS)}; "
            "download the template too"
        )
    if max(score.true_id, score.false_id or 0) >= spec.vocab_size:
        raise CheckpointError(
            f"{path}: scores a token beyond the vocabulary of {spec.vocab_size}; correct modules.json"
        )
    if spec.logit_softcap is not None:
        raise UnsupportedModel(f"{path}: caps its logits, which a score of single tokens does not support")
    head = checkpoint.tensors.get(EMBEDDING if spec.tie_word_embeddings else HEAD)
    if head is None or len(head.shape) != 2 or head.shape[0] < spec.vocab_size:
        raise CheckpointError(f"{path}: has no complete head, of which a reranker reads the rows of its tokens")
    tensors = {name: tensor for name, tensor in checkpoint.tensors.items() if name != HEAD}
    classifier = ClassifierSpec(
        labels=(tokenizer.decode([score.true_id]).strip() or "relevant",),
        activation=cross_encoder_activation(checkpoint.config, str(path / "config.json")),
        pooling="last_token",
        relevance=0,
        template=template,
        instruction=instruction,
    )
    tensors[SCORE] = ScoreRow(head, score, spec.logit_scale)
    return replace(checkpoint, tensors=tensors, classifier=classifier)


def template_of_pairs(path: Path, tokenizer: Tokenizer, instruction: str | None = None) -> str | None:
    """The text that the chat template writes for a pair, with {query}, {document} and, if there is an instruction,
    {instruction} in their places; None if it does not write each of them once.
    """
    chat = tokenizer.chat_template
    if chat is None:
        return None
    roles = [*(["system"] if instruction is not None else []), *PARTS]
    marks = ["{instruction}" if role == "system" else f"{{{role}}}" for role in roles]
    messages = [{"role": role, "content": mark} for role, mark in zip(roles, marks, strict=True)]
    options = read_chat_options(path)
    variables = {name: value for name, value in options.items() if name not in NOT_VARIABLES}
    try:
        text = chat.render(
            messages, add_generation_prompt=options.get("add_generation_prompt") is True, variables=variables
        )
    except (RequestError, CheckpointError):
        return None
    return text if all(text.count(mark) == 1 for mark in marks) else None


def _default_prompt(path: Path) -> str | None:
    prompts, default = read_prompts(path)
    return next((prompt.text for prompt in prompts if prompt.name == default and prompt.text), None)


def _yes_or_no(path: Path, tokenizer: Tokenizer) -> LogitScore:
    true_id, false_id = tokenizer.token_id(TRUE), tokenizer.token_id(FALSE)
    if true_id is None or false_id is None:
        raise RequestError(
            f"--task rerank: {path} has no tokens {TRUE!r} and {FALSE!r} to score pairs with; give a reranker"
        )
    return LogitScore(true_id, false_id)


def _text_of_qwen3(path: Path, tokenizer: Tokenizer) -> str:
    if any(tokenizer.token_id(mark) is None for mark in CHAT_MARKS):
        raise RequestError(
            f"--task rerank: {path} has a chat template that writes no pairs (messages of the roles "
            f"{' and '.join(PARTS)}), and no tokens for the text of Qwen3-Reranker; give a reranker"
        )
    return TEMPLATE
