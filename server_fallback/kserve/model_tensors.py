"""The inputs and outputs of a model as tensors of the protocol.

A text is one element of ``text``, BYTES of shape (n) or (n, 1), with its second text in ``text_pair``; or a row of
``input_ids``, INT32 or INT64 of shape (n, S), whose padding has 0 in ``attention_mask``. Outputs are ``embeddings``
(n, E), as /v1/embeddings returns them, ``scores`` (n, labels) after the model's activation, or ``token_scores``
(n, S, labels), which are 0 for padding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nearfar.compiler.runtime.batch import FloatArray
from nearfar.compiler.runtime.encoding import probabilities
from nearfar.compiler.runtime.errors import RequestError
from nearfar.compiler.runtime.text.prompts import prompt_text
from nearfar.compiler.runtime.text.tokenizer import EncodedText

from ..executors.encoder_executor import EncoderExecutor
from ..executors.executor import Call, Executor
from ..schema.encoding import EncodingRequest
from ..text.encoder_texts import TextReader
from ..text.requests import check_prompt
from ..text.scores import shortened
from .tensors import Tensor

PLATFORM = "nearfar"
VERSION = "1"
TEXT, PAIR, IDS, MASK, TYPES = "text", "text_pair", "input_ids", "attention_mask", "token_type_ids"


@dataclass(frozen=True, slots=True)
class TensorForm:
    """-1 stands for any size."""

    name: str
    datatype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ModelForm:
    """``inputs`` are all that the model accepts: either texts or token ids are needed. ``output`` is its only one."""

    inputs: tuple[TensorForm, ...]
    output: TensorForm


def form_of(executor: Executor) -> ModelForm | None:
    """None for a model that is not served over this protocol."""
    if not isinstance(executor, EncoderExecutor):
        return None
    model = executor.model
    inputs = [TensorForm(TEXT, "BYTES", (-1,))]
    if model.classifier is not None and model.classifier.relevance is not None:
        inputs.append(TensorForm(PAIR, "BYTES", (-1,)))
    inputs += [TensorForm(name, "INT64", (-1, -1)) for name in (IDS, MASK)]
    if model.num_token_types > 0:
        inputs.append(TensorForm(TYPES, "INT64", (-1, -1)))
    if model.classifier is None:
        output = TensorForm("embeddings", "FP32", (-1, model.embedding_size))
    elif model.classifier.per_token:
        output = TensorForm("token_scores", "FP32", (-1, -1, len(model.classifier.labels)))
    else:
        output = TensorForm("scores", "FP32", (-1, len(model.classifier.labels)))
    return ModelForm(tuple(inputs), output)


def encoder_of(executor: Executor, name: str) -> EncoderExecutor:
    """Raises RequestError for a model that is not served over this protocol."""
    if not isinstance(executor, EncoderExecutor):
        raise RequestError(
            f"{name}: only embedding models, rerankers and classifiers on this machine are served over this protocol; "
            "use /v1/chat/completions"
        )
    return executor


async def infer(
    executor: EncoderExecutor, inputs: Sequence[Tensor], call: Call, *, truncate: bool, max_texts: int
) -> Tensor:
    """The output of a model for these inputs. Raises RequestError, and the errors of `EncoderExecutor.encode`."""
    form = form_of(executor)
    assert form is not None
    given = {tensor.name: tensor for tensor in inputs}
    if len(given) != len(inputs):
        raise RequestError("an input is given twice")
    known = [one.name for one in form.inputs]
    for name in given:
        if name not in known:
            raise RequestError(f"unknown input {name[:100]!r}; this model has {', '.join(known)}", param=name)
    if (TEXT in given) == (IDS in given):
        raise RequestError(f"give either {TEXT} or {IDS}", param=TEXT)
    masks = None
    if TEXT in given:
        texts = await _read_texts(executor, given, call.client, truncate=truncate, max_texts=max_texts)
    else:
        texts, masks = _read_ids(executor, given, max_texts)
    rows = await executor.encode(texts, call)
    return Tensor.of(form.output.name, _output(executor, rows, texts, masks))


def _output(
    executor: EncoderExecutor, rows: FloatArray, texts: Sequence[EncodedText], masks: list[Any] | None
) -> FloatArray:
    spec, classifier = executor.model.embedding, executor.model.classifier
    if spec is not None:
        return shortened(rows, spec, None)
    assert classifier is not None
    scores = probabilities(rows, classifier)
    if not classifier.per_token:
        return scores
    lengths = [len(text.ids) for text in texts]
    longest = max(lengths) if masks is None else len(masks[0])
    padded = np.zeros((len(texts), longest, scores.shape[1]), np.float32)
    parts = np.split(scores, np.cumsum(lengths)[:-1])
    for index, part in enumerate(parts):
        padded[index, slice(lengths[index]) if masks is None else masks[index]] = part
    return padded


async def _read_texts(
    executor: EncoderExecutor, given: Mapping[str, Tensor], client: str, *, truncate: bool, max_texts: int
) -> list[EncodedText]:
    model = executor.model
    if others := [name for name in given if name not in (TEXT, PAIR)]:
        raise RequestError(f"{others[0]} goes with {IDS}, not with {TEXT}", param=others[0])
    firsts = _strings(given[TEXT], max_texts)
    reader = TextReader.of(
        EncodingRequest(model=model.name, truncate=truncate), model.tokenizer, model.vocab_size, executor.context
    )
    if PAIR in given:
        seconds = _strings(given[PAIR], max_texts)
        if len(seconds) != len(firsts):
            raise RequestError(f"{TEXT} has {len(firsts)} texts and {PAIR} has {len(seconds)}", param=PAIR)
        pairs = list(zip(firsts, seconds, strict=True))
        classifier = model.classifier
        assert classifier is not None
        return await model.long_texts.run(
            pairs,
            client,
            lambda: reader.pairs(pairs, [f"{PAIR}[{index}]" for index in range(len(pairs))], None, classifier),
        )
    if model.classifier is not None and model.classifier.relevance is not None:
        raise RequestError(f"this model scores pairs of texts; give {PAIR} too", param=PAIR)
    prefix = "" if model.embedding is None else prompt_text(model.embedding, None)
    return await model.long_texts.run(firsts, client, lambda: reader.texts(firsts, TEXT, prefix))


def _strings(tensor: Tensor, max_texts: int) -> list[str]:
    shape, name = tensor.shape, tensor.name
    if tensor.datatype != "BYTES" or len(shape) > 2 or (len(shape) == 2 and shape[1] != 1):
        raise RequestError(f"input {name!r} must be BYTES of shape [n] or [n, 1]", param=name)
    _check_count(name, shape[0], max_texts)
    assert isinstance(tensor.data, list)
    try:
        return [element.decode() for element in tensor.data]
    except UnicodeDecodeError:
        raise RequestError(f"input {name!r} has bytes that are not UTF-8", param=name) from None


def _read_ids(
    executor: EncoderExecutor, given: Mapping[str, Tensor], max_texts: int
) -> tuple[list[EncodedText], list[Any]]:
    """The texts without padding, and where the tokens of each one are."""
    for name, tensor in given.items():
        if tensor.datatype not in ("INT32", "INT64") or len(tensor.shape) != 2:
            raise RequestError(f"input {name!r} must be INT32 or INT64 of shape [n, S]", param=name)
        if tensor.shape != given[IDS].shape:
            raise RequestError(f"input {name!r} must have the shape of {IDS}, {list(given[IDS].shape)}", param=name)
    _check_count(IDS, given[IDS].shape[0], max_texts)
    ids = np.asarray(given[IDS].data)
    mask = np.asarray(given[MASK].data) if MASK in given else np.ones_like(ids)
    types = np.asarray(given[TYPES].data) if TYPES in given else np.zeros_like(ids)
    if not np.isin(mask, (0, 1)).all():
        raise RequestError(f"input {MASK!r} must be 0 for padding and 1 for tokens", param=MASK)
    masks = [row.astype(bool) for row in mask]
    texts = [
        EncodedText(row[own].tolist(), kinds[own].tolist(), [])
        for row, kinds, own in zip(ids, types, masks, strict=True)
    ]
    for index, text in enumerate(texts):
        check_prompt(text.ids, executor.model.vocab_size, executor.context, f"{IDS}[{index}]")
    return texts, masks


def _check_count(name: str, count: int, max_texts: int) -> None:
    if count == 0:
        raise RequestError(f"input {name!r} has no text; give at least one", param=name)
    if count > max_texts:
        raise RequestError(f"{count} texts; this server supports at most {max_texts} at once", param=name)
