"""Opens a pair of sides: checks what the policy needs, queries the far server's models, then opens the near model."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

from nearfar.compiler.runtime.errors import RequestError
from nearfar.compiler.shared.script import SharedScript
from nearfar.compiler.store.place import cache_folder

from ..executors.executor import Executor, Opener, Opening, Transcribes
from .decision.budget import FileLedger, Ledger
from .decision.policy import Policy
from .hybrid_executor import HybridExecutor
from .sides.embedder import Embedder
from .sides.far import Far, FarSide
from .sides.finder import Classifies, Finder, finder_for
from .sides.local_embedder import LocalEmbedder
from .sides.local_encoder import LocalEncoder
from .sides.masker import AskedCaller, Confirm
from .sides.near import NearSide
from .sides.sides import DeviceHints, Sides


class HybridOpener:
    """Implements `Opener`: each near model that ``near`` opens forms a pair with the same far side, except one that
    transcribes sound. All pairs use the same ``embedder``, ``transcriber`` and ``finder``, which are the caller's to
    close. Whoever sends a request is asked what may leave, if the policy asks.
    """

    def __init__(
        self,
        near: Opener,
        far: Far | None,
        policy: Policy,
        embedder: LocalEmbedder | None = None,
        transcriber: Transcribes | None = None,
        finder: LocalEncoder | None = None,
    ) -> None:
        self._near, self._far, self._policy = near, far, policy
        self._embedder, self._transcriber, self._finder = embedder, transcriber, finder

    async def prepare(self, model: str, name: str | None) -> Opening:
        require_sides(self._policy, near=True, far=self._far)
        embedder = None if self._embedder is None else await self._embedder.open()
        require_embedder(self._policy, embedder)
        finder = finder_for(None if self._finder is None else await self._finder.open(), self._policy)
        require_masks(self._policy, finder, "caller")
        near = await self._near.prepare(model, name)
        if near.task == "transcribe":
            return near
        return replace(
            near,
            open=lambda: open_hybrid(
                near.name,
                near.open,
                self._far,
                self._policy,
                embedder=embedder,
                transcriber=self._transcriber,
                finder=finder,
                confirm="caller",
            ),
        )


async def open_hybrid(
    name: str,
    near: Callable[[], Awaitable[Executor]] | None,
    far: Far | None,
    policy: Policy,
    ledger: Ledger | None = None,
    hints: Callable[[], DeviceHints] = DeviceHints,
    embedder: Embedder | None = None,
    transcriber: Transcribes | None = None,
    finder: Classifies | None = None,
    confirm: Confirm | AskedCaller | None = None,
) -> HybridExecutor:
    """As `Hybrid.create`; ``near`` opens the near model. If anything fails, nothing stays open."""
    require_sides(policy, near=near is not None, far=far)
    require_embedder(policy, embedder)
    finder = finder_for(finder, policy)
    require_masks(policy, finder, confirm)
    async with AsyncExitStack() as opened:
        masks = policy.private.masks
        far_side = (
            FarSide(
                far,
                hides_ids=bool(policy.private_check.patterns or masks),
                strict=masks is not None and masks.strict,
            )
            if far is not None
            else None
        )
        if far_side is not None:
            opened.push_async_callback(far_side.close)
        if far is not None and ledger is None and has_budget(policy):
            ledger = FileLedger(ledger_path(far))
        sides = Sides(None, far_side, policy, ledger, hints, embedder)
        sides.open_masker(finder, confirm)
        # Errors of the far side are reported before the near model spends time on loading.
        await sides.check(near_may_answer=near is not None)
        if near is not None:
            sides.open_near(NearSide(await near(), name, transcriber))
        opened.pop_all()
    return HybridExecutor(sides, name)


def require_sides(policy: Policy, *, near: bool, far: Far | None) -> None:
    """Raises RequestError with the code "bad_policy" for a policy that these sides cannot follow
    (`web/src/shared/decision/contradictions.ts`).
    """
    if policy.prefill is not None:
        raise RequestError(
            "the policy: prefill: only pages have prompts that far computes; remove it",
            code="bad_policy",
            param="prefill",
        )
    rules = {"mode": policy.mode, "escalation": {"then": policy.escalation.then}}
    SharedScript.of_thread().ask("checkSides", rules, near, None if far is None else far.dialect)


def require_masks(policy: Policy, finder: Classifies | None, confirm: Confirm | AskedCaller | None) -> None:
    """Raises RequestError with the code "bad_policy" for masks that nothing finds or nobody confirms."""
    rules = {"private": policy.private.model_dump()}
    known = {"kinds": list(finder.kinds.items())} if isinstance(finder, Finder) else {}
    SharedScript.of_thread().ask("checkMasks", rules, None if finder is None else known, confirm is not None)


def require_embedder(policy: Policy, embedder: Embedder | None) -> None:
    """Raises RequestError with the code "bad_policy" for a policy that reads the embeddings of another model."""
    components = policy.quality.components
    if components is None:
        return
    given = None
    if embedder is None:
        given = "there is no embedder"
    elif embedder.model != components.model:
        given = f"the embedder is {embedder.model}"
    elif embedder.size not in (None, len(components.mean)):
        given = f"the embedder's vectors have {embedder.size} numbers, not {len(components.mean)}"
    if given is not None:
        raise RequestError(
            f"the policy's predictor reads embeddings of {components.model}, but {given}; give Hybrid.create the "
            "embedder of that model (nearfar gateway: --encoder), or fit the policy without --features embedding",
            code="bad_policy",
            param="quality.predictor",
        )


def has_budget(policy: Policy) -> bool:
    return policy.budget.far_requests_per_day is not None or policy.budget.far_usd_per_day is not None


def ledger_path(far: Far) -> Path:
    """One file for each server and key, because the key identifies who pays."""
    digest = sha256(f"{far.base_url.rstrip('/')} {far.api_key}".encode()).hexdigest()
    return cache_folder() / f"far-spent-{digest[:16]}.json"
