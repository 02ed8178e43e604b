"""Converts requests and answers between Cohere's shape of embeddings and OpenAI's."""

from __future__ import annotations

import base64
import uuid

import numpy as np

from nearfar.compiler.runtime.batch import FloatArray
from nearfar.compiler.runtime.errors import RequestError

from ..schema.embed import BilledUnits, EmbeddingsByType, EmbedMeta, EmbedRequest, EmbedResponse
from ..schema.embeddings import EmbeddingRequest, EmbeddingResponse
from ..schema.rerank import ApiVersion
from .requests import with_name

# OpenAI's names of parameters -> Cohere's.
COHERE_NAMES = {"input": "texts", "dimensions": "output_dimension", "truncate_prompt_tokens": "max_tokens"}


def as_openai(request: EmbedRequest) -> EmbeddingRequest:
    # -1: to the context.
    limit = None if request.truncate == "NONE" else request.max_tokens or -1
    return EmbeddingRequest(
        model=request.model,
        input=request.texts,
        input_type=request.input_type,
        dimensions=request.output_dimension,
        encoding_format="float",
        truncate_prompt_tokens=limit,
        priority=request.priority,
    )


def as_cohere(answer: EmbeddingResponse, request: EmbedRequest) -> EmbedResponse:
    """The answer with the vectors in every requested form; float if none was."""
    rows = np.asarray([each.embedding for each in sorted(answer.data, key=lambda each: each.index)], np.float32)
    kinds = set(request.embedding_types or ["float"])
    return EmbedResponse(
        id=str(uuid.uuid4()),
        embeddings=EmbeddingsByType(
            float_=rows.tolist() if "float" in kinds else None,
            base64=[encoded(row) for row in rows] if "base64" in kinds else None,
            binary=(packed_signs(rows).astype(np.int16) - 128).tolist() if "binary" in kinds else None,
            ubinary=packed_signs(rows).tolist() if "ubinary" in kinds else None,
        ),
        texts=request.texts,
        meta=EmbedMeta(
            api_version=ApiVersion(version="2"), billed_units=BilledUnits(input_tokens=answer.usage.prompt_tokens)
        ),
    )


def renamed(error: RequestError) -> RequestError:
    """The error with the parameter's name in Cohere's API."""
    param = error.details.get("param")
    name = param.split("[")[0] if isinstance(param, str) else ""
    if name not in COHERE_NAMES:
        return error
    return with_name(error, name, COHERE_NAMES[name])


def packed_signs(rows: FloatArray) -> np.ndarray[tuple[int, int], np.dtype[np.uint8]]:
    """Whether each number is positive, eight to a byte (n, ceil(E / 8)), the first as the highest bit."""
    return np.packbits(rows > 0, axis=1)


def encoded(vector: FloatArray) -> str:
    """The base64 of a vector's float32 bytes, little-endian."""
    return base64.b64encode(np.ascontiguousarray(vector, "<f4").tobytes()).decode()
