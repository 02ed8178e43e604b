"""What all parts of a policy have in common: strict, frozen, and numbers as JSON has them.

JSON, and JavaScript with it, knows one kind of number: 100.0 is a whole number here too. True and "1" are none.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field


def whole(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("a number is due")
    return int(value) if isinstance(value, float) and value.is_integer() else value


def items(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


# Both stand last in an annotation, so that the limits before them are part of the schema.
WHOLE = BeforeValidator(whole)
ITEMS = BeforeValidator(items)
Count = Annotated[int, Field(ge=0, le=1_000_000_000), WHOLE]
Tokens = Annotated[int, Field(ge=1, le=1000), WHOLE]


class Entry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)
