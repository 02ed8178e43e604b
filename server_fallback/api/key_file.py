"""The file of API keys, as pydantic checks it. It is apart from `keys.py`, because help texts import nothing slow."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field
from pydantic import ValidationError as ValidationError

from .keys import MIN_KEY_LENGTH


class KeyRow(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    name: Annotated[str, Field(min_length=1, max_length=64)]
    key: Annotated[str, Field(min_length=MIN_KEY_LENGTH)] | None = None
    sha256: Annotated[str, Field(pattern="^[0-9a-fA-F]{64}$")] | None = None
    requests_per_minute: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    max_concurrent: Annotated[int, Field(ge=1)] | None = None
    priority: int = 0
    admin: bool = False


class KeyFile(BaseModel):
    model_config = ConfigDict(extra="forbid")

    keys: Annotated[list[KeyRow], Field(min_length=1)]
