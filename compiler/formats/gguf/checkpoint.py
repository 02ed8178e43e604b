"""Opens a GGUF file, or all files of a model that is split into several."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from ...arch import by_model_type, encoder_of
from ...ir.spec import ModelSpec
from ...ir.tasks import ClassifierSpec, EmbeddingSpec
from ...runtime.errors import CheckpointError, UnsupportedModel
from ..checkpoint import Checkpoint
from ..config import ConfigReader, require_skippable
from ..origin import origin_of_gguf
from ..spec_against_tensors import choose_draft_heads, require_sizes
from .architectures import architecture_of, read_config, read_tensors
from .container import Container, StoredTensor, read_container
from .metadata import Metadata
from .names import PART
from .tokenizer import read_tokenizer

SUFFIX = ".gguf"
# The architecture of files with a model's image and audio encoders.
TOWERS = "clip"
MAX_PARTS = 1 << 10


def open_gguf(path: Path, ignore_keys: Collection[str] = ()) -> Checkpoint:
    """The checkpoint in a file. If a model has several files, ``path`` is any of them. Reads and checks everything
    except the tensors' values.

    Raises CheckpointError for a file that is damaged or incomplete, UnsupportedModel for models that we do not compile.
    """
    container = read_parts(path)
    require_skippable(ignore_keys, container.metadata, str(path))
    metadata = Metadata(container, ignore_keys)
    if metadata.architecture == TOWERS:
        raise UnsupportedModel(
            f"{path}: is the image or audio encoder of a model; pass the file with the text model",
            file=str(path),
        )
    architecture = architecture_of(metadata)
    config = read_config(architecture, metadata, container)
    tokenizer, ends = read_tokenizer(metadata, config["vocab_size"], ends_texts=architecture.read_task is not None)
    config |= {"eos_token_id": list(ends), "bos_token_id": metadata.optional_integer("tokenizer.ggml.bos_token_id")}
    spec = spec_of(config, path)
    notes: list[str] = []
    stored = read_tensors(architecture, spec, metadata, container)
    require_sizes(path, spec, stored)
    spec, tensors = choose_draft_heads(path, spec, stored, notes, makes_text=True)
    task = None
    if architecture.read_task is not None:
        task = architecture.read_task(metadata, container, spec, notes.append)
    return Checkpoint(
        path,
        spec,
        tensors,
        tokenizer,
        config,
        notes=tuple(notes),
        embedding=task if isinstance(task, EmbeddingSpec) else None,
        classifier=task if isinstance(task, ClassifierSpec) else None,
        origin=origin_of_gguf(container.metadata, path),
    )


def spec_of(config: Mapping[str, Any], path: Path) -> ModelSpec:
    reader = ConfigReader(config, str(path))
    name = reader.text("model_type")
    return (encoder_of(name) or by_model_type(name)).read_config(reader)


def read_model(path: Path) -> ModelSpec:
    """The spec of a file, without the tokens, which the file need not have. Raises the errors of `open_gguf`."""
    container = read_parts(path)
    metadata = Metadata(container)
    architecture = architecture_of(metadata)
    spec = spec_of(read_config(architecture, metadata, container), path)
    return choose_draft_heads(path, spec, read_tensors(architecture, spec, metadata, container), [], makes_text=True)[0]


def read_parts(path: Path) -> Container:
    """The keys and tensors of a file, or of all files that ``path`` is one of. All keys are in the first of them."""
    match = PART.fullmatch(path.name)
    if match is None:
        container = read_container(path)
        _require_part(container, 0, 1)
        return container
    count = int(match["count"])
    if not 1 <= count <= MAX_PARTS:
        raise CheckpointError(f"{path}: claims to be one of {count} files; rename it", file=str(path))
    names = [f"{match['name']}-{number:05d}-of-{count:05d}{match['suffix']}" for number in range(1, count + 1)]
    parts = [path.with_name(name) for name in names]
    for part in parts:
        if not part.is_file():
            raise CheckpointError(
                f"{part}: is missing, which {path.name} belongs to; download all {count} files", file=str(part)
            )
    first = read_container(parts[0])
    _require_part(first, 0, count)
    tensors: dict[str, StoredTensor] = dict(first.tensors)
    for number, part in enumerate(parts[1:], start=1):
        container = read_container(part)
        _require_part(container, number, count)
        _add(tensors, container.tensors, part)
    expected = first.metadata.get("split.tensors.count")
    if isinstance(expected, int) and expected != len(tensors):
        raise CheckpointError(
            f"{path}: the {count} files have {len(tensors)} tensors, but the first names {expected}; "
            "download all of them again",
            file=str(path),
        )
    return Container(parts[0], first.metadata, tensors)


def _require_part(container: Container, number: int, count: int) -> None:
    """Raises CheckpointError unless the file's metadata has this number and this count of parts."""
    actual = container.metadata.get("split.no", 0), container.metadata.get("split.count", 1) or 1
    if actual != (number, count):
        raise CheckpointError(
            f"{container.path}: is part {actual[0] + 1} of {actual[1]}, but by its name it is part {number + 1} of "
            f"{count}; give the files the names under which they were published",
            file=str(container.path),
        )


def _add(tensors: dict[str, StoredTensor], others: Mapping[str, StoredTensor], part: Path) -> None:
    for name, tensor in others.items():
        if name in tensors:
            raise CheckpointError(
                f"{part}: has tensor {name!r}, which {tensors[name].path.name} has too; download both again",
                file=str(part), tensor=name,
            )  # fmt: skip
        tensors[name] = tensor
