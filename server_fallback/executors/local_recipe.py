"""Creates the engine of a model on this machine, in this process or in a separate one."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace

from nearfar.compiler.bundle.folder import Bundle, ExportBundle
from nearfar.compiler.bundle.manifest import Manifest
from nearfar.compiler.pipeline.target import open_runner
from nearfar.compiler.runtime.runner import Runner

from ..engine.config import EngineConfig
from ..engine.draft_heads import heads_of
from ..engine.draft_model import DraftModel
from ..engine.encoder_engine import EncoderEngine
from ..engine.encoder_model import EncoderModel
from ..engine.image_tower import ImageTower
from ..engine.masks import Masks
from ..engine.model import TokenModel
from ..engine.token_engine import TokenEngine
from ..receipts.issuer import bundle_id
from .memory import MemoryPlan


@dataclass(frozen=True, slots=True)
class Planned:
    """A bundle, and the limits and memory of its runner."""

    bundle: Bundle | ExportBundle
    memory: MemoryPlan

    def open_runner(self) -> Runner:
        return open_runner(self.bundle.manifest.target, self.bundle, self.memory.limits)


@dataclass(frozen=True, slots=True)
class LocalRecipe:
    """Implements `EngineRecipe`. ``draft`` is the draft model, for a config with one."""

    planned: Planned
    draft: Planned | None
    config: EngineConfig

    @property
    def name(self) -> str:
        return self.planned.bundle.manifest.model

    def open(self, masks: Masks | None = None) -> TokenEngine | EncoderEngine:
        with ExitStack() as opened:
            runner = self.planned.open_runner()
            opened.callback(runner.close)
            manifest = self.planned.bundle.manifest
            if not manifest.generates:
                encoder = EncoderEngine(runner, EncoderModel.of(manifest), self.config)
                opened.pop_all()
                return encoder
            drafter: DraftModel | None = None
            if self.draft is not None:
                draft_runner = self.draft.open_runner()
                opened.callback(draft_runner.close)
                drafter = DraftModel(draft_runner, TokenModel.of(self.draft.bundle.manifest))
            elif self.config.speculation is not None and self.config.speculation.kind == "heads":
                assert isinstance(manifest, Manifest), "no framework has heads that draft tokens"
                drafter = heads_of(runner, manifest)
            model = replace(TokenModel.of(manifest), bundle=bundle_id(self.planned.bundle))
            images, sounds = manifest.images if manifest.sees else None, manifest.sounds if manifest.hears else None
            tower = ImageTower(runner, images, sounds) if images is not None or sounds is not None else None
            engine = TokenEngine(runner, model, self.config, draft=drafter, masks=masks, tower=tower)
            # The engine owns the runners now.
            opened.pop_all()
        return engine
