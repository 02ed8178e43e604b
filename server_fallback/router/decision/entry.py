"""The base of all parts of a policy: strict, frozen, with numbers as in JSON.

JSON and JavaScript have one kind of number, so 100.0 is a integer number here too. True and "1" are not numbers.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field


def integer(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("must be a number")
    return int(value) if isinstance(value, float) and value.is_integer() else value


def items(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


# Both come last in an annotation, so that the limits before them are part of the schema.
INTEGER = BeforeValidator(integer)
ITEMS = BeforeValidator(items)
Count = Annotated[int, Field(ge=0, le=1_000_000_000), INTEGER]
Tokens = Annotated[int, Field(ge=1, le=1000), INTEGER]


class Entry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)
