"""The model of a command: a bundle, a stored model, or a checkpoint that is compiled once into the store; and its
runner: the one that the command names, that of the target, or the reference on the CPU.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.markup import escape

from ..bundle.folder import Bundle, ExportBundle
from ..bundle.manifest import MANIFEST_FILE
from ..bundle.signature import TrustedKey
from ..demo import DEMOS
from ..formats.hub import hub_model
from ..nearest import did_you_mean, did_you_mean_folder, with_advice
from ..pipeline.target import check_machine, open_runner
from ..runtime.errors import DeviceError, RequestError
from ..runtime.runner import Limits, Runner
from ..store.model import StoredModel
from ..store.names import StoreName, UnknownModel
from ..store.opening import exists
from ..store.sources import GGUF
from ..store.store import Store
from .output import new_console
from .phases import phases, progress_bars

# The server owns the cache. The compiler does not depend on the server, so it loads this module by name, as it does
# with commands.
CACHE = "nearfar.server_fallback.executors.compile_process"
CATALOG_MODELS = "nearfar.server_fallback.executors.catalog_models"


def refuse_ignore_key(ignore_keys: Sequence[str], bundle: Path) -> None:
    """Raises RequestError for keys to ignore in a bundle, which has no config.json."""
    if ignore_keys:
        raise RequestError(f"--ignore-key is for models, and {bundle} is a bundle; remove the option")


def bundle_of(model: Path, ignore_keys: Sequence[str] = (), *, quiet: bool) -> tuple[Path, bool]:
    """The path of the model's bundle, and whether it was compiled here. ``quiet`` hides the progress of a compile.
    ``ignore_keys``: see `formats.load`.

    A folder with a manifest is returned as it is, and so is a path to nothing; opening it reports the error. A
    checkpoint's folder, a GGUF file, a demo model (DEMOS) and a stored model are compiled for this machine unless the
    store has their bundle. Raises what compiling raises, and UnknownModel for a name that nothing has.
    """
    store, stored = Store.of_user(), stored_of(model)
    checkpoint = checkpoint_of(model) if stored is None else store.path(stored)
    if checkpoint is None and stored is None:
        require_known(str(model), store)
    if checkpoint is None or (stored is not None and stored.is_bundle):
        refuse_ignore_key(ignore_keys, model)
        return checkpoint or model, False
    cache = importlib.import_module(CACHE)
    with progress_bars(quiet=quiet, transient=True) as bars:
        bundle = Path(cache.default_bundle(str(checkpoint), tuple(ignore_keys), phases(bars), stored))
        compiled = bool(bars.tasks)
    if compiled and not quiet:
        text = f"compiled {model} into the cache: {bundle}"
        new_console(stderr=True, soft_wrap=True).print(escape(text), style="dim", highlight=False)
    return bundle, True


def require_known(model: str, store: Store) -> None:
    """Raises UnknownModel for a text that may be the name of a model, and is neither a path nor a stored model."""
    if exists(model) or model.startswith((".", "/", "~")) or StoreName.parse_or_none(model) is None:
        return
    names = [*DEMOS, *(each.name for each in store.models())]
    problem = f"{model}: there is no such file or folder, and the store has no model of this name"
    advice = (
        f"nearfar list shows its models, and nearfar pull {'OWNER/NAME' if hub_model(model) is None else model} gets "
        "one from the Hugging Face Hub"
    )
    known = did_you_mean(model, names) or did_you_mean_folder(Path(model))
    raise UnknownModel(with_advice(problem, known, advice), param="model")


def stored_of(model: Path) -> StoredModel | None:
    """The stored model of a command's model; None for a path and a demo. Raises CheckpointError."""
    name = str(model)
    return None if name in DEMOS or exists(name) else Store.of_user().find(name)


def catalog_models(place: str) -> Any:
    """The `CatalogModels` of the catalog at an address. Raises BundleError, RequestError and Unavailable."""
    return importlib.import_module(CATALOG_MODELS).CatalogModels.fetch(place)


def bundle_from(
    catalog: str | None,
    model: Path,
    ignore_keys: Sequence[str],
    trust: Sequence[TrustedKey],
    *,
    runner: str | None,
    quiet: bool,
) -> tuple[Path, bool]:
    """As `bundle_of`, or the bundle of a model of the catalog, downloaded into the cache unless it is there.
    ``runner``: only the target that it runs. Raises what downloading raises, too.
    """
    models = None if catalog is None else catalog_models(catalog)
    if models is None or not models.has(str(model)):
        return bundle_of(model, ignore_keys, quiet=quiet)
    refuse_ignore_key(ignore_keys, model)
    target = None if runner == "numpy" else runner
    with progress_bars(quiet=quiet, transient=True) as bars:
        return models.cached(str(model), target, trust, phases(bars)), False


def checkpoint_of(model: Path) -> Path | None:
    """The folder or GGUF file that a path or a demo model's name stands for; None for everything else, such as a
    bundle.
    """
    try:
        if (model / MANIFEST_FILE).is_file():
            return None
        if (model / "config.json").is_file() or (model.suffix.lower() == GGUF and model.is_file()):
            return model
    except (OSError, ValueError):
        return None
    return None if model.exists() else DEMOS.get(str(model))


def open_command_runner(name: str | None, bundle: Bundle | ExportBundle, limits: Limits) -> Runner:
    """``name`` is that of ``--runner``, None if it was not given. Raises what `open_runner` raises; a device that is
    found and fails is an error, whose message names the reference.
    """
    if name is None and isinstance(bundle, Bundle):
        try:
            check_machine(bundle)
        except DeviceError as error:
            print(f"note: {error.message}. Running on the CPU with the slow numpy runner instead.", file=sys.stderr)
            name = "numpy"
    name = name or bundle.manifest.target
    try:
        return open_runner(name, bundle, limits)
    except DeviceError as error:
        if name == "numpy" or not isinstance(bundle, Bundle):
            raise
        raise DeviceError(f"{error.message}; or use --runner numpy", **error.details) from error
