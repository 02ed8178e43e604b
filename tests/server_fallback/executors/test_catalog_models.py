"""Models of a catalog: the bundle that a machine chooses, its download into the cache, and the commands that use it."""

from __future__ import annotations

import asyncio
import json
import platform
import shutil
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nearfar.compiler.bundle.folder import open_any
from nearfar.compiler.cli import main
from nearfar.compiler.publish.card import Measured
from nearfar.compiler.publish.catalog import Catalog, CatalogBundle, read_catalog
from nearfar.compiler.publish.site import SiteOptions, Source, write_site
from nearfar.compiler.runtime.errors import DeviceError, RequestError
from nearfar.server_fallback.executors import catalog_models
from nearfar.server_fallback.executors.catalog_models import CatalogModels
from nearfar.server_fallback.executors.local_opener import LocalOpener
from nearfar.server_fallback.executors.local_options import LocalOptions

GIB = 2**30


@pytest.fixture
def site(tiny_bundle: Path, tmp_path: Path) -> Path:
    source = Source(open_any(tiny_bundle), Measured(reason="a test"))
    write_site([source], tmp_path / "site", SiteOptions("tiny", "test", web=False))
    return tmp_path / "site"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine that runs every bundle."""
    monkeypatch.setenv("NEARFAR_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(catalog_models, "misfit", lambda _: None)
    return tmp_path / "cache"


def offering(site: Path, *offers: dict[str, Any]) -> CatalogModels:
    catalog = read_catalog((site / "catalog.json").read_bytes(), "catalog.json")
    model = catalog.models["tiny"]
    bundles: Sequence[CatalogBundle] = [
        model.bundles[0].model_copy(update={"folder": f"tiny/{index}", **offer}) for index, offer in enumerate(offers)
    ]
    models = {"tiny": model.model_copy(update={"bundles": list(bundles)})}
    return CatalogModels(Catalog(**{**dict(catalog), "models": models}), "")


CPU = {"target": "cpu", "arch": platform.machine()}


@pytest.mark.parametrize(
    ("offers", "target", "chosen"),
    [
        # The most exact one that fits into 0.9 of 2 GiB.
        ([{**CPU, "memory_bytes": 2 * GIB}, {**CPU, "memory_bytes": GIB}, {**CPU, "memory_bytes": 1}], None, 1),
        # Of its own architecture, and the faster target first.
        ([{"target": "onnx"}, {**CPU, "arch": "pdp11"}, CPU], None, 2),
        ([{"target": "onnx"}, CPU], "onnx", 0),
    ],
)
def test_a_machine_chooses_what_fits_it(
    site: Path, offers: list[dict[str, Any]], target: str | None, chosen: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog_models, "models_memory_bytes", lambda _: int(1.8 * GIB))
    assert offering(site, *offers).choose("tiny", target).folder == f"tiny/{chosen}"


def test_what_does_not_fit_is_refused_with_each_reason(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog_models, "models_memory_bytes", lambda _: GIB)
    models = offering(site, {**CPU, "arch": "pdp11"}, {**CPU, "memory_bytes": 2 * GIB}, {"target": "elsewhere"})
    with pytest.raises(DeviceError) as raised:
        models.choose("tiny")
    refusals: Any = raised.value.details["refusals"]
    assert [str(each).partition(",")[0] for each in refusals] == [
        "tiny/0: the bundle is for pdp11 on Linux",
        "tiny/1: it needs 2.15 GB of memory",
    ]
    assert refusals[1] == "tiny/1: it needs 2.15 GB of memory, this device has 1.07 GB for it"
    with pytest.raises(DeviceError, match="it has bundles for cpu, elsewhere only"):
        models.choose("tiny", "mlx")


def test_a_bundle_is_downloaded_once_and_a_new_version_keeps_equal_files(
    site: Path, tiny_bundle: Path, cache: Path, tmp_path: Path
) -> None:
    old = CatalogModels.fetch(str(site)).cached("tiny", "webgpu", ())
    manifest = json.loads((tiny_bundle / "manifest.json").read_text())
    newer = shutil.copytree(tiny_bundle, tmp_path / "newer")
    (newer / "manifest.json").write_text(json.dumps({**manifest, "generator": "another"}))
    write_site([Source(open_any(newer), Measured(reason="a test"))], site, SiteOptions("tiny", "test", web=False))
    new = CatalogModels.fetch(str(site)).cached("tiny", "webgpu", ())
    assert new != old
    assert {new.parent, old.parent} == {cache / "bundles"}
    shards = [path.relative_to(old) for path in (old / "weights").iterdir()]
    assert [(new / shard).stat().st_ino for shard in shards] == [(old / shard).stat().st_ino for shard in shards]
    # It is there now, so nothing of it is read again.
    for path in (site / "tiny/webgpu/weights").iterdir():
        path.unlink()
    assert CatalogModels.fetch(str(site)).cached("tiny", "webgpu", ()) == new


def test_run_and_serve_find_the_model_of_a_catalog(
    site: Path, cache: Path, tiny_bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["go", "--runner", "numpy", "--max-tokens", "3", "--json"]
    assert main(["run", "tiny", *options, "--catalog", str(site)]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert main(["run", str(tiny_bundle), *options]) == 0
    assert json.loads(capsys.readouterr().out)["token_ids"] == answer["token_ids"]
    opener = LocalOpener(LocalOptions(catalog=str(site), max_sequences=1))
    opening = asyncio.run(opener.prepare("tiny", None))
    assert (opening.name, opening.task) == ("tiny", "generate")
    # A path is a path, and a name that nothing has is refused.
    assert asyncio.run(opener.prepare(str(tiny_bundle), None)).task == "generate"
    with pytest.raises(RequestError, match="it has tiny; did you mean 'tiny'"):
        asyncio.run(opener.prepare("tinny", None))
    assert len(list((cache / "bundles").glob("tiny-*/"))) == 1


def test_a_bundle_that_offers_nothing_to_run_is_refused_as_any_other(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nearfar.targets.webgpu.device.require_adapter", lambda _: SimpleNamespace(features=()))
    with pytest.raises(DeviceError, match="tiny/0: this device lacks its activations"):
        offering(site, {"target": "webgpu", "activations": []}).choose("tiny")
