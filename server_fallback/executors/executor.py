"""The executors' interface: an executor answers requests for one model; further protocols open executors, and list
those of a process by name.

Our own engine is an executor, and so is another server. Requests and answers are OpenAI's, as the classes of `schema/`;
HTTP, keys and limits are the API's concern. The protocols after `Executor` describe what only some executors have; test
for them with `isinstance`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, runtime_checkable

from nearfar.compiler.ir.tasks import Task
from nearfar.compiler.runtime.audio.transcribe import Transcript
from nearfar.compiler.store.model import StoredModel
from nearfar.compiler.store.names import UnknownModel as UnknownModel

from ..engine.request import TokenSource
from ..engine.stats import EngineStats
from ..engine.verification import Verification, VerifyingSource
from ..far_prefill.blocks import Counts
from ..schema.chat import ChatCompletionRequest
from ..schema.completions import AnswerRequest
from ..schema.decide import DecideRequest, DecideResponse
from ..schema.embeddings import EmbeddingRequest, EmbeddingResponse
from ..schema.models import LoadAdapterRequest, LoadRequest, ModelCard, UnloadAdapterRequest, UnloadRequest
from ..schema.pages import PagesRequest
from ..schema.pipeline import StepTime
from ..schema.prefill import PrefillRequest
from ..schema.receipt import SignedReceipt
from ..schema.rerank import RerankRequest, RerankResponse
from ..schema.score import ClassifyRequest, ClassifyResponse, ScoreRequest, ScoreResponse
from ..schema.tokenize import DetokenizeRequest, DetokenizeResponse, TokenizeRequest, TokenizeResponse
from ..schema.transcription import TranscriptionRequest
from ..schema.verify import VerifyOpen
from ..text.output import Output
from .slots import Slots

# Of a request: the preview that its sender agrees to let leave this machine.
CONFIRM_HEADER = "X-Nearfar-Confirm"


@dataclass(frozen=True, slots=True)
class Call:
    """The context of a request. ``deadline`` is a time of `time.monotonic`; ``headers`` are passed on to other servers
    (traceparent).

    ``client`` identifies the sender, so that work can be shared fairly: "key NAME", or "address IP" if the server has
    no keys (the /64 network for IPv6); "" for calls of the server itself. ``priority`` is final: the requested one,
    limited to what the key allows. For ``expect_tokens``, see `expect`. For each answer, our own executors call
    ``observe_queue`` with the seconds until the device received its first token, and ``observe_token`` with the id of
    each of its tokens. Before that, they call ``observe_prompt_logprobs`` with the log-probabilities of the prompt's
    last tokens, at most 32. Other executors call none of these. ``ignore_param`` is
    called with the name of a parameter that the model lacks, which is then ignored; None makes it an error.
    ``received`` is the body of a request that wants a receipt; our own executors call ``observe_receipt`` with that of
    an answer that was broken off. Far sides call ``observe_request`` with the body that they send. Pipelines call
    ``observe_step`` with each step that has ended, and its start (`time.monotonic`).
    ``confirmed``: what the sender has agreed to let leave this machine, if a policy asks. ``prefill_from``: the server
    that computes the beginning of the prompt, as in `TokenRequest`.
    """

    request_id: str
    priority: int = 0
    deadline: float | None = None
    headers: dict[str, str] = field(default_factory=dict)
    client: str = ""
    expect_tokens: Callable[[int, float], Awaitable[None]] | None = None
    observe_queue: Callable[[float], None] | None = None
    observe_token: Callable[[int], None] | None = None
    observe_prompt_logprobs: Callable[[Sequence[float]], None] | None = None
    observe_step: Callable[[StepTime, float], None] | None = None
    ignore_param: Callable[[str], None] | None = None
    received: dict[str, Any] | None = None
    observe_receipt: Callable[[SignedReceipt], None] | None = None
    observe_request: Callable[[dict[str, Any]], None] | None = None
    confirmed: str | None = None
    prefill_from: str | None = None

    async def expect(self, prompt_tokens: int, most: float = 0) -> None:
        """Every executor calls this once it has read a request, before the first step: with the tokens of the prompts,
        which other servers' executors estimate, and the ``most`` that the answers may have, infinity if nothing limits
        them. Raises the error of a limit that they would exceed.
        """
        if self.expect_tokens is not None:
            await self.expect_tokens(prompt_tokens, most)


@dataclass(frozen=True, slots=True)
class PrefillState:
    """What the prefill workers of a decode worker do: ``answering`` of ``workers`` answer; if they are
    ``required``, long prompts fail without them. All others count from the start: ``transfers`` were begun, which
    brought the pages of ``tokens`` in ``bytes`` within ``seconds``; ``fallbacks`` are prompts that they did not
    complete, by reason.
    """

    workers: int
    answering: int
    required: bool
    transfers: int = 0
    tokens: int = 0
    bytes: int = 0
    seconds: float = 0.0
    fallbacks: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ExecutorState:
    """The current state of an executor. ``memory_bytes`` is the device memory that it uses, None if unknown.
    ``engine``: the figures of our own engine. ``prefill``: those of a decode worker, None for others.
    """

    ready: bool
    detail: str
    running: int = 0
    waiting: int = 0
    memory_bytes: int | None = None
    engine: EngineStats = field(default_factory=lambda: EngineStats(silent_seconds=None))
    prefill: PrefillState | None = None

    @property
    def degraded(self) -> str | None:
        """What does not work although the model is ready; None if all does."""
        prefill = self.prefill
        if not self.ready or prefill is None or prefill.answering > 0:
            return None
        return f"none of {prefill.workers} prefill workers answers; decode workers compute long prompts themselves"

    @staticmethod
    def of(
        engine: EngineStats,
        device: str,
        memory_bytes: int | None,
        *,
        closed: bool,
        prefill: PrefillState | None = None,
    ) -> ExecutorState:
        """The state of an executor with an engine of ours."""
        failure = engine.failure.message if engine.failure is not None else None
        if failure is None and prefill is not None and prefill.required and prefill.answering == 0:
            failure = f"none of {prefill.workers} prefill workers answers"
        return ExecutorState(
            ready=not closed and failure is None,
            detail="closed" if closed else failure or device or "serving",
            running=engine.running,
            waiting=engine.waiting,
            memory_bytes=memory_bytes,
            engine=engine,
            prefill=prefill,
        )


class Executor(Protocol):
    """Answers requests for one model, chunk by chunk; `text/output.py` folds the chunks into a whole answer.

    All methods raise NearfarError's leaves: RequestError (400), QueueFull (429), DeadlineExceeded and Unavailable
    (503), DeviceError (500).
    """

    @property
    def context(self) -> int:
        """The longest sequence in tokens."""

    async def answer(self, request: AnswerRequest, call: Call, output: Output[Any]) -> None:
        """Send the chunks of all choices: those of a chat for a chat. The last has no choices and holds the usage, even
        if not requested. Cancelling this ends the answer.
        """

    async def embed(self, request: EmbeddingRequest, call: Call) -> EmbeddingResponse: ...

    async def tokenize(self, request: TokenizeRequest) -> TokenizeResponse: ...

    async def detokenize(self, request: DetokenizeRequest) -> DetokenizeResponse: ...

    def state(self) -> ExecutorState: ...

    async def close(self) -> None:
        """End all running requests and free the memory."""


# --- interfaces of some executors ---


@dataclass(frozen=True, slots=True)
class Abilities:
    """The features of a model. ``tokenizer_sha256`` is the hash of tokenizer.json, None if answers may come from
    different tokenizers.

    ``tools``: the model writes tool calls. ``embeds``: it makes embeddings or scores, and no text.
    ``verify``: it checks drafts of clients. ``prefill``: it computes prompts for them. ``vision``: it reads images.
    ``video``: it reads videos. ``sound``: it reads sound, and nothing else. ``hears``: it answers about recordings in
    chats, of at most ``hears_seconds`` if that is not None. ``model`` is its name in its manifest, None for models that
    are not one, and ``chat_template`` the source of its template. ``thinks``: it reasons between markers. ``task`` is
    what it is for, and ``identity`` a hash of its weights, sizes and tokenizer, None if it is not known.
    """

    tokenizer_sha256: str | None
    vocab_size: int | None
    tools: bool
    embeds: bool
    verify: bool = False
    prefill: bool = False
    vision: bool = False
    video: bool = False
    sound: bool = False
    hears: bool = False
    hears_seconds: float | None = None
    model: str | None = None
    chat_template: str | None = None
    thinks: bool = False
    task: Task = "generate"
    identity: str | None = None


@runtime_checkable
class HasStored(Protocol):
    """An executor of a model that may be the store's: then its requests inherit what ``stored`` has."""

    @property
    def stored(self) -> StoredModel | None: ...


