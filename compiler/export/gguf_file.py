"""Exports a bundle as a GGUF file, which llama.cpp runs.

Each matrix keeps its integers and scales in the type that holds them exactly (`gguf_types.py`). Before a weight is
written, the file's header is read as any other GGUF file: its model and its tokenizer must be those of the bundle.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from ..bundle.folder import Bundle
from ..bundle.new_folder import new_file
from ..formats.decoder_tensors import XIELU, XIELU_PARTS, xielu_parts
from ..formats.gguf.architectures import ARCHITECTURES, KNOWN, SHARED, architecture_for, relations_of
from ..formats.gguf.attention import ROTATION
from ..formats.gguf.block_types import BLOCK_TYPES
from ..formats.gguf.checkpoint import open_gguf, read_model
from ..formats.gguf.encoders import ENCODERS
from ..formats.gguf.relations import Axes, Relation, Rows, Values
from ..formats.gguf.tensors import moves_groups
from ..formats.gguf.write_encoders import encoder_metadata, encoder_tokenizer
from ..formats.gguf.write_metadata import model_metadata, rotation_tensors, written_spec
from ..formats.gguf.write_tokenizer import NO_TOKENIZER, tokenizer_metadata
from ..formats.gguf.writer import NUMBER_OF, NewTensor, Value, write_header, write_tensors
from ..ir.spec import ModelSpec
from ..runtime.errors import QuantizationError, RequestError, UnsupportedModel
from ..runtime.text.tokenizer import Tokenizer
from ..runtime.text.tokenizer_files import TokenizerFiles
from .bundle_tensors import BundleTensor, bundle_tensors, has_factors_apart
from .gguf_types import CENTRED, Exact, Inexact, Read, exact_type
from .same_model import differences

Fallback = Literal["f16", "f32"]
Note = Callable[[str], None]
Progress = Callable[[int, int], None]

# Numbers of "general.file_type", by the type of most weights.
FILE_TYPES = {"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "Q5_0": 8, "Q5_1": 9, "MXFP4": 38}
# Tables whose rows llama.cpp adds only as floats.
FLOAT_TABLES = ("position_embd.weight", "token_types.weight")
MASKS = ("<mask>", "[MASK]")
# Architectures in which llama.cpp lets every token see all others, for any window of the model.
WITHOUT_WINDOWS = ("llama", "phi3")


@dataclass(frozen=True, slots=True)
class GgufOptions:
    """``fallback``: the type of the matrices that no type holds exactly; None refuses them. ``pre``: the name of the
    split of words to write, None for the tokenizer's own. ``tokenizer`` False: the file has only weights.
    """

    fallback: Fallback | None = None
    pre: str | None = None
    tokenizer: bool = True
    force: bool = False


def export_gguf(
    bundle: Bundle,
    output: Path,
    options: GgufOptions,
    progress: Progress = lambda *_: None,
    note: Note = lambda _: None,
) -> Mapping[str, int]:
    """Write the file. Returns the number of tensors of each type.

    Raises UnsupportedModel for a model that GGUF cannot express, QuantizationError for a matrix that needs a
    ``fallback``, BundleError and OutputError. After an error, no partial output remains.
    """
    spec = bundle.manifest.spec
    name = architecture_for(spec.model_type)
    if name is None:
        known = sorted({each.model_type for each in KNOWN.values()} | SHARED.keys())
        raise UnsupportedModel(
            f"{bundle.path}: a {spec.model_type} model cannot be exported as GGUF; exported are {', '.join(known)}"
        )
    stored = bundle_tensors(bundle)
    tensors = plan_tensors(bundle, name, stored, options.fallback, note)
    kinds = Counter[str]()
    for tensor in tensors:
        kinds[tensor.kind] += tensor.size_bytes
    metadata: dict[str, Value] = {
        "general.architecture": name,
        "general.type": "model",
        "general.file_type": FILE_TYPES[kinds.most_common(1)[0][0]],
        "general.quantization_version": 2,
    }
    if name in ENCODERS:
        metadata |= encoder_metadata(name, spec, bundle.manifest.embedding or bundle.manifest.classifier)
    else:
        metadata |= model_metadata(name, spec_of_file(bundle)) | keyed_tensors(stored)
    if options.tokenizer and name in ENCODERS:
        metadata |= encoder_tokenizer(bundle.tokenizer_files(), name, spec.vocab_size, options.pre)
    elif options.tokenizer:
        files = bundle.tokenizer_files()
        metadata |= tokenizer_metadata(files, name, spec.vocab_size, spec.eos_token_ids, options.pre)
    else:
        metadata |= NO_TOKENIZER
    metadata |= model_name(bundle.manifest.model, name, metadata)
    with new_file(output, force=options.force) as path:
        offsets = write_header(path, metadata, tensors)
        # A reader of the model needs the numbers of the rotation.
        rotation = [pair for pair in zip(tensors, offsets, strict=True) if pair[0].name in ROTATION]
        write_tensors(path, rotation)
        check_model(path, bundle)
        if options.tokenizer:
            check_tokenizer(path, bundle, options.pre, note)
        write_tensors(path, list(zip(tensors, offsets, strict=True)), progress)
    note_task(bundle, note)
    window = min((each for each in spec.windows if each is not None), default=None)
    if window is not None and name in WITHOUT_WINDOWS and window < spec.max_position_embeddings:
        note(f"llama.cpp does not apply this model's window: beyond {window} tokens, its answers differ")
    return Counter(tensor.kind for tensor in tensors)


def note_task(bundle: Bundle, note: Note) -> None:
    """Report what GGUF has no keys for, and what other programs assume instead."""
    embedding = bundle.manifest.embedding
    if embedding is not None and embedding.prompts:
        names = ", ".join(each.name for each in embedding.prompts)
        note(f"its prompts are left out ({names}): GGUF has no keys for them")
    if embedding is not None and not embedding.normalize:
        note("its vectors have any length, but llama.cpp scales those of all files to length 1")
    if bundle.manifest.classifier is not None:
        note(f"the activation of its scores ({bundle.manifest.classifier.activation}) is left out: llama.cpp has none")


def spec_of_file(bundle: Bundle) -> ModelSpec:
    spec = bundle.manifest.spec
    name = architecture_for(spec.model_type)
    assert name is not None
    return written_spec(name, spec, has_factors_apart=has_factors_apart(bundle.manifest))


def model_name(model: str, architecture: str, metadata: Mapping[str, Value]) -> dict[str, Value]:
    """The name of the model. If it is Phi-3, llama.cpp removes the spaces after control tokens, as Phi-3's tokenizer
    does, and requires these tokens.
    """
    if architecture == "phi3":
        pieces, tokens = metadata["tokenizer.ggml.model"] == "llama", metadata.get("tokenizer.ggml.tokens", ())
        assert isinstance(tokens, Sequence)
        if pieces and {"<unk>", "<s>", "</s>", "<|endoftext|>"} <= set(tokens):
            return {"general.name": model if re.search("phi-?3", model, re.IGNORECASE) else f"Phi-3 {model}"}
        model = re.sub("phi-?3", "phi", model, flags=re.IGNORECASE)
    return {"general.name": model}


def keyed_tensors(tensors: Mapping[str, BundleTensor]) -> dict[str, Value]:
    """The keys whose values are tensors of a bundle: the factors of the activation of each of Apertus' layers."""
    factors = [tensor.rows(np.arange(len(XIELU_PARTS))) for each, tensor in tensors.items() if each.endswith(XIELU)]
    parts = zip(*map(xielu_parts, factors), strict=True)
    return {f"xielu.{key}": np.array(values) for key, values in zip(XIELU_PARTS, parts, strict=bool(factors))}


