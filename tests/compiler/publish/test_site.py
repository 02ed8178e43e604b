"""Sites: their catalog, card, license and hashes, what a second version keeps, and what cannot be published."""

from __future__ import annotations

import base64
import errno
import json
import math
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256, sha384
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard
from light_bundle import few_kernels

from nearfar.compiler.bundle.folder import open_any
from nearfar.compiler.bundle.signature import new_key, read_trusted_keys, sign
from nearfar.compiler.pipeline.compile import compile_model
from nearfar.compiler.pipeline.options import CompileOptions
from nearfar.compiler.publish import site as site_module
from nearfar.compiler.publish.card import Measured
from nearfar.compiler.publish.catalog import Catalog, read_catalog
from nearfar.compiler.publish.library import DIST, LIBRARY_FOLDER, NOTICES, library_files
from nearfar.compiler.publish.site import Published, SiteOptions, Source, site_name, write_site
from nearfar.compiler.runtime.errors import BundleError, OutputError, RequestError

OPTIONS = SiteOptions(name="llama-tiny", command="nearfar publish Llama-tiny", web=False)
CARD = "---\nlicense: llama3.2\nbase_model: meta-llama/Llama-3.2-1B\n---\n"
MEASURED = Measured(0.0123, 0.98, 1.002, 100, "a text", "numpy")


