"""The tokens that a calibration reads: from a file, or continued by the model itself from texts and questions that come
with the compiler.

A model's own text is drawn from the distribution that has to be preserved, needs no data, and can be of any length (Liu
et al. 2023, LLM-QAT).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import numpy as np

from ..arch import by_model_type
from ..formats.checkpoint import Checkpoint
from ..given_file import MAX_DATA_BYTES, read_given_text
from ..ir.graph import Parameter
from ..ir.pages import PAGES
from ..measure.quality import make_windows
from ..pipeline.weights import read_rows
from ..quant.base import FloatArray
from ..runtime.batch import DERIVED_INPUTS, Chunk, make_batch
from ..runtime.errors import RequestError, reason_of
from ..runtime.graph_walk import Execution, walk
from ..runtime.text.tokenizer import Tokenizer
from ..runtime.windows import HeadlessGraph, without_head
from .importance import draw, softmax

WINDOW = 256
TOKENS = 32_768
# With fewer tokens, the statistics of a matrix are too poor.
LEAST_TOKENS = 1_024
# Elements of an activation that are in memory at once, for all tokens.
ACTIVATION_ELEMENTS = 1 << 28
# Tokens of a passage that the model continues.
LEAD_TOKENS = 24
SEED = 19
# Texts that are continued together.
SEQUENCES = 64
# Weights that stay in memory between the steps of a generation; others are read in each step.
KEPT_ELEMENTS = 1 << 29
BUILT_IN = "continued by the model"


@dataclass(frozen=True, slots=True)
class Sample:
    """Windows of up to ``window`` token ids, their source, and the hash of the ids."""

    windows: Sequence[Sequence[int]]
    window: int
    source: str

    @property
    def tokens(self) -> int:
        return sum(map(len, self.windows))

    @property
    def sha256(self) -> str:
        return hashlib.sha256(repr([list(map(int, each)) for each in self.windows]).encode()).hexdigest()


def read_sample(checkpoint: Checkpoint, file: Path) -> Sample:
    """The first tokens of a text, in windows that are spread over it if it is longer. Raises RequestError for a file
    that cannot be read or that is too short.
    """
    text = read_text(file)
    window = min(WINDOW, checkpoint.spec.max_position_embeddings)
    windows = make_windows(Tokenizer(checkpoint.tokenizer), text, window)
    tokens = sum(map(len, windows))
    if tokens < LEAST_TOKENS:
        raise RequestError(
            f"--calibration {file}: has {tokens} tokens; pass a text of at least {LEAST_TOKENS} tokens, or leave the "
            "option out: the model then continues texts that come with nearfar"
        )
    most = max(1, tokens_for(checkpoint) // window)
    chosen = np.unique(np.linspace(0, len(windows) - 1, min(most, len(windows))).astype(int))
    return Sample([windows[index] for index in chosen], window, file.name)


def read_text(file: Path) -> str:
    """A calibration text. Raises RequestError for a file that cannot be read, or that is empty."""
    try:
        text = read_given_text(file, MAX_DATA_BYTES)
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(
            f"--calibration {file}: cannot be read: {reason_of(error)}; pass a file of UTF-8 text"
        ) from error
    if not text.strip():
        raise RequestError(f"--calibration {file}: is empty; pass a text of at least {LEAST_TOKENS} tokens")
    return text


def tokens_for(checkpoint: Checkpoint) -> int:
    """The number of calibration tokens of a model, so that their activations fit into memory."""
    spec = checkpoint.spec
    return min(TOKENS, ACTIVATION_ELEMENTS // max(spec.intermediate_size, spec.hidden_size))


def generated_sample(checkpoint: Checkpoint, progress: Callable[[int, int], None] = lambda *_: None) -> Sample:
    """Windows that the model itself continues from the built-in texts, drawn at temperature 1."""
    spec = checkpoint.spec
    window = min(WINDOW, spec.max_position_embeddings)
    leads = lead_tokens(Tokenizer(checkpoint.tokenizer), window)
    graph = by_model_type(spec.model_type).forward(spec, window, window)
    windows = continue_all(checkpoint, without_head(graph), leads, window, tokens_for(checkpoint), progress)
    return Sample(windows, window, BUILT_IN)


def lead_tokens(tokenizer: Tokenizer, window: int) -> list[list[int]]:
    """The beginnings of the built-in passages, and the questions as chats if the model has a chat template."""
    folder = resources.files(__package__) / "texts"
    passages, questions = (
        (folder / name).read_text(encoding="utf-8").strip() for name in ("passages.txt", "questions.txt")
    )
    most = max(1, min(LEAD_TOKENS, window // 2))
    leads = [tokenizer.encode(passage)[:most] for passage in passages.split("\n\n")]
    if tokenizer.chat_template is None:
        leads += [tokenizer.encode(question)[:most] for question in questions.split("\n")]
        return leads
    for question in questions.split("\n"):
        chat = tokenizer.encode_chat([{"role": "user", "content": question}])
        if len(chat) < window:
            leads.append(chat)
    return leads


def continue_all(
    checkpoint: Checkpoint,
    model: HeadlessGraph,
    leads: Sequence[Sequence[int]],
    window: int,
    tokens: int,
    progress: Callable[[int, int], None],
) -> list[list[int]]:
    """Continue the leads in turn, SEQUENCES at once, each up to the end of a text or to ``window`` tokens, until there
    are ``tokens`` tokens.
    """
    generator = np.random.default_rng(SEED)
    read = cached_reader(checkpoint, model)
    head = model.head_of(lambda parameter: read(parameter, 0, parameter.rows))
    ends = set(checkpoint.spec.eos_token_ids)
    count = min(SEQUENCES, -(-tokens // window))
    windows = [list(leads[index % len(leads)]) for index in range(count)]
    # The tokens of each window that the pages hold, and the numbers of the windows that are growing.
    cached, growing = [0] * count, list(range(count))
    initial = Execution(model.graph, {}, {"P": count, "N": 1, "S": 0, "R": 0}).values
    pages = {name: initial[name] for name, state in model.graph.states.items() if state.shape[0] == PAGES}
    while (total := sum(map(len, windows))) < tokens:
        progress(total, tokens)
        chunks = [
            Chunk(windows[index][cached[index] :], cached[index], [page], [len(windows[index]) - cached[index] - 1])
            for page, index in enumerate(growing)
        ]
        batch = make_batch(chunks, window)
        execution = Execution(model.graph, {**batch.arrays(DERIVED_INPUTS), **pages}, batch.dims(count))
        (rows,) = walk(model.graph, model.rows, [execution], read)
        for page, token in enumerate(draw(softmax(model.logits(rows, head)), generator).tolist()):
            index = growing[page]
            cached[index] = len(windows[index])
            windows[index].append(token)
            if token in ends or len(windows[index]) == window:
                growing[page] = len(windows)
                windows.append(list(leads[len(windows) % len(leads)]))
                cached.append(0)
    progress(tokens, tokens)
    # Windows that have just begun contain no text of the model itself.
    return [each for each, known in zip(windows, cached, strict=True) if known]


def cached_reader(checkpoint: Checkpoint, model: HeadlessGraph) -> Callable[[Parameter, int, int], FloatArray]:
    """Reads rows of parameters; they stay in memory if the model is small."""
    elements = sum(each.rows * (each.columns or 1) for each in model.graph.parameters.values())
    kept: dict[str, FloatArray] = {}

    def read(parameter: Parameter, start: int, stop: int) -> FloatArray:
        if elements > KEPT_ELEMENTS:
            return read_rows(checkpoint, parameter, start, stop)
        if parameter.name not in kept:
            kept[parameter.name] = read_rows(checkpoint, parameter, 0, parameter.rows)
        return kept[parameter.name][start:stop]

    return read
