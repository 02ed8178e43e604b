"""The catalog of a site, catalog.json: its models by name, and for each the bundles among which a device chooses.

`nearfar publish` writes it, `nearfar pull` and `Engine.load(name, { catalog })` read it. `schema.py` writes its types
and checks for the page.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from importlib.metadata import version

from pydantic import ConfigDict, ValidationError, field_validator

from ..bundle.entries import ActivationEntry, Entry, FileName, Sha256
from ..bundle.folder import Bundle, ExportBundle
from ..bundle.manifest import ExportManifest, Manifest
from ..ir.expr import Count, Natural
from ..ir.tasks import Task
from ..measure.report import largest_buffer_bytes, make_export_report, make_report
from ..nearest import did_you_mean
from ..runtime.errors import BundleError, RequestError
from ..shared.script import SharedScript
from .licenses import license_of, stated

CATALOG_FILE = "catalog.json"
CATALOG_VERSION = 1
# A name is a folder, a key of the catalog and a part of addresses.
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,95}")


class CatalogLicense(Entry):
    """``id`` is the hub's name, None if it is unknown. ``display``: words that a page with the model must show."""

    id: str | None
    title: str
    link: str | None
    display: list[str]


class CatalogBundle(Entry):
    """A bundle, in ``folder`` beside the catalog. ``manifest_sha256`` is the hash of its manifest, which has the hashes
    of all other files.

    ``download_bytes``: of the files that a load reads, without its manifest and its kernels.
    ``memory_bytes``: what it needs to run one sequence of ``context`` tokens; ``largest_buffer_bytes``: its largest
    buffer. ``activations`` are the dtypes that it offers, with the features that each needs. ``kl_mean``: the measured
    divergence from the checkpoint, in nats; None if it was not measured. ``signed_by``: the id of the key.
    """

    folder: FileName
    manifest_sha256: Sha256
    manifest_bytes: Natural
    target: str
    arch: str | None
    quantization: str
    context: Count
    activations: list[ActivationEntry]
    download_bytes: Natural
    memory_bytes: Natural
    largest_buffer_bytes: Natural
    kl_mean: float | None
    signed_by: str | None

    model_config = ConfigDict(allow_inf_nan=False)


class CatalogModel(Entry):
    """``bundles``: for each target the most exact first."""

    model: str
    task: Task
    license: CatalogLicense
    base_models: list[str]
    bundles: list[CatalogBundle]


class Catalog(Entry):
    """``models``: by the names by which they are loaded."""

    format_version: Natural
    generator: str
    models: dict[str, CatalogModel]

    @field_validator("models")
    @classmethod
    def _have_names(cls, models: dict[str, CatalogModel]) -> dict[str, CatalogModel]:
        for name in models:
            if not is_model_name(name):
                raise ValueError(f"{name[:80]!r} is not a name of a model")
        return models

    def model(self, name: str) -> CatalogModel:
        """Raises RequestError for a name that it does not have."""
        if name not in self.models:
            known = ", ".join(self.models) or "none"
            raise RequestError(
                f"{name}: the catalog has no such model; it has {known}{did_you_mean(name, list(self.models))}"
            )
        return self.models[name]

    def to_bytes(self) -> bytes:
        return json.dumps(self.model_dump(mode="json"), indent=1, ensure_ascii=False).encode() + b"\n"


def is_model_name(name: str) -> bool:
    return _NAME.fullmatch(name) is not None


def read_catalog(data: bytes, where: str) -> Catalog:
    """Raises BundleError."""
    try:
        found = json.loads(data)
        version_found = found.get("format_version") if isinstance(found, dict) else None
        if version_found != CATALOG_VERSION:
            raise BundleError(
                f"{where}: has format version {version_found}, but this nearfar reads {CATALOG_VERSION}; publish the "
                "site again, or use the nearfar of its release"
            )
        return Catalog.model_validate_json(data, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise BundleError(f"{where}: {place}: {first['msg']}; publish the site again") from error
    except (ValueError, RecursionError) as error:
        raise BundleError(f"{where}: is not a catalog ({error}); give the address of a catalog.json") from error


def with_model(former: Catalog | None, name: str, model: CatalogModel) -> Catalog:
    """The catalog with a model added, or replaced."""
    models: Mapping[str, CatalogModel] = {} if former is None else former.models
    return Catalog(
        format_version=CATALOG_VERSION,
        generator=f"nearfar {version('nearfar')}",
        models=dict(sorted({**models, name: model}.items())),
    )


def model_entry(bundles: Sequence[Bundle | ExportBundle], entries: Sequence[CatalogBundle]) -> CatalogModel:
    """The entry of a model, of its bundles and their entries."""
    manifest = bundles[0].manifest
    known = license_of(manifest.origin)
    link = None if manifest.origin is None else manifest.origin.license_link
    return CatalogModel(
        model=manifest.model,
        task=manifest.task,
        license=CatalogLicense(
            id=None if known is None else known.id,
            title=stated(manifest.origin),
            link=link or (None if known is None else known.url),
            display=[] if known is None else known.texts("display"),
        ),
        base_models=[] if manifest.origin is None else made_from(bundles[0]),
        bundles=sorted(entries, key=lambda each: (each.target, -each.download_bytes)),
    )


def made_from(bundle: Bundle | ExportBundle) -> list[str]:
    """The repository of the checkpoint, or the models that the checkpoint was made from."""
    origin = bundle.manifest.origin
    if origin is None:
        return []
    return [origin.repository] if origin.repository is not None else origin.base_models


def bundle_entry(
    bundle: Bundle | ExportBundle, folder: str, manifest_sha256: str, *, kl_mean: float | None, signed_by: str | None
) -> CatalogBundle:
    manifest = bundle.manifest
    manifest_bytes = (bundle.path / "manifest.json").stat().st_size
    if isinstance(manifest, Manifest):
        memory = make_report(manifest).runtime_memory_bytes
        activations, largest = manifest.activations, largest_buffer_bytes(manifest)
    else:
        memory = make_export_report(manifest).runtime_memory_bytes
        activations, largest = [], max(file.size for file in manifest.files)
    return CatalogBundle(
        folder=folder,
        manifest_sha256=manifest_sha256,
        manifest_bytes=manifest_bytes,
        target=manifest.target,
        arch=manifest.arch if isinstance(manifest, Manifest) else None,
        quantization=manifest.quantization,
        context=manifest.context,
        activations=activations,
        download_bytes=download_bytes(manifest),
        memory_bytes=memory,
        largest_buffer_bytes=largest,
        kl_mean=kl_mean,
        signed_by=signed_by,
    )


def download_bytes(manifest: Manifest | ExportManifest) -> int:
    """The size of a download as pages report it: that of the files that `web/src/shared/files_to_load.ts` lists."""
    listed = manifest.model_dump(include={"target", "shards", "files", "tokenizer"})
    return sum(each["size"] for each in SharedScript.of_thread().ask("filesToLoad", listed))