@runtime_checkable
class TellsAbilities(Protocol):
    """Our own engine and pairs of sides have this; another server does not report its abilities."""

    def abilities(self) -> Abilities: ...


@runtime_checkable
class CachesPrefixes(Protocol):
    """An executor whose prompts start from what earlier ones have computed: our own engine."""

    async def reset_prefix_cache(self) -> None:
        """Let no later request use what was computed before."""


@runtime_checkable
class SendsPages(Protocol):
    """An executor that computes prompts for other servers: our own engine."""

    def pages(self, request: PagesRequest, call: Call) -> AsyncGenerator[bytes, None]:
        """The parts of the answer of /v1/nearfar/pages. Raises RequestError for a model without pages, or another
        one than the client's; reading the parts raises the errors of the engine.
        """


@runtime_checkable
class HasSlots(Protocol):
    """An executor of our own engine. ``slots`` is None on a server without a folder for them; ``adapter`` is the name
    of the LoRA adapter that reads its prompts.
    """

    @property
    def context(self) -> int: ...

    @property
    def slots(self) -> Slots | None: ...

    @property
    def adapter(self) -> str | None: ...


@runtime_checkable
class HasAdapters(Protocol):
    """An executor of a model that may have LoRA adapters."""

    def with_adapter(self, name: str, identity: str) -> Executor:
        """Return an executor that applies a loaded adapter, whose hash is ``identity``; its `close` closes nothing."""


