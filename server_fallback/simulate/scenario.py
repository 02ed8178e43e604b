"""Scenario: the TOML file of `nearfar simulate`. Unknown keys, and values out of range, are errors."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, ValidationError, model_validator

from nearfar.compiler.nearest import did_you_mean, with_advice
from nearfar.compiler.runtime.errors import RequestError, reason_of
from nearfar.compiler.runtime.given_file import read_given, read_given_text

from ..router.decision.policy import Policy
from ..schema.common import Request
from .costs import StepCosts
from .device import Device
from .layout import LEAST_PREFILL, Layout, Store
from .mixed_pool import QUEUED_TOKENS, MixedPool
from .near import Fleet
from .network import LinkSpeed
from .presets import DEVICES
from .summary import Bounds
from .workload import Count, Positive, Seconds, Workload

Table = TypeVar("Table", bound=Request)
Study = Literal["run", "split", "cache", "near"]
Share = Annotated[float, Field(gt=0, le=1)]


class CostsTable(Request):
    """As `StepCosts`, in seconds; ``knots`` are pairs of positions and seconds."""

    knots: Annotated[list[Annotated[list[float], Field(min_length=2, max_length=2)]], Field(min_length=1)]
    row: Seconds = 0.0
    read: Seconds = 0.0
    pair: Seconds = 0.0

    def made(self) -> StepCosts:
        return StepCosts(tuple((at, seconds) for at, seconds in self.knots), self.row, self.read, self.pair)


class DeviceFile(Request):
    """What `nearfar simulate --measure` writes, and a device that a scenario describes itself: as `Device`."""

    name: str
    source: str
    costs: CostsTable
    cache_tokens: Count
    token_bytes: Count
    context: Count
    step_tokens: Count = 2048
    sequences: Count = 256
    page_size: Count = 16
    lookahead: Annotated[int, Field(ge=1, le=16)] = 2
    request_seconds: Seconds = 0.0
    gpus: Count = 1

    def made(self) -> Device:
        return Device(**{**dict(self), "costs": self.costs.made()})


class DeviceTable(Request):
    """One of ``preset``, a name of `presets.py`, ``file``, a path relative to the scenario, or ``own``; and what is
    different there.
    """

    preset: str | None = None
    file: str | None = None
    own: DeviceFile | None = None
    cache_tokens: Count | None = None
    context: Count | None = None
    step_tokens: Count | None = None
    sequences: Count | None = None
    lookahead: Annotated[int, Field(ge=1, le=16)] | None = None
    request_seconds: Seconds | None = None

    @model_validator(mode="after")
    def _is_one(self) -> DeviceTable:
        if sum(each is not None for each in (self.preset, self.file, self.own)) != 1:
            raise ValueError("give one of preset, file and own")
        return self

    def made(self, folder: Path) -> Device:
        if self.preset is not None:
            device = preset(self.preset)
        elif self.file is not None:
            device = read_device(folder / self.file)
        else:
            assert self.own is not None
            device = self.own.made()
        names = ("cache_tokens", "context", "step_tokens", "sequences", "lookahead", "request_seconds")
        given = {name: value for name in names if (value := getattr(self, name)) is not None}
        return replace(device, **given)


class LinkTable(Request):
    gigabytes_per_second: Positive
    latency_ms: Seconds = 0.0

    def made(self) -> LinkSpeed:
        return LinkSpeed(self.gigabytes_per_second * 1e9, self.latency_ms / 1000)


class StoreTable(LinkTable):
    """As `Store`: ``tokens`` for each worker."""

    tokens: Count
    shared: bool = True

    def stored(self) -> Store:
        return Store(self.tokens, self.made(), self.shared)


class MixedPoolTable(Request):
    """As `MixedPool`. Only simulated: the workers of `nearfar serve` keep their roles."""

    queued_tokens: Count = QUEUED_TOKENS

    def made(self) -> MixedPool:
        return MixedPool(self.queued_tokens)


class ClusterTable(Request):
    """As `Layout`. ``gpus``: for the studies "split" and "near", the most GPUs that are tried."""

    whole: Annotated[int, Field(ge=0, le=4096)] = 0
    prefill: Annotated[int, Field(ge=0, le=4096)] = 0
    decode: Annotated[int, Field(ge=0, le=4096)] = 0
    gpus: Annotated[int, Field(ge=1, le=4096)] | None = None
    link: LinkTable | None = None
    first_token: Literal["decode", "prefill"] = "decode"
    least_prefill: Annotated[int, Field(ge=0)] = LEAST_PREFILL
    store: StoreTable | None = None
    mixed_pool: MixedPoolTable | None = None


class BoundsTable(Request):
    first_token_ms: Positive
    token_ms: Positive
    share: Share = 0.9

    def made(self) -> Bounds:
        return Bounds(self.first_token_ms / 1000, self.token_ms / 1000, self.share)


class NearTable(Request):
    """As `Fleet`. ``policy`` is a policy of the router, or a path relative to the scenario."""

    devices: Count
    prefill_tokens_per_second: Positive
    decode_tokens_per_second: Positive
    sigma: Seconds = 0.0
    context: Count
    round_trip_ms: Seconds
    private_share: Annotated[float, Field(ge=0, le=1)] = 0.0
    policy: str | dict[str, Any]

    def made(self) -> Fleet:
        return Fleet(
            self.devices, self.prefill_tokens_per_second, self.decode_tokens_per_second, self.sigma, self.context,
            self.round_trip_ms / 1000, self.private_share,
        )  # fmt: skip

    def read_policy(self, folder: Path) -> Policy:
        return Policy.read(folder / self.policy if isinstance(self.policy, str) else self.policy)


class Scenario(Request):
    """``study``: "run" simulates the cluster; "split" searches the goodput of each split of GPUs into prefill and
    decode workers; "cache" compares no store of prefixes, one for each worker and a shared one; "near" puts the devices
    in front of more and more GPUs.
    """

    seed: Annotated[int, Field(ge=0)] = 1
    study: Study = "run"
    device: DeviceTable
    decode_device: DeviceTable | None = None
    workload: Workload
    cluster: ClusterTable
    bounds: BoundsTable | None = None
    near: NearTable | None = None

    @model_validator(mode="after")
    def _has_all(self) -> Scenario:
        cluster = self.cluster
        needs = {
            "split": (("bounds", self.bounds), ("cluster.gpus", cluster.gpus), ("cluster.link", cluster.link)),
            "cache": (("cluster.store", cluster.store),),
            "near": (("near", self.near), ("cluster.gpus", cluster.gpus)),
            "run": (),
        }[self.study]
        missing = [name for name, value in needs if value is None]
        if missing:
            raise ValueError(f"the study '{self.study}' needs {', '.join(missing)}")
        if self.near is not None and self.study in ("split", "cache"):
            raise ValueError(f"the study '{self.study}' has no devices; remove near")
        if self.study in ("split", "near") and (cluster.whole or cluster.prefill or cluster.decode):
            raise ValueError(f"the study '{self.study}' chooses the workers itself; remove whole, prefill and decode")
        return self

    def layout(self, folder: Path, **changed: Any) -> Layout:
        """``changed`` are fields of `Layout`. Raises RequestError."""
        cluster = self.cluster
        fields: dict[str, Any] = {
            "device": self.device.made(folder),
            "whole": cluster.whole,
            "prefill": cluster.prefill,
            "decode": cluster.decode,
            "link": None if cluster.link is None else cluster.link.made(),
            "store": None if cluster.store is None else cluster.store.stored(),
            "first_token": cluster.first_token,
            "least_prefill": cluster.least_prefill,
            "mixed_pool": None if cluster.mixed_pool is None else cluster.mixed_pool.made(),
            "decode_device": None if self.decode_device is None else self.decode_device.made(folder),
        }
        return Layout(**{**fields, **changed})


def read_scenario(path: Path) -> Scenario:
    """Raises RequestError, which names the place in the file."""
    try:
        value = tomllib.loads(read_given_text(path))
    except OSError as error:
        raise RequestError(f"{path}: cannot be read: {reason_of(error)}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RequestError(f"{path}: is not TOML: {error}") from error
    return checked(Scenario, value, str(path))


def read_device(path: Path) -> Device:
    """A device that `nearfar simulate --measure` wrote. Raises RequestError."""
    try:
        value = json.loads(read_given(path))
    except OSError as error:
        raise RequestError(f"{path}: cannot be read: {reason_of(error)}") from error
    except ValueError as error:
        raise RequestError(f"{path}: is not JSON: {error}") from error
    return checked(DeviceFile, value, str(path)).made()


def preset(name: str) -> Device:
    """Raises RequestError, which proposes the nearest name."""
    if name not in DEVICES:
        known = f"there are {', '.join(DEVICES)}"
        raise RequestError(with_advice(f"device.preset: unknown '{name}'", did_you_mean(name, DEVICES), known))
    return DEVICES[name]


def checked(kind: type[Table], value: Any, where: str) -> Table:
    """Raises RequestError for the first thing that is wrong."""
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        own = {"extra_forbidden": "unknown key", "missing": "this key is required; add it"}
        message = own.get(first["type"]) or first["msg"].removeprefix("Value error, ")
        raise RequestError(f"{where}: {place + ': ' if place else ''}{message}") from error