@pytest.fixture(scope="module")
def bundle(tiny_checkpoints: Mapping[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of a model under Llama's license."""
    folder = tmp_path_factory.mktemp("published")
    model = folder / "Llama-tiny"
    shutil.copytree(tiny_checkpoints["llama"], model)
    (model / "README.md").write_text(CARD)
    with few_kernels():
        compile_model(str(model), folder / "bundle", CompileOptions(self_test=False))
    return folder / "bundle"


def publish(bundle: Path, output: Path, measured: Measured = MEASURED, **changes: Any) -> Published:
    return write_site([Source(open_any(bundle), measured)], output, replace(OPTIONS, **changes))


def catalog_of(site: Path) -> Catalog:
    return read_catalog((site / "catalog.json").read_bytes(), "catalog.json")


def changed(bundle: Path, folder: Path) -> Path:
    """Another version: a shard has other bytes."""
    shutil.copytree(bundle, folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    shard = manifest["shards"][0]
    data = bytearray((folder / shard["file"]).read_bytes())
    data[0] ^= 1
    (folder / shard["file"]).write_bytes(data)
    shard["sha256"] = sha256(data).hexdigest()
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


def test_the_catalog_has_what_a_device_chooses_by(bundle: Path, tmp_path: Path) -> None:
    publish(bundle, tmp_path / "site")
    model = catalog_of(tmp_path / "site").model("llama-tiny")
    [entry] = model.bundles
    published = tmp_path / "site" / entry.folder
    assert entry.manifest_sha256 == sha256((published / "manifest.json").read_bytes()).hexdigest()
    loaded = [*published.glob("weights/*"), *published.glob("tokenizer*.json")]
    assert entry.download_bytes == sum(path.stat().st_size for path in loaded) > 0
    assert (entry.target, entry.kl_mean, model.task) == ("webgpu", 0.0123, "generate")
    weights = max(plane.size for weight in open_any(bundle).manifest.weights.values() for plane in weight.planes)  # type: ignore[union-attr]
    assert weights <= entry.largest_buffer_bytes < entry.memory_bytes
    assert (model.license.id, model.license.display) == ("llama3.2", ["Built with Llama"])
    with pytest.raises(RequestError, match="did you mean 'llama-tiny'"):
        catalog_of(tmp_path / "site").model("llama-tinny")


def test_files_of_a_bundle_have_their_hashes_in_their_names(bundle: Path, tmp_path: Path) -> None:
    publish(bundle, tmp_path / "site")
    published = open_any(tmp_path / "site/llama-tiny/webgpu")
    published.verify()
    for file, digest in dict(published.hashes()).items():
        assert f"-{digest[:12]}." in file, file
    # A bundle that was published keeps its names, and so its readers keep its files.
    publish(published.path, tmp_path / "again")
    assert dict(open_any(tmp_path / "again/llama-tiny/webgpu").hashes()) == dict(published.hashes())
    before, after = open_any(bundle).manifest.model_dump(), published.manifest.model_dump()
    for table in ("weights", "plans", "variants", "spec"):
        assert before[table] == after[table]


def test_the_card_states_license_quality_and_making_as_the_hub_reads_them(bundle: Path, tmp_path: Path) -> None:
    publish(bundle, tmp_path / "site")
    text = (tmp_path / "site/README.md").read_text()
    header: Any = vars(ModelCard(text).data)
    assert header["license"] == "llama3.2"
    assert header["base_model"] == ["meta-llama/Llama-3.2-1B"]
    assert header["pipeline_tag"] == "text-generation"
    assert header["tags"] == ["nearfar", "webgpu"]
    for words in ("**Built with Llama**", "KL 0.0123 nats", "100 tokens of a text", "nearfar publish Llama-tiny"):
        assert words in text
    page = (tmp_path / "site/index.html").read_text()
    assert "<strong>Built with Llama</strong>" in page
    assert "<script" not in page
    # Browsers request /favicon.ico of a page that names no icon.
    assert '<link rel="icon" href="data:," />' in page
    assert (tmp_path / "site/llama-tiny/NOTICE").read_text().startswith("Llama 3.2 is licensed under")


def test_the_checkpoints_own_files_about_its_terms_are_published(bundle: Path, tmp_path: Path) -> None:
    files = [tmp_path / "LICENSE.txt", tmp_path / "Notice"]
    for file in files:
        file.write_text(f"the text of {file.name}")
    publish(bundle, tmp_path / "site", license_files=files)
    folder = tmp_path / "site/llama-tiny"
    assert (folder / "LICENSE.txt").read_text() == "the text of LICENSE.txt"
    assert not (folder / "NOTICE").exists()
    assert "LICENSE.txt, Notice" in (folder / "README.md").read_text()


def test_a_second_version_keeps_the_files_that_are_equal(bundle: Path, tmp_path: Path) -> None:
    first = publish(bundle, tmp_path / "site")
    assert first.kept_bytes == 0
    webgpu = tmp_path / "site/llama-tiny/webgpu"
    tokenizer = next(webgpu.glob("tokenizer-*.json"))
    inode, shards = tokenizer.stat().st_ino, set((webgpu / "weights").iterdir())
    second = publish(changed(bundle, tmp_path / "changed"), tmp_path / "site")
    assert second.former
    assert tokenizer.stat().st_ino == inode
    assert second.new_bytes == sum(path.stat().st_size for path in set((webgpu / "weights").iterdir()) - shards) > 0
    assert second.new_bytes + second.kept_bytes == first.new_bytes
    open_any(webgpu).verify()


def test_a_version_without_the_signature_of_the_former_one_is_refused(bundle: Path, tmp_path: Path) -> None:
    new_key(tmp_path / "key.pem")
    publish(bundle, tmp_path / "site", key=tmp_path / "key.pem")
    former = (tmp_path / "site/llama-tiny/webgpu/manifest.json").read_bytes()
    with pytest.raises(RequestError, match=r"is signed by \S+, and the new version would not be; pass --key"):
        publish(changed(bundle, tmp_path / "changed"), tmp_path / "site")
    assert (tmp_path / "site/llama-tiny/webgpu/manifest.json").read_bytes() == former


@pytest.mark.parametrize("figures", [(math.nan, 1.0, 1.0), (0.1, math.nan, 1.0), (0.1, 0.9, math.inf)])
def test_a_quality_that_is_no_number_is_not_published(figures: tuple[float, float, float]) -> None:
    with pytest.raises(BundleError, match=r"is not a number .* over 100 tokens of a text, computed by numpy"):
        Measured(*figures, 100, "a text", "numpy")


def test_a_catalog_whose_figures_are_no_numbers_is_refused(bundle: Path, tmp_path: Path) -> None:
    publish(bundle, tmp_path / "site")
    data = (tmp_path / "site/catalog.json").read_bytes()
    with pytest.raises(BundleError, match="kl_mean: Input should be a finite number"):
        read_catalog(data.replace(b'"kl_mean": 0.0123', b'"kl_mean": NaN'), "catalog.json")


def test_a_site_that_fails_half_way_stays_as_it_was(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(bundle, tmp_path / "site")
    before = {path: path.read_bytes() for path in (tmp_path / "site").rglob("*") if path.is_file()}

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(site_module, "write_pages", fail)
    other = changed(bundle, tmp_path / "changed")
    with pytest.raises(OutputError, match="the disk is full"):
        publish(other, tmp_path / "site")
    assert {path: path.read_bytes() for path in (tmp_path / "site").rglob("*") if path.is_file()} == before
    with pytest.raises(OutputError, match="the disk is full"):
        publish(other, tmp_path / "new")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["changed", "site"]


def test_a_folder_that_is_no_site_is_not_replaced(bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.tex").write_text("years of work")
    with pytest.raises(OutputError, match=r"is not a folder with catalog\.json"):
        publish(bundle, tmp_path / "mine")
    assert (tmp_path / "mine/thesis.tex").read_text() == "years of work"


def test_what_others_put_into_a_site_stays(bundle: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    publish(bundle, site)
    (site / ".git/objects").mkdir(parents=True)
    (site / ".git/objects/1").write_text("history")
    (site / "CNAME").write_text("models.example")
    (site / "latest").symlink_to("llama-tiny")
    publish(bundle, site, name="llama-other")
    publish(bundle, site)
    assert (site / ".git/objects/1").read_text() == "history"
    assert (site / "CNAME").read_text() == "models.example"
    assert (site / "latest").readlink() == Path("llama-tiny")
    (site / "llama-mine").mkdir()
    with pytest.raises(OutputError, match="llama-mine: exists, and is not a model of the catalog"):
        publish(bundle, site, name="llama-mine")


def test_names_in_a_catalog_lead_nowhere_else(bundle: Path, tmp_path: Path) -> None:
    publish(bundle, tmp_path / "site")
    catalog = tmp_path / "site/catalog.json"
    data = json.loads(catalog.read_text())
    for name in ("../mine", "/mine", "..", "<script>", ""):
        catalog.write_text(json.dumps({**data, "models": {name: data["models"]["llama-tiny"]}}))
        with pytest.raises(BundleError, match="is not a name of a model"):
            publish(bundle, tmp_path / "site")
    with pytest.raises(BundleError, match="is not a catalog"):
        read_catalog(b"[" * 200_000, "catalog.json")


def test_temporary_bundles_may_be_on_another_file_system(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = tmp_path / "scratch"
    shutil.copytree(bundle, scratch)

    def other_device(rename: Any) -> Any:
        def renamed(source: Any, target: Any, **options: Any) -> None:
            if scratch in Path(source).parents:
                raise OSError(errno.EXDEV, "Invalid cross-device link")
            rename(source, target, **options)

        return renamed

    monkeypatch.setattr(os, "rename", other_device(os.rename))
    monkeypatch.setattr(os, "replace", other_device(os.replace))
    write_site([Source(open_any(scratch), MEASURED, move=True)], tmp_path / "site", OPTIONS)
    open_any(tmp_path / "site/llama-tiny/webgpu").verify()


def test_a_key_signs_the_published_manifest(bundle: Path, tmp_path: Path) -> None:
    key = tmp_path / "key.pem"
    key_id = new_key(key)
    publish(bundle, tmp_path / "site", key=key)
    trust = read_trusted_keys([key.with_name("key.pem.pub")])
    open_any(tmp_path / "site/llama-tiny/webgpu", trust).verify()
    assert catalog_of(tmp_path / "site").model("llama-tiny").bundles[0].signed_by == key_id


def test_a_signed_bundle_stays_as_its_author_signed_it(bundle: Path, tmp_path: Path) -> None:
    key, signed = tmp_path / "key.pem", tmp_path / "signed"
    key_id = new_key(key)
    shutil.copytree(bundle, signed)
    sign(signed, (signed / "manifest.json").read_bytes(), key)
    publish(signed, tmp_path / "site")
    published = tmp_path / "site/llama-tiny/webgpu"
    assert (published / "manifest.json").read_bytes() == (signed / "manifest.json").read_bytes()
    open_any(published, read_trusted_keys([key.with_name("key.pem.pub")])).verify()
    assert catalog_of(tmp_path / "site").model("llama-tiny").bundles[0].signed_by == key_id
    # Names without hashes may change their bytes.
    assert "immutable" not in (tmp_path / "site/_headers").read_text()


def test_names_without_hashes_are_linked_only_if_their_bytes_are_equal(bundle: Path, tmp_path: Path) -> None:
    key = tmp_path / "key.pem"
    new_key(key)
    versions = [shutil.copytree(bundle, tmp_path / "first"), changed(bundle, tmp_path / "second")]
    for version in versions:
        sign(version, (version / "manifest.json").read_bytes(), key)
        last = publish(version, tmp_path / "site")
    open_any(tmp_path / "site/llama-tiny/webgpu").verify()
    assert last.new_bytes == open_any(bundle).manifest.shards[0].size  # type: ignore[union-attr]


def test_a_damaged_bundle_is_not_published(bundle: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged"
    shutil.copytree(bundle, damaged)
    shard = next((damaged / "weights").iterdir())
    shard.write_bytes(b"\1" + shard.read_bytes()[1:])
    with pytest.raises(Exception, match="is corrupt"):
        publish(damaged, tmp_path / "site")
    assert not (tmp_path / "site").exists()


def test_a_second_model_is_added(bundle: Path, tmp_path: Path) -> None:
    publish(bundle, tmp_path / "site")
    publish(bundle, tmp_path / "site", name="llama-other")
    assert list(catalog_of(tmp_path / "site").models) == ["llama-other", "llama-tiny"]
    for name in ("llama-other", "llama-tiny"):
        open_any(tmp_path / "site" / name / "webgpu").verify()
        assert f"[{name}]({name}/README.md)" in (tmp_path / "site/README.md").read_text()
        assert f"/{name}/webgpu/weights/*" in (tmp_path / "site/_headers").read_text()


def test_the_license_decides_how_the_name_begins(bundle: Path, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="begins with 'Llama'"):
        publish(bundle, tmp_path / "site", name="my-model")
    for name in ("chat", "catalog.json", "readme.md", "Ll", "a/b", "..", ""):
        with pytest.raises(RequestError, match="--name"):
            publish(bundle, tmp_path / "site", name=name)
    assert site_name("Qwen3-0.6B (mine)") == "qwen3-0.6b-mine"


def test_two_bundles_of_one_kind_are_refused(bundle: Path, tmp_path: Path) -> None:
    source = Source(open_any(bundle), MEASURED)
    with pytest.raises(RequestError, match="another bundle is llama-tiny/webgpu-q4f16"):
        write_site([source, source], tmp_path / "site", OPTIONS)


def test_the_snippet_pins_every_file_of_the_library(bundle: Path, tmp_path: Path) -> None:
    publish(bundle, tmp_path / "site", web=True, base="https://models.example/")
    snippet = (tmp_path / "site/llama-tiny/snippet.html").read_text()
    mapped = json.loads(re.findall(r'<script type="importmap">(.*?)</script>', snippet, re.DOTALL)[0])
    (version,) = (tmp_path / "site" / LIBRARY_FOLDER).iterdir()
    address = f"https://models.example/{LIBRARY_FOLDER}/{version.name}"
    assert mapped["imports"] == {
        "@nearfar/web": f"{address}/nearfar.js",
        "@nearfar/web/probe": f"{address}/probe.js",
    }
    there = sorted(version.glob("*.js"))
    assert len(there) == len(library_files()) > 10
    for path in there:
        digest = base64.b64encode(sha384(path.read_bytes()).digest()).decode()
        assert mapped["integrity"][f"{address}/{path.name}"] == f"sha384-{digest}"
    assert 'Engine.load("llama-tiny", { catalog: "https://models.example/catalog.json" })' in snippet
    chat = (tmp_path / "site/chat/index.html").read_text()
    assert '<meta name="bundle" content="../llama-tiny/webgpu/" />' in chat
    listed = json.loads((tmp_path / "site/chat/bundles.json").read_text())
    assert listed == [{"name": "llama-tiny", "bundle": "../llama-tiny/webgpu/"}]


def test_a_newer_library_leaves_the_one_whose_hashes_pages_have(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site"
    publish(bundle, site, web=True)
    before = {path: path.read_bytes() for path in (site / LIBRARY_FOLDER).rglob("*.js")}
    publish(bundle, site, web=True)
    assert {path: path.read_bytes() for path in (site / LIBRARY_FOLDER).rglob("*.js")} == before
    newer = tmp_path / "dist"
    newer.mkdir()
    for path in (*library_files(), DIST / NOTICES):
        (newer / path.name).write_bytes(path.read_bytes() + b"\n")
    monkeypatch.setattr("nearfar.compiler.publish.library.DIST", newer)
    publish(bundle, site, web=True)
    assert {path: path.read_bytes() for path in before} == before
    assert len(list((site / LIBRARY_FOLDER).iterdir())) == 2
