"""An engine over the hash model, in a module that another process can import."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from hash_runner import MODEL, HashRunner
from hash_tower import FEATURE_SIZE, IMAGE_TOKEN, HashTower

from nearfar.compiler.runtime.errors import BundleError, DeviceError
from nearfar.compiler.runtime.runner import Limits
from nearfar.server_fallback.engine.config import EngineConfig
from nearfar.server_fallback.engine.encoder_engine import EncoderEngine
from nearfar.server_fallback.engine.encoder_model import EncoderModel
from nearfar.server_fallback.engine.masks import Masks
from nearfar.server_fallback.engine.token_engine import TokenEngine


@dataclass(frozen=True)
class HashRecipe:
    """``fails``: raise BundleError instead. The device fails while the file ``broken`` exists."""

    step_seconds: float = 0.0
    max_waiting: int = 256
    fails: bool = False
    broken: Path | None = None
    name: str = "hash"

    def open(self, masks: Masks | None = None) -> TokenEngine:
        if self.fails:
            raise BundleError("manifest.json: is corrupt; compile the bundle again", file="manifest.json")
        limits = Limits(tokens=8, sequences=4, rows=4, pages=24)

        def failure(_: int) -> Exception | None:
            return DeviceError("the device is lost") if self.broken is not None and self.broken.exists() else None

        runner = HashRunner(limits, threaded=True, step_seconds=self.step_seconds, fail=failure)
        return TokenEngine(runner, MODEL, EngineConfig(max_waiting=self.max_waiting), masks=masks)


@dataclass(frozen=True)
class SeeingRecipe:
    """An engine over the hash model that reads images, whose features it does not retain."""

    name: str = "hash"

    def open(self, masks: Masks | None = None) -> TokenEngine:
        runner = HashRunner(Limits(tokens=8, sequences=4, rows=4, pages=24), threaded=True)
        model = replace(MODEL, image_token_id=IMAGE_TOKEN, feature_size=FEATURE_SIZE)
        return TokenEngine(runner, model, EngineConfig(image_cache_bytes=0), masks=masks, tower=HashTower())


@dataclass(frozen=True)
class EncoderRecipe:
    """An encoder engine over the hash model."""

    name: str = "hash"

    def open(self, masks: Masks | None = None) -> EncoderEngine:  # noqa: ARG002
        runner = HashRunner(Limits(tokens=8, sequences=4, rows=4, pages=24))
        return EncoderEngine(runner, EncoderModel(MODEL.vocab_size, MODEL.context, MODEL.page_size))
