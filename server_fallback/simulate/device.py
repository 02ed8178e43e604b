"""Device: a worker's device with its model, as a simulation knows it."""

from __future__ import annotations

from dataclasses import dataclass

from nearfar.compiler.runtime.errors import RequestError
from nearfar.compiler.runtime.page_groups import PageGroup

from ..engine.config import EngineConfig, SchedulerConfig
from .costs import StepCosts

ENGINE = EngineConfig()


@dataclass(frozen=True, slots=True)
class Device:
    """``name`` says which model on which device, ``source`` where the costs come from. ``gpus``: how many GPUs one such
    device is, by which goodput is divided. ``cache_tokens``: the keys and values that it holds, ``token_bytes`` those
    of a token. ``step_tokens`` and ``sequences`` bound a step, as the engine's limits do; ``lookahead`` is that of
    `EngineConfig`. ``request_seconds``: what a request costs outside the device, such as HTTP and the tokenizer; it
    may depend on the load, so measure it in one.

    Raises RequestError if the cache does not hold one sequence.
    """

    name: str
    source: str
    costs: StepCosts
    cache_tokens: int
    token_bytes: int
    context: int
    step_tokens: int = 2048
    sequences: int = 256
    page_size: int = 16
    lookahead: int = ENGINE.lookahead
    request_seconds: float = 0.0
    gpus: int = 1

    def __post_init__(self) -> None:
        if self.cache_tokens // self.page_size < -(-self.context // self.page_size):
            raise RequestError(
                f"device {self.name}: cache_tokens {self.cache_tokens} do not hold one sequence of context "
                f"{self.context}; give it a shorter context"
            )

    @property
    def pages(self) -> int:
        return self.cache_tokens // self.page_size

    def scheduler_config(self) -> SchedulerConfig:
        return SchedulerConfig(
            page_size=self.page_size,
            groups=[PageGroup(self.pages)],
            max_tokens=self.step_tokens,
            max_sequences=self.sequences,
            context=self.context,
            max_rows=self.sequences,
            patience_steps=ENGINE.patience_steps,
        )
