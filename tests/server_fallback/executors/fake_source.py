"""A model that generates a given text, one token for each byte, and executors that use it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path

import numpy as np

from nearfar.compiler.ir.tasks import ClassifierSpec, EmbeddingSpec
from nearfar.compiler.runtime.batch import FloatArray
from nearfar.compiler.runtime.errors import NearfarError
from nearfar.compiler.runtime.text.tokenizer import Tokenizer
from nearfar.compiler.runtime.text.tokenizer_files import TokenizerFiles
from nearfar.compiler.runtime.text.tool_formats import tool_format
from nearfar.server_fallback.engine.encode_job import EncodeRequest
from nearfar.server_fallback.engine.request import (
    AnswerEnd,
    FinishReason,
    GeneratedToken,
    PromptLogprobs,
    TokenLogprob,
    TokenRequest,
)
from nearfar.server_fallback.engine.stats import BatchRecord, EngineStats
from nearfar.server_fallback.executors.local import LocalExecutor
from nearfar.server_fallback.executors.text_model import TextModel

# The comment identifies a template that writes calls in Hermes' form.
TEMPLATE = "{# tools: <tool_call> #}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}[assistant]"
END = 257
VOCAB_SIZE = 260
# The markers of a model that reasons.
OPEN, CLOSE = 259, 260
# Like Qwen3: the switch closes the reasoning in the prompt, and messages include earlier reasoning.
HYBRID = (
    "{# tools: <tool_call> #}{% for m in messages %}[{{ m.role }}]"
    "{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}{{ m.content }}{% endfor "
    "%}[assistant]"
    "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}"
)

# Like DeepSeek R1: the prompt opens the reasoning, and nothing disables it.
OPENED = "{# </think> #}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}[assistant]{{ '<think>\n' }}"


class FakeSource:
    """Generates ``answers`` in turn, and then repeats the last one. Under a constraint, it generates the answer's byte
    if allowed, else the first allowed byte. Token ids are bytes, END ends an answer.
    """

    def __init__(self, *answers: str | Sequence[int], failure: Exception | None = None) -> None:
        self.answers = [list(answer.encode() if isinstance(answer, str) else answer) for answer in answers]
        self.failure = failure
        self.requests: list[TokenRequest] = []
        self.running = 0
        self.most = 0
        self.tokens = 0
        self.closed = False

    @property
    def context(self) -> int:
        return 4096

    @property
    def max_drafts(self) -> int:
        return 8

    def arrive(self) -> int:
        return len(self.requests)

    async def generate(
        self, request: TokenRequest
    ) -> AsyncGenerator[PromptLogprobs | GeneratedToken | AnswerEnd, None]:
        answer = self.answers[min(len(self.requests), len(self.answers) - 1)]
        self.requests.append(request)
        self.running += 1
        self.most = max(self.most, self.running)
        count, limit = 0, min(request.max_tokens or 4096, 4096 if request.drafts is None else len(request.drafts) + 1)
        reason: FinishReason = "stop"
        try:
            if request.prompt_logprobs > 0:
                first = max(1, len(request.prompt_ids) - request.prompt_logprobs)
                yield PromptLogprobs(
                    tuple(
                        GeneratedToken(token_id, -2.0, alternatives_of(token_id, request.prompt_alternatives, -1.0))
                        for token_id in request.prompt_ids[first:]
                    )
                )
            while True:
                await asyncio.sleep(0)
                if self.failure is not None:
                    raise self.failure
                token_id = self.choose(request, answer[count] if count < len(answer) else END)
                if token_id == END:
                    break
                if count == limit:
                    reason = "length"
                    break
                if request.constraint is not None:
                    request.constraint.accept(token_id)
                count += 1
                self.tokens += 1
                alternatives = alternatives_of(token_id, request.logprobs or 0, -1.0)
                yield GeneratedToken(token_id, None if request.logprobs is None else -1.0, alternatives)
            ended = GeneratedToken(END, None if request.logprobs is None else -0.5) if reason == "stop" else None
            yield AnswerEnd(reason, len(request.prompt_ids), count, 3, 0.5, 0.1, 0.2, ended)
        finally:
            self.running -= 1

    def choose(self, request: TokenRequest, wanted: int) -> int:
        mask = None if request.constraint is None else request.constraint.mask()
        if mask is None:
            return wanted
        allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
        return wanted if wanted in allowed else int(allowed[-1] if END in allowed else allowed[0])

    def stats(self) -> EngineStats:
        return EngineStats(
            running=self.running,
            kv_usage=0.25,
            kv_waste=0.125,
            prefix_queries=10,
            prefix_hits=4,
            preemptions=1,
            drafted_tokens=6,
            accepted_tokens=3,
        )

    async def close(self, drain_seconds: float = 0.0, reason: NearfarError | None = None) -> None:  # noqa: ARG002
        self.closed = True


def alternatives_of(token_id: int, count: int, best: float) -> tuple[TokenLogprob, ...]:
    return tuple(TokenLogprob((token_id + rank) % 256, best - rank) for rank in range(count))


class FakeEncoder:
    """Encodes a text as the row (3, 4, number of tokens), or as the rows of ``encode``, and records the requests."""

    context = 4096

    def __init__(self, encode: Callable[[Sequence[int], Sequence[int]], list[list[float]]] | None = None) -> None:
        self.requests: list[EncodeRequest] = []
        self._encode = encode or (lambda ids, _: [[3.0, 4.0, len(ids)]])

    async def encode(self, request: EncodeRequest) -> FloatArray:
        self.requests.append(request)
        types = request.token_types or [[0] * len(ids) for ids in request.texts]
        rows = [row for ids, own in zip(request.texts, types, strict=True) for row in self._encode(ids, own)]
        return np.array(rows, np.float32)

    def stats(self) -> EngineStats:
        return EngineStats(batches=BatchRecord().snapshot())

    async def close(self, drain_seconds: float = 0.0, reason: NearfarError | None = None) -> None: ...


def byte_tokenizer(folder: Path, markers: Sequence[str] = (), *, special: bool = False) -> Path:
    """The path of a tokenizer.json whose ids 0 to 255 are the bytes; 256 and 257 are special tokens, 258 is not. The
    ``markers`` follow, as ``special`` tokens or others; without them 259 is not a token.
    """
    from tokenizers import AddedToken, decoders, models, pre_tokenizers
    from tokenizers import Tokenizer as Backend

    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in printable]
    names = {chr(byte): byte for byte in printable} | {chr(256 + index): byte for index, byte in enumerate(hidden)}
    backend = Backend(models.BPE(vocab=names, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<s>", "</s>"])
    backend.add_tokens(
        [AddedToken("<tool>", special=False), *(AddedToken(marker, special=special) for marker in markers)]
    )
    path = folder / "tokenizer.json"
    backend.save(str(path))
    assert json.loads(path.read_text())["added_tokens"][1]["id"] == END
    return path


def text_model(
    folder: Path,
    template: str | None = TEMPLATE,
    embedding: EmbeddingSpec | None = None,
    classifier: ClassifierSpec | None = None,
    markers: Sequence[str] = (),
    *,
    special: bool = False,
) -> TextModel:
    path = byte_tokenizer(folder, markers, special=special)
    return TextModel(
        name="fake",
        tokenizer=Tokenizer(TokenizerFiles.at(path, chat_template=template)),
        tokenizer_json=path,
        tools=tool_format(template),
        vocab_size=VOCAB_SIZE + len(markers),
        eos_token_ids=(END,),
        embedding=embedding,
        embedding_size=3,
        classifier=classifier,
        num_token_types=2,
    )


def executor(folder: Path, *answers: str, template: str | None = TEMPLATE) -> tuple[LocalExecutor, FakeSource]:
    source = FakeSource(*answers)
    return LocalExecutor(source, text_model(folder, template)), source


def reasoner(
    folder: Path, *answers: str, template: str = HYBRID, special: bool = False
) -> tuple[LocalExecutor, FakeSource]:
    source = FakeSource(*map(ids, answers))
    return LocalExecutor(source, text_model(folder, template, markers=("<think>", "</think>"), special=special)), source


def ids(text: str) -> list[int]:
    """With the markers' tokens."""
    found: list[int] = []
    for index, part in enumerate(text.replace("</think>", "<think>").split("<think>")):
        if index:
            found.append(OPEN if text[len(text_of(found)) :].startswith("<think>") else CLOSE)
        found += part.encode()
    return found


def text_of(token_ids: Sequence[int]) -> str:
    names = {OPEN: b"<think>", CLOSE: b"</think>"}
    return b"".join(names.get(token_id) or bytes([token_id]) for token_id in token_ids).decode()
