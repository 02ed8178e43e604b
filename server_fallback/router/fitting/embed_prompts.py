"""The vectors of logged prompts, from an embedding model of this machine."""

from __future__ import annotations

from collections.abc import Sequence

from ...executors.encoder_executor import EncoderExecutor
from ...executors.executor import Call
from .pairs import Pair

BATCH = 256


async def embed_prompts(pairs: Sequence[Pair], encoder: EncoderExecutor) -> list[Pair]:
    """The pairs with the vectors of their prompts, of which only as much counts as the model's context holds. Raises
    RequestError for a model that makes no embeddings.
    """
    found = []
    for start in range(0, len(pairs), BATCH):
        batch = pairs[start : start + BATCH]
        vectors = await encoder.vectors([pair.prompt for pair in batch], Call("router-fit"), is_query=True)
        found += [
            pair.model_copy(update={"embedding": tuple(vector.tolist())})
            for pair, vector in zip(batch, vectors, strict=True)
        ]
    return found