@runtime_checkable
class TakesAdapters(HasAdapters, Protocol):
    """An executor that loads LoRA adapters."""

    async def load_adapter(self, name: str, path: str) -> str:
        """Return its hash. Raises CheckpointError if the folder holds no adapter, RequestError if the adapter does not
        fit the model.
        """

    async def unload_adapter(self, name: str) -> None:
        """Unload the adapter after its running requests have ended."""


@runtime_checkable
class Verifies(Executor, Protocol):
    """An executor that checks drafts of clients: our own engine."""

    @property
    def max_drafts(self) -> int:
        """The most drafts of one message; 0 if the model does not check drafts."""

    def verification(self, request: VerifyOpen, call: Call) -> Verification:
        """Raises RequestError for another tokenizer ("tokenizer_differs"), a prompt that does not fit, or a model that
        does not check drafts.
        """


@runtime_checkable
class Prefills(Executor, Protocol):
    """An executor that computes prompts for clients with the same model: our own engine."""

    def prefill(self, request: PrefillRequest, call: Call, counts: Counts) -> AsyncGenerator[bytes, None]:
        """The blocks that `schema/prefill.py` describes; ``counts`` are kept while they are made. Raises RequestError
        for another tokenizer ("tokenizer_differs"), a prompt that does not fit or has no whole pages, or a model whose
        pages cannot be sent ("prefill_unavailable"), here or with the first block.
        """


@runtime_checkable
class Drafts(Executor, Protocol):
    """An executor whose model can draft tokens for another server: our own engine."""

    @property
    def drafter(self) -> VerifyingSource:
        """The engine, which the executor still owns."""

    async def answer_from(
        self, source: TokenSource, request: ChatCompletionRequest, call: Call, output: Output[Any]
    ) -> None:
        """Like `Executor.answer`, with the tokens of another source: prompts, texts, stop strings and chunks are this
        model's.
        """


@runtime_checkable
class Decides(Protocol):
    """An executor of a model that answers typed questions. Raises the errors of `Executor`."""

    async def decide(self, request: DecideRequest, call: Call) -> DecideResponse: ...


@runtime_checkable
class Ranks(Protocol):
    """An executor of an embedding model, a reranker or a classifier. Raises the errors of `Executor`."""

    async def rerank(self, request: RerankRequest, call: Call) -> RerankResponse: ...

    async def score(self, request: ScoreRequest, call: Call) -> ScoreResponse: ...

    async def classify(self, request: ClassifyRequest, call: Call) -> ClassifyResponse: ...


