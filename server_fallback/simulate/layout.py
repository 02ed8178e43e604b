"""Layout: which workers a cluster has, and what connects them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from nearfar.compiler.runtime.errors import RequestError

from ..executors.prefill_options import PrefillOptions
from .device import Device
from .mixed_pool import MixedPool
from .network import LinkSpeed

LEAST_PREFILL = PrefillOptions().prefill_tokens


@dataclass(frozen=True, slots=True)
class Store:
    """A cache of prefixes in the memory of hosts: ``tokens`` for each worker. ``shared``: the workers have one store
    together, which is as large as theirs; otherwise each has its own. ``speed`` is that of reading it.
    """

    tokens: int
    speed: LinkSpeed
    shared: bool


@dataclass(frozen=True, slots=True)
class Layout:
    """``whole`` workers, or ``prefill`` and ``decode`` ones, with a ``link`` from each prefill worker.

    ``first_token`` "decode": as `nearfar serve --role`, a prefill worker computes the full pages of a prompt, and the
    decode worker the rest and all tokens. "prefill": as in DistServe and Splitwise, the prefill worker computes the
    first token, too. Prompts with fewer than ``least_prefill`` tokens that no cache holds are computed by the decode
    worker. ``mixed_pool``: the workers change roles while they run, which no real deployment of ours does. Raises
    RequestError for anything else.
    """

    device: Device
    whole: int = 0
    prefill: int = 0
    decode: int = 0
    link: LinkSpeed | None = None
    store: Store | None = None
    decode_device: Device | None = None
    first_token: Literal["decode", "prefill"] = "decode"
    least_prefill: int = LEAST_PREFILL
    mixed_pool: MixedPool | None = None

    def __post_init__(self) -> None:
        if (self.whole > 0) == (self.prefill > 0 and self.decode > 0) or (self.prefill > 0) != (self.decode > 0):
            raise RequestError("cluster: give whole workers, or both prefill and decode workers")
        if self.prefill > 0 and self.link is None:
            raise RequestError("cluster: prefill and decode workers need a link")
        if self.mixed_pool is not None and (self.whole > 0 or self.first_token != "prefill" or self.store is not None):
            raise RequestError(
                "cluster: mixed_pool is for prefill and decode workers with first_token = 'prefill' and without a store"
            )

    @property
    def gpus(self) -> int:
        decode = self.decode_device or self.device
        return (self.whole + self.prefill) * self.device.gpus + self.decode * decode.gpus

    @property
    def name(self) -> str:
        if self.whole:
            return f"{self.whole} whole"
        return f"{self.prefill} prefill + {self.decode} decode" + (", changing roles" if self.mixed_pool else "")