def plan_tensors(
    bundle: Bundle, name: str, tensors: Mapping[str, BundleTensor], fallback: Fallback | None, note: Note
) -> list[NewTensor]:
    """The file's tensors: those outside of the layers first."""
    spec = spec_of_file(bundle)
    absent = ARCHITECTURES[name].absent if name in ARCHITECTURES else None
    tensors = {each: tensor for each, tensor in tensors.items() if absent is None or not each.endswith(absent)}
    if spec.factors != bundle.manifest.spec.factors or spec.residual_scale != bundle.manifest.spec.residual_scale:
        tensors = {each: tensor.as_stored for each, tensor in tensors.items()}
    if name in ENCODERS:
        tensors = of_bert(bundle.manifest.spec, tensors)
    if KNOWN[name].scaled_ends:
        tensors |= with_scaled_ends(bundle.manifest.spec, tensors)
    relations = {tensor: each for each in relations_of(KNOWN[name], spec) for tensor in each.tensors}
    planned = [
        NewTensor(each, values.shape, "F32", lambda start, stop, values=values: values[start:stop])  # type: ignore[misc]
        for each, values in rotation_tensors(name, spec).items()
    ]
    inexact: list[tuple[BundleTensor, Inexact]] = []
    for theirs in tensors:
        relation = relations.get(theirs)
        missing = theirs if relation is None else next((each for each in relation.tensors if each not in tensors), None)
        if relation is None or missing is not None:
            raise UnsupportedModel(
                f"{bundle.path}: GGUF has no name for tensor {missing} of a {name} model", tensor=missing
            )
        if theirs == relation.tensors[0]:
            planned += plan_relation(relation, [tensors[each] for each in relation.tensors], fallback, inexact)
    if inexact:
        report_inexact(bundle, inexact, fallback, note)
    return sorted(planned, key=lambda tensor: (tensor.name.startswith("blk."), tensor.name.startswith("output")))