@dataclass(frozen=True, slots=True)
class Recording:
    """A file of sound: its content, and the ``name`` that errors give. ``translate``: into English. Longer sound than
    ``max_seconds`` is refused.
    """

    data: bytes
    name: str
    translate: bool = False
    max_seconds: float | None = None


Heard: TypeAlias = Callable[[str], None]


@runtime_checkable
class Transcribes(Protocol):
    """An executor of a model that transcribes sound. Raises the errors of `Executor`, and ToolError for a kind of file
    whose decoder is not installed.
    """

    async def transcribe(
        self, recording: Recording, request: TranscriptionRequest, call: Call, heard: Heard | None = None
    ) -> Transcript:
        """The transcript of a recording. ``heard`` is called on this event loop with the text of each window that has
        become final; together they are the transcript's, but for spaces around it.
        """


# --- opening and naming executors ---


@dataclass(frozen=True, slots=True)
class Opening:
    """A model that can be opened. ``memory_bytes`` is None if this process will not hold the model. ``answers_at_once``
    is how many answers it can run and queue, None if that is not known.

    ``open`` may take minutes. If it fails, it leaves nothing open. ``release`` is called when the model is closed, or
    is not opened.
    """

    name: str
    memory_bytes: int | None
    open: Callable[[], Awaitable[Executor]]
    task: Task = "generate"
    answers_at_once: int | None = None
    release: Callable[[], None] = lambda: None


class Opener(Protocol):
    async def prepare(self, model: str, name: str | None) -> Opening:
        """Find a model, and compile it if necessary. Raises RequestError and others for a model that cannot be
        served.
        """


@dataclass(frozen=True, slots=True)
class SleepRequest:
    """Free the memory of a model, which keeps its names."""

    model: str


@dataclass(frozen=True, slots=True)
class WakeRequest:
    """Open a model again that sleeps."""

    model: str


ModelChange = LoadRequest | UnloadRequest | LoadAdapterRequest | UnloadAdapterRequest | SleepRequest | WakeRequest


class Models(Protocol):
    """The executors of one process by the names in requests: models, aliases and adapters share one name space.

    The API knows executors by this interface only. Many tasks of one event loop may call it.
    """

    def cards(self) -> Sequence[ModelCard]:
        """All names that requests may use now, with aliases and adapters."""

    def states(self) -> Mapping[str, ExecutorState]:
        """The state of each model (no aliases, no adapters); models that are still loading are not ready. Cheap: read
        for every scrape.
        """

    def answers_at_once(self, name: str) -> int | None:
        """The number of answers that the model with this name can run and queue; None if it is not known. Raises
        UnknownModel.
        """

    async def executor(self, name: str) -> Executor:
        """The executor for a name; an adapter's executor applies the adapter. Raises UnknownModel, and Unavailable for
        a model that still loads or sleeps. Returns at once; `using` is for a request, which needs it for a time.
        """

    def using(self, name: str) -> AbstractAsyncContextManager[Executor]:
        """As `executor`, for a model that stays open in the context, however it is unloaded or sent to sleep
        meanwhile.
        """

    async def change(self, change: ModelChange) -> ModelCard | None:
        """Load or unload a model or an adapter. Returns the card of what was loaded.

        A load returns when the model is ready. It raises RequestError for a name in use, an invalid folder or an
        adapter that does not fit, BundleError and CheckpointError, and Unavailable if the memory does not suffice;
        after a failure nothing of the model remains. An unload waits for the running requests, then frees the memory;
        an alias loses only its name. A model that sleeps refuses requests ("model_asleep") and holds no memory; a
        sleep waits for running requests too. Both wait for ten minutes at most. Raises UnknownModel for a model or an
        adapter that is not loaded.
        """

    async def close(self, drain_seconds: float) -> None:
        """Refuse new models, wait at most this long for running requests, then close every executor."""


@runtime_checkable
class LoadsOnUse(Models, Protocol):
    """Models that are loaded when a request needs them, and unloaded later. `using` raises what loading raises."""

    def keep(self, name: str, seconds: float) -> None:
        """How long the model stays loaded after its last request; infinity for ever. Without effect on a model that is
        not loaded, or was loaded otherwise.
        """
