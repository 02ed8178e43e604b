"""The embedding model of a policy whose predictor reads embeddings."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from ...executors.encoder_executor import EncoderExecutor
from ...executors.executor import Call, ExecutorState


@dataclass(frozen=True, slots=True)
class Embedder:
    """``model`` is the model's name in the policy. ``embed`` makes the vector (E,) of a text as `nearfar router fit`
    does: of length 1, with the model's prompt for queries. The text may be private, so it must not leave the device.
    ``size`` is E, and ``state`` returns the model's state, if they are known.
    """

    model: str
    embed: Callable[[str], Awaitable[Sequence[float]]]
    size: int | None = None
    state: Callable[[], ExecutorState] | None = None

    @classmethod
    def of(cls, encoder: EncoderExecutor) -> Embedder:
        """``encoder`` stays the caller's to close."""

        async def embed(text: str) -> Sequence[float]:
            vectors = await encoder.vectors([text], Call("router"), is_query=True)
            vector: list[float] = vectors[0].tolist()
            return vector

        return cls(encoder.model.name, embed, encoder.model.embedding_size, encoder.state)
