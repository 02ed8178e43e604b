"""The finder of a gateway: the model of this machine that finds the entities of a policy's masks."""

from __future__ import annotations

from nearfar.compiler.runtime.errors import RequestError

from ...executors.encoder_executor import EncoderExecutor
from ...executors.executor import Executor
from ..decision.policy import Policy


def require_finder(policy: Policy, model: str | None) -> None:
    """Check the option --finder before any slow work: a policy whose masks have entities needs a model that finds them,
    and no other policy may have one.

    Raises RequestError with the code "bad_policy".
    """
    masks = policy.private.masks
    finds = masks is not None and bool(masks.entities)
    if finds and model is None:
        raise _refusal("the policy masks entities; give the model that finds them with --finder BUNDLE")
    if not finds and model is not None:
        raise _refusal(f"--finder {model}: the policy masks no entities; remove the option, or list them in the policy")


def finder_of(model: str, executor: Executor) -> EncoderExecutor:
    """The opened model of the option --finder. Raises RequestError for a model that labels no tokens."""
    classifier = executor.model.classifier if isinstance(executor, EncoderExecutor) else None
    if not isinstance(executor, EncoderExecutor) or classifier is None or not classifier.per_token:
        raise RequestError(f"--finder {model}: labels no tokens; use a classifier of tokens")
    return executor


def _refusal(message: str) -> RequestError:
    return RequestError(message, code="bad_policy", param="private.masks.entities")
