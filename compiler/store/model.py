"""StoredModel: a model of the store, as its record on disk has it: where its weights are, and what requests inherit."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, ValidationError, field_serializer, field_validator

from ..bundle.entries import Entry, FileName, Sha256
from ..bundle.manifest import MANIFEST_FILE
from ..ir.expr import Natural
from ..names import GGUF_QUANTIZATIONS, QUANTIZATIONS
from ..nearest import did_you_mean
from ..runtime.errors import CheckpointError, RequestError
from .details import Details
from .names import StoreName
from .parameters import Parameters

# A record may have conversations and licenses, but no weights.
MAX_RECORD_BYTES = 16 << 20


class StoredFile(Entry):
    sha256: Sha256
    size: Natural


class Files(Entry):
    """Files that the store holds. ``folder`` is that of their hashes, and in it one with the model's name. ``file`` is
    the one of them that is the model, such as a GGUF file; None for the folder.
    """

    kind: Literal["files"] = "files"
    folder: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{24}/[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}$")]
    files: Annotated[dict[FileName, StoredFile], Field(min_length=1)]
    file: FileName | None = None

    @property
    def is_bundle(self) -> bool:
        return self.file is None and MANIFEST_FILE in self.files

    @property
    def size_bytes(self) -> int:
        return sum(each.size for each in self.files.values())


class HubFiles(Entry):
    """Files in the cache of the Hugging Face Hub, which other programs share. ``model`` is the hub's name with the
    choice of a file, and ``path`` the folder or file that it stood for.

    ``fetched``: they were not there before the store downloaded them, so they are removed with the model.
    """

    kind: Literal["hub"] = "hub"
    model: str
    path: str
    size_bytes: Natural
    fetched: bool


class Demo(Entry):
    """A model that comes with nearfar."""

    kind: Literal["demo"] = "demo"
    name: str
    size_bytes: Natural


Source = Annotated[Files | HubFiles | Demo, Field(discriminator="kind")]


class StoredMessage(Entry):
    role: Literal["system", "user", "assistant"]
    content: str


class StoredModel(Entry):
    """``created`` is UTC in ISO 8601. ``parent`` names the model that it was derived from. ``quantization``: the format
    to compile a checkpoint with, None for the default.

    Requests inherit the others: the ``system`` message if they have none, ``messages`` before their own, and
    ``parameters`` that they do not give. ``template`` replaces the chat template, as it was written, in Jinja or Go's
    form; ``adapter`` is a LoRA adapter in PEFT's format.
    """

    format_version: Literal[1] = 1
    name: str
    created: str
    source: Source
    details: Details
    parent: str | None = None
    quantization: str | None = None
    system: str | None = None
    template: str | None = None
    parameters: Parameters = Parameters()
    messages: tuple[StoredMessage, ...] = ()
    adapter: Files | None = None
    license: tuple[str, ...] = ()

    @field_validator("name")
    @classmethod
    def _is_a_name(cls, name: str) -> str:
        parsed = StoreName.parse_or_none(name)
        if parsed is None:
            raise ValueError("is not a name of a stored model")
        return str(parsed)

    @field_validator("created")
    @classmethod
    def _is_a_time(cls, created: str) -> str:
        datetime.fromisoformat(created)
        return created

    @field_serializer("parameters")
    def _given(self, parameters: Parameters) -> dict[str, Any]:
        return parameters.given()

    @property
    def store_name(self) -> StoreName:
        return StoreName.parse(self.name)

    @property
    def modified(self) -> datetime:
        return datetime.fromisoformat(self.created)

    @property
    def is_bundle(self) -> bool:
        return isinstance(self.source, Files) and self.source.is_bundle

    @property
    def size_bytes(self) -> int:
        """Of its files, without bundles that were compiled from them."""
        return self.source.size_bytes + (0 if self.adapter is None else self.adapter.size_bytes)

    @property
    def inherits(self) -> bool:
        """Whether requests inherit anything."""
        return self.system is not None or bool(self.messages) or bool(self.parameters.given())

    @property
    def engine_key(self) -> str:
        """Equal for models that can share one engine: they differ only in what requests inherit."""
        parts = {"source", "quantization", "template", "adapter"}
        data = self.model_dump(mode="json", include=parts) | {"num_ctx": self.parameters.num_ctx}
        return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()

    @property
    def digest(self) -> str:
        """The SHA-256 of everything but its name and its time, as clients of Ollama compare it."""
        data = self.model_dump(mode="json", exclude={"name", "created"})
        return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Changes:
    """What a derived model has of its own; None or empty: what its base has. ``adapter`` is a folder in PEFT's
    format.
    """

    system: str | None = None
    template: str | None = None
    parameters: Parameters = field(default_factory=Parameters)
    messages: tuple[StoredMessage, ...] = ()
    adapter: Path | None = None
    license: tuple[str, ...] = ()
    quantization: str | None = None


def quantization_of(name: str) -> str:
    """The format with this name, which may be that of a GGUF file, as clients of Ollama name it. Raises
    RequestError.
    """
    found = name if name in QUANTIZATIONS else GGUF_QUANTIZATIONS.get(name.lower())
    if found is None:
        raise unknown_quantization(name)
    return found


def unknown_quantization(name: str, where: str = "") -> RequestError:
    others = [f"{theirs.upper()} for {ours}" for theirs, ours in GGUF_QUANTIZATIONS.items() if theirs != ours]
    return RequestError(
        f"{where}the quantization {name[:40]!r} is not known{did_you_mean(name, QUANTIZATIONS) or ';'} known: "
        f"{', '.join(QUANTIZATIONS)}, and {' and '.join(others)}",
        param="quantize",
    )


def require_possible(model: StoredModel) -> None:
    """Raises RequestError for a quantization or a context that the model's files cannot have, so that it is refused
    before any request needs it.
    """
    details, context = model.details, model.parameters.num_ctx
    if context is not None and context > details.context:
        raise RequestError(
            f"{model.name}: num_ctx is {context}, but the model's context is {details.context} tokens; give at most "
            "that",
            param="num_ctx",
        )
    if model.quantization is None:
        return
    if model.quantization not in QUANTIZATIONS:
        raise unknown_quantization(model.quantization, f"{model.name}: ")
    if details.format == "bundle" or details.is_quantized:
        state = "are compiled already" if details.format == "bundle" else "are quantized already"
        raise RequestError(
            f"{model.name}: the quantization {model.quantization} is not possible, because the weights {state} "
            f"({details.quantization}); leave it out, or begin with the original model",
            param="quantize",
        )


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds")


def written_record(model: StoredModel) -> bytes:
    """The bytes of its record. Raises RequestError for one that `read_record` would refuse."""
    try:
        data = json.dumps(model.model_dump(mode="json"), indent=1, ensure_ascii=False).encode() + b"\n"
    except UnicodeEncodeError as error:
        raise RequestError(
            f"{model.name}: a text of its files or its changes has half of a surrogate pair; correct it", param="model"
        ) from error
    if len(data) > MAX_RECORD_BYTES:
        raise RequestError(
            f"{model.name}: its templates, messages and licenses take {len(data):,} bytes; at most "
            f"{MAX_RECORD_BYTES:,} are supported",
            param="model",
        )
    return data


def read_record(path: Path) -> StoredModel:
    """The record in a file. Raises CheckpointError for one that is damaged, or whose name is not that of the file, and
    FileNotFoundError.
    """
    advice = "remove the file, or restore it"
    try:
        if path.is_symlink() or path.stat().st_size > MAX_RECORD_BYTES:
            raise CheckpointError(f"{path}: is a link or too large for a record of a stored model; {advice}")
        model = StoredModel.model_validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "it"
        raise CheckpointError(f"{path}: {place}: {first['msg']}; {advice}") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: is not a record of a stored model ({error}); {advice}") from error
    if model.store_name.file != path.name:
        raise CheckpointError(f"{path}: has the record of {model.name!r}, which belongs into another file; {advice}")
    return model
