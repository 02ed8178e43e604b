"""TextModel: the tokenizer and the properties of a model that the text layer uses."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from pathlib import Path

from nearfar.compiler.bundle.entries import ToolFormatEntry
from nearfar.compiler.bundle.folder import Folder
from nearfar.compiler.bundle.manifest import Description, Manifest
from nearfar.compiler.ir.images import ImageSpec
from nearfar.compiler.ir.sounds import SoundSpec
from nearfar.compiler.ir.tasks import ClassifierSpec, EmbeddingSpec
from nearfar.compiler.runtime.errors import RequestError
from nearfar.compiler.runtime.text.reasoning import Reasoning
from nearfar.compiler.runtime.text.tokenizer import Tokenizer
from nearfar.compiler.runtime.text.tool_formats import tool_format

from ..far_prefill.layout import KvLayout, unavailable
from ..schema.tokenize import DetokenizeRequest, DetokenizeResponse, TokenizeRequest, TokenizeResponse
from ..text.requests import check_length
from ..text.vocabulary import Vocabulary, read_vocabulary
from .long_texts import LongTexts


@dataclass(frozen=True)
class TextModel:
    """The properties of a model that the text layer needs. ``name`` is that of requests, ``model`` the one in its
    manifest, which is the same everywhere; of an adapter, both are its own.

    A model has an ``embedding`` with vectors of ``embedding_size`` numbers, a ``classifier``, ``transcribes`` sound, or
    generates text. ``images`` and ``sounds`` say how it reads pictures and sound in chats, None if it does not.
    ``identity`` is equal for models whose vectors can be compared. ``manifest`` is None if there is no bundle.
    """

    name: str
    tokenizer: Tokenizer
    tokenizer_json: Path
    tools: ToolFormatEntry | None
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    embedding: EmbeddingSpec | None = None
    embedding_size: int = 0
    classifier: ClassifierSpec | None = None
    num_token_types: int = 0
    images: ImageSpec | None = None
    sounds: SoundSpec | None = None
    transcribes: bool = False
    identity: str = ""
    model: str = ""
    manifest: Description | None = field(default=None, compare=False)
    long_texts: LongTexts = field(default_factory=LongTexts, compare=False)

    @staticmethod
    def of(bundle: Folder, name: str) -> TextModel:
        """Raises CheckpointError for a tokenizer that cannot be loaded."""
        files, manifest = bundle.tokenizer_files(), bundle.manifest
        tokenizer = Tokenizer(files)
        tokenizer.prepare()
        return TextModel(
            name,
            tokenizer,
            files.where,
            tool_format(files.chat_template),
            manifest.spec.vocab_size,
            tuple(manifest.spec.eos_token_ids),
            manifest.embedding,
            0 if manifest.embedding is None else manifest.embedding.size,
            manifest.classifier,
            manifest.spec.num_token_types,
            manifest.images if manifest.sees else None,
            manifest.sounds if manifest.hears else None,
            manifest.transcribes,
            identity_of(bundle),
            manifest.model,
            manifest,
        )

    @property
    def generates(self) -> bool:
        return self.embedding is None and self.classifier is None and not self.transcribes

    async def tokens_of(self, context: int, text: str, request: TokenizeRequest) -> list[int]:
        """A text that is many times too long for the model is refused, because its tokens would need much memory and
        could not be used. Raises RequestError.
        """

        def encode() -> list[int]:
            check_length(self.tokenizer, text, context, "prompt")
            return self.tokenizer.encode(text, request.add_special_tokens, request.split_special_tokens)

        return await self.long_texts.run(text, "", encode)

    async def tokens_of_prompt(self, context: int, request: TokenizeRequest) -> TokenizeResponse:
        """For a model without chats. Raises RequestError as `tokens_of`, and for messages."""
        if request.messages is not None:
            raise RequestError("this model has no chats; use a model that has a chat template", param="messages")
        if request.prompt is None:
            raise RequestError("prompt is missing; give the text whose tokens to count", param="prompt")
        ids = await self.tokens_of(context, request.prompt, request)
        return TokenizeResponse(tokens=ids, count=len(ids), max_model_len=context)

    async def text_of(self, request: DetokenizeRequest) -> DetokenizeResponse:
        """Raises RequestError."""
        wrong = next((token_id for token_id in request.tokens if not 0 <= token_id < self.vocab_size), None)
        if wrong is not None:
            raise RequestError(
                f"tokens contains id {wrong}; this model's ids are 0 to {self.vocab_size - 1}", param="tokens"
            )
        text = await self.long_texts.run(
            request.tokens, "", lambda: self.tokenizer.decode(request.tokens, skip_special_tokens=False)
        )
        return DetokenizeResponse(prompt=text)

    def read(self) -> None:
        """Read all that is read from files at first use."""
        _ = self.tokenizer_sha256
        if self.generates:
            _ = self.vocabulary

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """Read at first use, which takes a second for the largest vocabularies."""
        spoken = () if self.tools is None else self.tools.tokens
        return read_vocabulary(self.tokenizer_json, self.vocab_size, self.eos_token_ids, spoken)

    @cached_property
    def reasoning(self) -> Reasoning | None:
        """The model's form of reasoning; None if it does not reason."""
        return Reasoning.of(self.tokenizer)

    @cached_property
    def kv_layout(self) -> KvLayout:
        """Raises RequestError ("prefill_unavailable") for a model whose pages cannot be sent to clients."""
        if self.manifest is None:
            raise unavailable("it has no bundle")
        return KvLayout.of(self.manifest)

    @cached_property
    def tokenizer_sha256(self) -> str:
        return sha256(self.tokenizer_json.read_bytes()).hexdigest()


def identity_of(bundle: Folder) -> str:
    """A hash of all that determines a model's vectors: its sizes, its pooling, its weights as packed, its tokenizer."""
    manifest = bundle.manifest
    weights = manifest.shards if isinstance(manifest, Manifest) else manifest.files
    parts = [
        manifest.model_dump_json(include={"spec", "embedding", "tokenizer"}),
        *sorted(entry.sha256 for entry in weights),
    ]
    return sha256("\n".join(parts).encode()).hexdigest()
