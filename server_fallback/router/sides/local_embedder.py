"""The embedder of a gateway: a model of this machine, which is opened once for all pairs of sides."""

from __future__ import annotations

from functools import partial

from nearfar.compiler.runtime.errors import RequestError

from ...executors.encoder_executor import EncoderExecutor
from ...executors.executor import Executor, Opener
from ...executors.registry import default_name
from ..decision.policy import Policy
from ..decision.predictor import Components
from .embedder import Embedder
from .local_encoder import LocalEncoder


class LocalEmbedder:
    """``model`` in any form that ``opener`` accepts. `open` loads it at its first call; `close` closes it."""

    def __init__(self, opener: Opener, model: str, components: Components) -> None:
        self._encoder = LocalEncoder(opener, model, partial(encoder_of, model, components=components))

    async def open(self) -> Embedder:
        """Raises RequestError for a model that is not that of the policy, and the errors of opening it."""
        return Embedder.of(await self._encoder.open())

    async def close(self) -> None:
        await self._encoder.close()


def require_encoder(policy: Policy, model: str | None) -> Components | None:
    """Check the option --encoder before any slow work: a policy that reads embeddings needs the model that made them,
    and no other policy may have one. Returns the embeddings that the policy reads.

    Raises RequestError with the code "bad_policy".
    """
    components = policy.quality.components
    if components is None and model is not None:
        raise _refusal(
            f"--encoder {model}: the policy's predictor reads no embeddings; remove the option, or fit the policy with "
            "'nearfar router fit --features embedding'"
        )
    if components is not None and model is None:
        raise _refusal(
            f"the policy's predictor reads embeddings of {components.model}; give that model with --encoder MODEL, or "
            "fit the policy without --features embedding"
        )
    if components is not None and model is not None:
        require_name(model, default_name(model), components)
    return components


def encoder_of(model: str, executor: Executor, components: Components | None) -> EncoderExecutor:
    """The opened model of the option --encoder. ``components`` are those of the policy, if there is one.

    Raises RequestError for a model that makes no embeddings, or others than the policy reads.
    """
    if not isinstance(executor, EncoderExecutor) or executor.model.embedding is None:
        raise RequestError(f"--encoder {model}: makes no embeddings; use an embedding model")
    if components is not None:
        require_name(model, executor.model.name, components)
        size, due = executor.model.embedding_size, len(components.mean)
        if size != due:
            raise _refusal(
                f"--encoder {model}: makes vectors of {size} numbers, but the policy reads {due} of "
                f"{components.model}; give the model that the policy was fitted with"
            )
    return executor


def require_name(model: str, name: str, components: Components) -> None:
    if name != components.model:
        raise _refusal(
            f"--encoder {model}: is {name}, but the policy reads embeddings of {components.model}; give that model"
        )


def _refusal(message: str) -> RequestError:
    return RequestError(message, code="bad_policy", param="quality.predictor")