def of_bert(spec: ModelSpec, tensors: dict[str, BundleTensor]) -> dict[str, BundleTensor]:
    """The tensors of RoBERTa by BERT's names, with positions from the first one on; others as they are."""
    if not spec.first_position:
        return tensors
    table = "embeddings.position_embeddings.weight"
    heads = {"classifier.dense.": "pooler.dense.", "classifier.out_proj.": "classifier."}
    found = {**tensors, table: tensors[table].after(spec.first_position)}
    for old, new in heads.items():
        found = {new + name.removeprefix(old) if name.startswith(old) else name: each for name, each in found.items()}
    return found


def with_scaled_ends(spec: ModelSpec, tensors: Mapping[str, BundleTensor]) -> Mapping[str, BundleTensor]:
    """The embedding and the head, multiplied by the factors of their results; see `GgufArchitecture.scaled_ends`."""
    factors = {"model.embed_tokens.weight": spec.embedding_scale, "lm_head.weight": spec.logit_scale}
    if spec.tie_word_embeddings and spec.embedding_scale != spec.logit_scale:
        raise UnsupportedModel(
            f"the embedding of this {spec.model_type} model is also its head, and their factors differ "
            f"({spec.embedding_scale} and {spec.logit_scale}), which a GGUF file cannot express"
        )
    return {name: tensors[name].times(factor) for name, factor in factors.items() if name in tensors}


