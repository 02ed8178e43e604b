"""The models of a catalog on this machine: the bundle that fits it, and its download into the store.

`nearfar pull`, `nearfar run --catalog` and `nearfar serve --catalog` choose here, by the rules of pages
(`web/src/shared/offers.ts`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path

from nearfar.compiler.bundle.signature import TrustedKey
from nearfar.compiler.demo import DEMOS
from nearfar.compiler.publish.catalog import Catalog, CatalogBundle
from nearfar.compiler.publish.pull import fetch_catalog, pull
from nearfar.compiler.runtime.errors import DeviceError, ToolError
from nearfar.compiler.shared.script import SharedScript
from nearfar.compiler.store.bundles import KEY_DIGITS, bundles_folder, evict_bundles, is_bundle, limit_bytes, mark_used
from nearfar.compiler.store.sources import DOWNLOAD
from nearfar.compiler.store.store import Store

from .devices import models_memory_bytes

# The first target that has a bundle that fits wins.
PREFERRED = ("cuda", "cpu", "webgpu", "mlx", "onnx")

# The phase, done and total, as when a model is compiled.
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class CatalogModels:
    """A catalog that was fetched from ``address``."""

    catalog: Catalog
    address: str

    @classmethod
    def fetch(cls, place: str) -> CatalogModels:
        """Raises BundleError, RequestError, or Unavailable if it cannot be read."""
        return cls(*fetch_catalog(place))

    def has(self, model: str) -> bool:
        """Whether a model of a command is one of the catalog's. It is a name there, unless it is a demo or a path.
        Raises RequestError for a name that nothing has.
        """
        if model not in self.catalog.models and model not in DEMOS and not Path(model).expanduser().exists():
            self.catalog.model(model)
        return model in self.catalog.models

    def choose(self, name: str, target: str | None = None) -> CatalogBundle:
        """The best bundle of a model that fits this machine; only for ``target`` if it is given.

        Raises RequestError for an unknown name, and DeviceError with the reasons if none fits.
        """
        bundles, refusals = self.catalog.model(name).bundles, list[str]()
        for each in PREFERRED if target is None else (target,):
            offers = [bundle for bundle in bundles if bundle.target == each]
            misfits = {bundle.folder: reason for bundle in offers if (reason := misfit(bundle)) is not None}
            places = [{"target": each, "memory_bytes": models_memory_bytes(each)}]
            found = SharedScript.of_thread().ask(
                "chooseOffers", [bundle.model_dump(mode="json") for bundle in offers], places, misfits
            )
            for folder in found["folders"][:1]:
                return next(bundle for bundle in offers if bundle.folder == folder)
            refusals += found["refusals"]
        offered = ", ".join(dict.fromkeys(bundle.target for bundle in bundles))
        why = "; ".join(refusals) or f"it has bundles for {offered} only"
        raise DeviceError(
            f"no bundle of {name} fits this machine: {why}; publish one with nearfar publish --target, or download one "
            "for another machine with nearfar pull --target",
            refusals=refusals,
        )

    def cached(
        self, name: str, target: str | None, trust: Sequence[TrustedKey], progress: Progress = lambda *_: None
    ) -> Path:
        """The bundle of `choose` in the store, downloaded unless it is there. Files that others have are shared.

        Raises the errors of `choose` and `pull`.
        """
        from filelock import FileLock

        entry = self.choose(name, target)
        place = entry.folder.replace("/", "-")
        path, limit = bundles_folder() / f"{place}-{entry.manifest_sha256[:KEY_DIGITS]}", limit_bytes()
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path.with_name(f"{path.name}.lock")):
            if not is_bundle(path):
                blobs = Store.of_user().blobs
                pull(entry, self.address, path, trust, partial(progress, DOWNLOAD), blobs=blobs)
        mark_used(path)
        evict_bundles(limit)
        return path


def misfit(entry: CatalogBundle) -> str | None:
    """Why this machine cannot run a bundle, as `check_machine` of its target says when it is here; None if it may."""
    try:
        match entry.target:
            case "cpu":
                from nearfar.targets.cpu.levels import features, require

                require(entry.arch, features())
            case "cuda":
                from nearfar.targets.cuda.arch import require_device
                from nearfar.targets.cuda.driver import NvidiaDriver

                driver = NvidiaDriver()
                try:
                    require_device(Path(entry.folder), entry.arch, driver)
                finally:
                    driver.close()
            case "webgpu":
                from nearfar.targets.webgpu.device import features_of, require_adapter

                offered = [set(each.needs) for each in entry.activations]
                found = features_of(require_adapter(offered).features)
                if not any(needs <= found for needs in offered):
                    return f"this device lacks {', '.join(sorted({*chain(*offered)} - found)) or 'its activations'}"
            case "mlx":
                from nearfar.targets.mlx.framework import load_mlx

                load_mlx()
            case "onnx":
                from nearfar.targets.onnx.session import require_packages

                require_packages()
    except (DeviceError, ToolError) as error:
        return error.message
    return None
