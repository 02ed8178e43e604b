"""An engine over the hash model, in a module that another process can import."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from hash_runner import MODEL, HashRunner, LayeredHashRunner
from hash_tower import FEATURE_SIZE, IMAGE_TOKEN, HashTower

from nearfar.compiler.runtime.errors import BundleError, DeviceError
from nearfar.compiler.runtime.runner import Limits
from nearfar.server_fallback.engine.config import EngineConfig
from nearfar.server_fallback.engine.encoder_engine import EncoderEngine
from nearfar.server_fallback.engine.encoder_model import EncoderModel
from nearfar.server_fallback.engine.masks import Masks
from nearfar.server_fallback.engine.token_engine import TokenEngine
from nearfar.server_fallback.kv_tiers.options import KvTierOptions

NO_TIERS = KvTierOptions()


def holding(held: Path | None, free_steps: int = 0) -> Callable[[int], None]:
    """`HashRunner.hold`: after its first steps, a device computes nothing while the file exists."""

    def hold(step: int) -> None:
        while held is not None and step >= free_steps and held.exists():
            time.sleep(0.002)

    return hold


@dataclass(frozen=True)
class HashRecipe:
    """``fails``: raise BundleError instead. The device fails while the file ``broken`` exists; ``held`` and
    ``free_steps`` are those of `holding`.
    """

    step_seconds: float = 0.0
    held: Path | None = None
    free_steps: int = 0
    max_waiting: int = 256
    fails: bool = False
    broken: Path | None = None
    kv_tiers: KvTierOptions = NO_TIERS
    name: str = "hash"
    layered: bool = False

    def open(self, masks: Masks | None = None) -> TokenEngine:
        if self.fails:
            raise BundleError("manifest.json: is corrupt; compile the bundle again", file="manifest.json")
        limits = Limits(tokens=8, sequences=4, rows=4, pages=24)

        def failure(_: int) -> Exception | None:
            return DeviceError("the device is lost") if self.broken is not None and self.broken.exists() else None

        runner = (LayeredHashRunner if self.layered else HashRunner)(
            limits,
            threaded=True,
            step_seconds=self.step_seconds,
            fail=failure,
            hold=holding(self.held, self.free_steps),
        )
        config = EngineConfig(max_waiting=self.max_waiting, kv_tiers=self.kv_tiers)
        return TokenEngine(runner, MODEL, config, masks=masks)


@dataclass(frozen=True)
class SeeingRecipe:
    """An engine over the hash model that reads images, whose features it does not retain. ``held`` is that of
    `holding`.
    """

    held: Path | None = None
    name: str = "hash"

    def open(self, masks: Masks | None = None) -> TokenEngine:
        runner = HashRunner(Limits(tokens=8, sequences=4, rows=4, pages=24), threaded=True, hold=holding(self.held))
        model = replace(MODEL, image_token_id=IMAGE_TOKEN, feature_size=FEATURE_SIZE)
        return TokenEngine(runner, model, EngineConfig(image_cache_bytes=0), masks=masks, tower=HashTower())


@dataclass(frozen=True)
class EncoderRecipe:
    """An encoder engine over the hash model."""

    name: str = "hash"

    def open(self, masks: Masks | None = None) -> EncoderEngine:  # noqa: ARG002
        runner = HashRunner(Limits(tokens=8, sequences=4, rows=4, pages=24))
        return EncoderEngine(runner, EncoderModel(MODEL.vocab_size, MODEL.context, MODEL.page_size))