def plan_relation(
    relation: Relation,
    tensors: Sequence[BundleTensor],
    fallback: Fallback | None,
    inexact: list[tuple[BundleTensor, Inexact]],
) -> Iterator[NewTensor]:
    """The file's tensors of a relation. Adds what no type holds exactly to ``inexact``."""
    if relation.values != "same":
        stored = [Exact("F32", partial(changed_rows, each, relation.values)) for each in tensors]
    elif relation.files[0] in FLOAT_TABLES:
        stored = [Exact("F32", each.rows) for each in tensors]
    else:
        stored = of_one_type(relation, tensors, fallback, inexact)
    kinds = {each.kind for each in stored}
    assert len(kinds) == 1, f"{relation.files[0]} has parts in several types"
    rows, *columns = tensors[0].shape
    size = rows * len(tensors) // len(relation.files)
    shape = (size, *columns) if relation.first is None else (relation.first, size // relation.first, *columns)
    # A row of the file is an element of a vector, or several.
    unit = shape[-1] if not columns and len(shape) > 1 else 1
    for index, file in enumerate(relation.files):
        read = partial(read_file_rows, relation, rows, [each.read for each in stored], index * size, unit)
        yield NewTensor(file, shape, kinds.copy().pop(), read)


def of_one_type(
    relation: Relation,
    tensors: Sequence[BundleTensor],
    fallback: Fallback | None,
    inexact: list[tuple[BundleTensor, Inexact]],
) -> list[Exact]:
    """The type that holds all tensors of a relation, such as experts with zero points of their own."""
    found = [in_order_of_file(relation, each, exact_type(each)) for each in tensors]
    kinds = {each.kind for each in found if isinstance(each, Exact)}
    if len(kinds) > 1:
        most = max((bits for bits, kind in CENTRED if kind in kinds), default=0)
        found = [in_order_of_file(relation, each, exact_type(each, most)) for each in tensors]
    exact = [each for each in found if isinstance(each, Exact)]
    if len(exact) == len(found):
        return exact
    pairs = zip(tensors, found, strict=True)
    inexact += [(tensor, each) for tensor, each in pairs if isinstance(each, Inexact)]
    floats = [in_order_of_file(relation, each, fallback_type(each, fallback)) for each in tensors]
    return [each for each in floats if isinstance(each, Exact)]


def in_order_of_file(relation: Relation, tensor: BundleTensor, stored: Exact | Inexact) -> Exact | Inexact:
    if relation.columns is None or isinstance(stored, Inexact):
        return stored
    return with_columns(stored, relation.columns, tensor.shape[1])


def read_file_rows(
    relation: Relation, size: int, reads: Sequence[Read], first: int, unit: int, start: int, stop: int
) -> npt.NDArray[np.generic]:
    """Rows [start, stop) of a file's tensor, whose first row is row ``first`` of the relation, in ``unit`` elements
    each. ``reads`` give those of the checkpoint's tensors, which have ``size`` rows each.
    """
    places: Rows = np.arange(first + start * unit, first + stop * unit)
    if relation.rows is not None:
        places = relation.rows.in_checkpoint(places)
    tensor, row = np.divmod(places, size)
    parts = {index: reads[index](row[tensor == index]) for index in np.unique(tensor)}
    if len(parts) == 1:
        return next(iter(parts.values()))
    some = next(iter(parts.values()))
    result = np.empty((len(places), *some.shape[1:]), some.dtype)
    for index, part in parts.items():
        result[tensor == index] = part
    return result


def changed_rows(tensor: BundleTensor, values: Values, rows: Rows) -> npt.NDArray[np.generic]:
    """Rows of a vector as a file stores them."""
    return tensor.rows(rows, 1.0) if values == "plus_one" else -np.exp(tensor.rows(rows))


def with_columns(stored: Exact, columns: Axes, count: int) -> Exact | Inexact:
    """The matrix with columns in the order of a file, which may not divide blocks."""
    elements = BLOCK_TYPES[NUMBER_OF[stored.kind]].elements
    moved = columns.in_checkpoint(np.arange(count))
    if not moves_groups(moved, elements):
        return Inexact(f"its columns are in the order of heads there, which divides blocks of {elements}")
    blocks = moved[::elements] // elements

    def read(rows: Rows) -> npt.NDArray[np.generic]:
        data = stored.read(rows)
        return data.reshape(len(data), len(blocks), -1)[:, blocks].reshape(data.shape)

    return Exact(stored.kind, read)


def fallback_type(tensor: BundleTensor, fallback: Fallback | None) -> Exact:
    def halves(rows: Rows) -> npt.NDArray[np.generic]:
        values = tensor.rows(rows)
        with np.errstate(over="ignore"):
            rounded = values.astype("<f2")
        if not np.isfinite(rounded).all():
            raise QuantizationError(f"{tensor.name}: has weights that float16 cannot hold; use --fallback f32")
        return rounded

    return Exact("F32", tensor.rows) if fallback == "f32" else Exact("F16", halves)


def report_inexact(
    bundle: Bundle, inexact: list[tuple[BundleTensor, Inexact]], fallback: Fallback | None, note: Note
) -> None:
    """Raises QuantizationError without a fallback."""
    tensor, first = inexact[0]
    assert tensor.form is not None
    what = f"{len(inexact)} matrices, such as {tensor.name} in {tensor.form.name}" if inexact[1:] else tensor.name
    if fallback is None:
        raise QuantizationError(
            f"{bundle.path}: no type of GGUF holds {what} exactly: {first.reason}; use --fallback f32, which is exact "
            "but large, or --fallback f16, which rounds",
            tensor=tensor.name,
        )
    if fallback == "f32":
        note(f"{what} became F32, because {first.reason}")
        return
    error = max(rounding_error(each) for each, _ in inexact)
    note(f"{what} became F16, because {first.reason}; the largest error is {error:.2g} of a matrix's largest weight")


def rounding_error(tensor: BundleTensor) -> float:
    """The largest error of float16, relative to the largest weight."""
    error = largest = 0.0
    step = max(1, (1 << 20) // tensor.shape[1])
    for start in range(0, tensor.shape[0], step):
        values = tensor.rows(np.arange(start, min(start + step, tensor.shape[0])))
        with np.errstate(over="ignore", invalid="ignore"):
            error = max(error, float(np.abs(values.astype(np.float16).astype(np.float32) - values).max()))
        largest = max(largest, float(np.abs(values).max()))
    return error / largest if largest else 0.0


def check_model(path: Path, bundle: Bundle) -> None:
    """Read the model of the file's header. Raises UnsupportedModel if it is not the bundle's."""
    spec, read = spec_of_file(bundle), read_model(path)
    # llama.cpp does not round the factor of Gemma's embedding to the dtype of the training.
    rounded = abs(read.embedding_scale / spec.embedding_scale - 1) < 2**-8
    ignored = ("model_type", "embedding_scale") if rounded else ("model_type",)
    different = differences(spec, read, ignored=ignored)
    if different:
        name = different[0]
        raise UnsupportedModel(
            f"{bundle.path}: GGUF cannot express this {spec.model_type} model: its {name} is {getattr(spec, name)}, "
            f"but a file has {getattr(read, name)}",
            fields=different,
        )


def check_tokenizer(path: Path, bundle: Bundle, pre: str | None, note: Note) -> None:
    """Read the tokenizer of the file's header. Raises UnsupportedModel if it has other tokens; with another split of
    words, or with a space before the token that hides a word, ``note`` reports it.
    """
    files, read = bundle.tokenizer_files(), open_gguf(path).tokenizer
    texts = different_texts(files, read)
    if texts and (mask := takes_space(files)) is not None:
        note(f"the space before {mask} is not part of it there: GGUF has no key for that")
        texts = different_texts(without_space(files), read)
    if not texts:
        return
    if pre is None:
        raise UnsupportedModel(
            f"{bundle.path}: GGUF cannot express this tokenizer: the text {texts[0]!r} has other tokens there; export "
            "only the weights with --no-tokenizer"
        )
    note(f"with the split of words {pre!r}, some texts have other tokens, such as {texts[0]!r}")


def takes_space(files: TokenizerFiles) -> str | None:
    """The token that hides a word from an encoder, if the space before it is part of it."""
    added = json.loads(files.content).get("added_tokens") or []
    return next((each["content"] for each in added if each["content"] in MASKS and each.get("lstrip")), None)


def without_space(files: TokenizerFiles) -> TokenizerFiles:
    content = json.loads(files.content)
    for each in content["added_tokens"]:
        each["lstrip"] = bool(each.get("lstrip")) and each["content"] not in MASKS
    return replace(files, content=json.dumps(content).encode())


# Texts with which two tokenizers are compared.
PROBES = (
    "",
    "The quick brown fox jumps over the lazy dog, twice; isn't that 3,141.59 times too many?",
    "I'LL say we've  TWO   spaces,\ttabs\t\tand\n\nlines\r\n  \n indented.",
    'fn main() { let x_1 = vec![0u8; 1024]; println!("{:?}", x_1); } // 100%',
    " leading, trailing ",
    "   ",
    "\n\n\n",
    "Größe, façade, naïve, Ελλάδα, Привет мир, 你好世界, こんにちは, 안녕하세요, مرحبا, नमस्ते, สวัสดี",
    "cafe\u0301 ﬁne ① ½ \u200b\u00a0| 😀👩‍👩‍👧 ✈️ \u2581x \x00 \x7f",
    "12345678901234567890 0x1F 1e-5 v2.0.1",
)


def different_texts(files: TokenizerFiles, other: TokenizerFiles) -> list[str]:
    """The texts with other ids: prose, code, numbers, many scripts, and every added token between spaces."""
    one, two = Tokenizer(files), Tokenizer(other)
    added = [each["content"] for each in json.loads(files.content).get("added_tokens") or []]
    texts = [*PROBES, *(f"{left}{token}{right}" for token in added[:512] for left, right in (("", "x"), ("a ", " b ")))]
    return [text for text in texts if any(differ(one, two, text, splits) for splits in (True, False))]


def differ(one: Tokenizer, two: Tokenizer, text: str, splits: bool) -> bool:
    """``splits``: control tokens that the text spells are split. One that cannot be is refused, so it is not wrong."""
    try:
        found = [each.encode(text, split_special_tokens=splits) for each in (one, two)]
    except RequestError:
        return False
    return found[0] != found[1]
