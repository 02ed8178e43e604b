"""The errors for addresses below /v2/models that no route has. A model's name may contain slashes, so a pattern for it
matches the address of an unknown action too, and only the loaded models say where the name ends.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from starlette.exceptions import HTTPException

from ..api.errors import ApiError
from .model_tensors import VERSION

# What a model's address may end with, and the method.
ACTIONS = {"infer": "POST", "ready": "GET", "config": "GET"}
VERSIONED = re.compile(r"(.+)/versions/[^/]*", re.DOTALL)


def wrong_address(models: Collection[str], path: str) -> ApiError | HTTPException | None:
    """The error of a request for /v2/models/``path`` with a method that this address does not have, or for an action
    that models do not have. None if the path may be the name of a model that is not loaded.
    """
    if _model_of(path) in models:
        return HTTPException(405, headers={"Allow": "GET"})
    name, _, action = path.rpartition("/")
    if name and action in ACTIONS:
        return HTTPException(405, headers={"Allow": ACTIONS[action]})
    return unknown_action() if _model_of(name) in models else None


def unknown_action() -> ApiError:
    return ApiError(
        404,
        f"this address does not exist; a model has {', '.join(f'/{each}' for each in ACTIONS)} and /versions/{VERSION}",
        "unknown_url",
    )


def _model_of(path: str) -> str:
    versioned = VERSIONED.fullmatch(path)
    return path if versioned is None else versioned[1]
