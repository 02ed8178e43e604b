"""What an executor has beside `Executor` where it checks drafts of clients: our own engine does, another server does not."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from ..engine.verification import Verification
from ..schema.verify import VerifyOpen
from .executor import Call, Executor


@runtime_checkable
class Verifies(Executor, Protocol):
    @property
    def max_drafts(self) -> int:
        """Of one message, 0 where the model takes none."""

    def verification(self, request: VerifyOpen, call: Call) -> Verification:
        """Raises RequestError: for another tokenizer ("tokenizer_differs"), a prompt that does not fit, a model that takes no drafts."""
