"""The model store: what is stored once, inherited, removed and pruned."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from fake_hub import fake_hub
from huggingface_hub import constants
from safetensors.numpy import save_file
from server_thread import serving

from nearfar.compiler.bundle.folder import Bundle, open_any
from nearfar.compiler.demo import CHECKPOINT
from nearfar.compiler.export.gguf_file import GgufOptions, export_gguf
from nearfar.compiler.formats import load
from nearfar.compiler.publish import fetch
from nearfar.compiler.publish.card import Measured
from nearfar.compiler.publish.pull import fetch_catalog
from nearfar.compiler.publish.site import SiteOptions, Source, write_site
from nearfar.compiler.runtime.errors import CheckpointError, RequestError, Unavailable, UnsupportedModel
from nearfar.compiler.store.bundles import HeldBundle, bundles_folder, evict_bundles, note_source
from nearfar.compiler.store.model import Changes, Files, StoredMessage, require_possible
from nearfar.compiler.store.names import StoreName, UnknownModel
from nearfar.compiler.store.opening import compile_fields, with_template
from nearfar.compiler.store.parameters import Parameters
from nearfar.compiler.store.store import Store


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("NEARFAR_CACHE", str(tmp_path / "store"))
    return Store.of_user()


@pytest.fixture(scope="module")
def tiny_gguf(light_demo: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "demo.gguf"
    bundle = open_any(light_demo)
    assert isinstance(bundle, Bundle)
    # llama.cpp has no name for the demo's split of words.
    export_gguf(bundle, path, GgufOptions("f32", pre="gpt-2"))
    return path


def files_of(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_a_folder_is_stored_by_its_content_and_read_like_the_original(store: Store) -> None:
    progress = list[tuple[str, int, int]]()
    model = store.pull(str(CHECKPOINT), "Own/Demo:q8f16", lambda *each: progress.append(each))
    assert (progress[0], progress[-1]) == (("copy", 0, 0), ("read", 0, 0))
    assert progress[-2] == ("copy", model.size_bytes, model.size_bytes)
    assert (model.name, model.quantization) == ("Own/Demo:q8f16", None)
    path = store.path(model)
    assert path.name == CHECKPOINT.name
    assert (path / "model.safetensors").read_bytes() == (CHECKPOINT / "model.safetensors").read_bytes()
    assert load("own/demo:Q8F16").spec == load(str(CHECKPOINT)).spec
    assert model.details.num_parameters == 869_504
    # A second name and a second pull take no space.
    size = store.size_bytes()
    store.pull(str(CHECKPOINT), "other")
    store.copy("other", "third")
    assert store.size_bytes() - size < 20_000
    assert [each.name for each in store.models()] == ["third", "other", "Own/Demo:q8f16"]
    # What no model needs goes with the last that needed it.
    assert store.remove("other") == store.remove("third") == 0
    assert store.remove("own/demo:q8f16") > (CHECKPOINT / "model.safetensors").stat().st_size
    assert files_of(store.folder) == ["store.lock"]


def test_a_quantization_after_a_colon_is_that_to_compile_with(store: Store) -> None:
    model = store.pull(f"{CHECKPOINT}:q8f16")
    assert (model.name, model.quantization) == ("nearfar-demo:q8f16", "q8f16")
    assert compile_fields(model, store, {"quantization": None}) == {"quantization": "q8f16"}
    assert compile_fields(model, store, {"quantization": "f32"}) == {}
    # What other commands would not apply, they refuse.
    with pytest.raises(CheckpointError, match=r"has a quantization of its own, .*; here, pass its files, /"):
        load("nearfar-demo:q8f16")


def test_a_derived_model_inherits_and_outlives_its_base(store: Store) -> None:
    base = store.pull("demo", "base")
    first = Changes(system="Be kind.", parameters=Parameters(temperature=0.0, num_ctx=128), license=("MIT",))
    store.create("first", "base", first)
    message = StoredMessage(role="user", content="hi")
    second = store.create("second", "first", Changes(messages=(message,), parameters=Parameters(top_k=3)))
    assert (second.system, second.parent, second.license) == ("Be kind.", "first", ("MIT",))
    assert second.parameters.given() == {"num_ctx": 128, "temperature": 0.0, "top_k": 3}
    assert compile_fields(second, store, {"context": None}) == {"context": 128}
    for name in ("base", "first"):
        store.remove(name)
    found = store.get("second")
    assert found == second
    assert store.path(found) == CHECKPOINT
    # What requests inherit needs no engine of its own; another context does.
    assert second.engine_key == store.create("third", "second", Changes(system="Be brief.")).engine_key
    assert second.engine_key != base.engine_key


def test_a_template_replaces_that_of_the_bundle(store: Store, light_demo: Path) -> None:
    template = "{% for m in messages %}{{ m.content }}{% endfor %}!"
    model = store.create("own", str(light_demo), Changes(template=template))
    bundle = with_template(open_any(store.path(model)), model)
    assert bundle.manifest.tokenizer.chat_template == model.template
    assert bundle.tokenizer_files().chat_template == model.template
    with pytest.raises(RequestError):
        store.create("broken", "own", Changes(template="{% for %}"))


def test_an_adapter_is_stored_and_sets_the_rank(store: Store, tmp_path: Path) -> None:
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    with pytest.raises(CheckpointError, match=r"has no adapter_config.json; pass the folder of a LoRA adapter"):
        store.create("adapted", "demo", Changes(adapter=adapter))
    (adapter / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 4, "lora_alpha": 8}')
    matrix = np.zeros((4, 8), np.float32)
    for name in ("base_model.model.model.embed_tokens.lora_embedding_A", "base_model.model.lm_head.lora_A.weight"):
        save_file({name: matrix}, adapter / "adapter_model.safetensors")
        with pytest.raises(UnsupportedModel, match=f"{name}' is not a LoRA matrix of a layer's projection"):
            store.create("adapted", "demo", Changes(adapter=adapter))
    name = "base_model.model.model.layers.0.mlp.up_proj.lora_A.weight"
    save_file({name: matrix}, adapter / "adapter_model.safetensors")
    model = store.create("adapted", "demo", Changes(adapter=adapter))
    shutil.rmtree(adapter)
    assert compile_fields(model, store, {"lora_rank": 0}) == {"lora_rank": 4}
    assert store.remove("adapted") > 0


@pytest.mark.parametrize(
    ("text", "shown"), [("a", "a"), ("a:latest", "a"), ("Own/a:Q4_K_M", "Own/a:Q4_K_M"), ("hf.co/o/n", "hf.co/o/n")]
)
def test_names(text: str, shown: str) -> None:
    assert str(StoreName.parse(text)) == shown
    assert StoreName.parse(text.upper()).file == StoreName.parse(text).file


def test_names_never_lead_to_the_same_file_or_out_of_the_folder() -> None:
    names = ["a", "a:b", "a/b", "a--b", "a/b:c", "a/b/c", "a.json", "a:b.json", "a_b", "a%2Fb"[:1] + "-2Fb"]
    files = [StoreName.parse(name).file for name in names]
    assert len(set(files)) == len(names)
    assert all(os.sep not in file and not file.startswith(".") for file in files)
    for text in ("", "..", "../a", "a/../b", "/etc/passwd", "a//b", "a/b/c/d", "a b", "a:b:c", "a\0", "é", "a" * 201):
        with pytest.raises(RequestError, match="is not a name of a stored model"):
            StoreName.parse(text)


def test_an_unknown_name_is_an_error_that_proposes_another(store: Store) -> None:
    store.pull("demo", "kitchen")
    with pytest.raises(UnknownModel, match="has no such model; did you mean 'kitchen'"):
        store.remove("kitchem")
    assert store.find("../kitchen") is None


def test_only_readable_models_are_stored(store: Store, tmp_path: Path) -> None:
    shutil.copytree(CHECKPOINT, tmp_path / "broken")
    (tmp_path / "broken/config.json").write_text('{"model_type": "unheard_of"}')
    with pytest.raises(CheckpointError, match="unheard_of"):
        store.pull(str(tmp_path / "broken"))
    with pytest.raises(CheckpointError, match="is neither a path, the address of a GGUF file"):
        store.pull("no-such-model")
    for place in ("demo", str(CHECKPOINT), "https://x.invalid/m.gguf"):
        with pytest.raises(
            RequestError, match=r"the quantization 'Q4_K_M' is not known; known: q4f16, .*Q8_0 for q8f16"
        ):
            store.pull(f"{place}:Q4_K_M")
    assert store.models() == []
    store.prune(10**12)
    assert files_of(store.folder) == ["store.lock"]


def test_a_quantization_and_a_context_that_the_files_cannot_have_are_refused(store: Store) -> None:
    store.pull("demo", "base")
    for changes, message in (
        (Changes(quantization="q4_K_M"), "x: the quantization 'q4_K_M' is not known"),
        (Changes(parameters=Parameters(num_ctx=99_999_999)), "num_ctx is 99999999, but the model's context is 512"),
    ):
        with pytest.raises(RequestError, match=message):
            store.create("x", "base", changes)
    assert store.create("x", "base", Changes(quantization="q8f16", parameters=Parameters(num_ctx=512)))
    compiled = store.get("base").model_copy(update={"quantization": "q8f16"})
    for format, stored, state in (("bundle", "q4f16", "compiled"), ("gguf", "q4g32_f16", "quantized")):
        details = compiled.details.model_copy(update={"format": format, "quantization": stored})
        with pytest.raises(RequestError, match=f"the weights are {state} already \\({stored}\\); leave it out"):
            require_possible(compiled.model_copy(update={"details": details}))


# --- downloads ---


class Gguf:
    """A web server with one file. The first connection is lost after ``limit`` bytes."""

    def __init__(self, content: bytes) -> None:
        self.content, self.etag, self.limit = content, '"one"', 10**9
        self.ranges = list[str | None]()
        self.url = ""


@contextmanager
def web(content: bytes) -> Iterator[Gguf]:
    state = Gguf(content)

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            wanted = self.headers.get("Range")
            state.ranges.append(wanted)
            same = self.headers.get("If-Range") == state.etag
            start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and same else 0
            body = state.content[start:]
            self.send_response(206 if start else 200)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("ETag", state.etag)
            self.end_headers()
            limit, state.limit = state.limit, 10**9
            self.wfile.write(body[:limit])

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler))
    state.url = f"http://127.0.0.1:{server.server_address[1]}/Own%20Model.Q8_0.gguf"
    with serving(server):
        yield state


def test_a_file_at_an_address_is_continued_if_it_is_still_the_same(
    store: Store, tiny_gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = tiny_gguf.read_bytes()
    monkeypatch.setattr(fetch, "PAUSE_S", 0.0)
    with web(content) as server:
        server.limit = len(content) // 2
        model = store.pull(server.url)
        assert server.ranges == [None, f"bytes={len(content) // 2}-"]
        assert (model.name, store.path(model).read_bytes() == content) == ("Own-Model.Q8_0", True)
        # A run that was broken off, and a file that changed meanwhile.
        monkeypatch.setattr(fetch, "ATTEMPTS", 1)
        server.limit = 100
        with pytest.raises(Unavailable, match="which continues"):
            store.pull(server.url, "again")
        server.etag, server.ranges = '"two"', []
        again = store.pull(f"{server.url}#sha256={sha256(content).hexdigest()}", "again")
        assert (server.ranges, again.source) == (["bytes=100-"], model.source)
        with pytest.raises(CheckpointError, match="has SHA-256"):
            store.pull(f"{server.url}#sha256={'0' * 64}", "lying")
        assert store.find("lying") is None
    assert [path for path in (store.folder / "downloads").iterdir() if path.is_dir()] == []


def test_bundles_of_a_site_share_equal_files(store: Store, tiny_bundle: Path, tmp_path: Path) -> None:
    measured = Measured(reason="a test")
    write_site([Source(open_any(tiny_bundle), measured)], tmp_path / "site", SiteOptions("tiny", "test", web=False))
    catalog, address = fetch_catalog(str(tmp_path / "site"))
    entry = catalog.model("tiny").bundles[0]
    model = store.pull_bundle(entry, address, "tiny")
    assert model.is_bundle
    open_any(store.path(model)).verify()
    # A bundle that was compiled here has the same shards.
    compiled = shutil.copytree(tiny_bundle, bundles_folder() / "tiny-webgpu-q4f16")
    before = store.size_bytes()
    store.blobs.share(compiled, open_any(compiled).hashes())
    shards = sum(path.stat().st_size for path in (compiled / "weights").iterdir())
    assert before - store.size_bytes() >= shards
    open_any(compiled).verify()


def test_files_of_the_hub_are_removed_with_the_model_that_fetched_them(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub_cache = tmp_path / "hub"
    contents = {path.name: path.read_bytes() for path in CHECKPOINT.iterdir() if path.is_file()}
    with fake_hub({"own/model": contents}) as hub:
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(hub_cache))
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        monkeypatch.setattr(
            constants,
            "HUGGINGFACE_CO_URL_TEMPLATE",
            hub.url + "/{repo_id}/resolve/{revision}/{filename}",
        )
        seen = list[int]()
        model = store.pull("hf.co/own/model:q8f16", None, lambda *progress: seen.append(progress[2]))
    assert (model.name, model.quantization) == ("own/model:q8f16", "q8f16")
    assert len(contents["model.safetensors"]) in seen
    assert store.path(model).is_relative_to(hub_cache)
    assert store.remove(model.name) > len(contents["model.safetensors"])
    assert not list(hub_cache.glob("*/blobs/*"))


# --- the size of bundles ---


def bundle_of(name: str, size: int, age: float) -> Path:
    folder = bundles_folder() / name
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_bytes(bytes(size))
    used = folder.stat().st_mtime - age
    os.utime(folder, (used, used))
    return folder


def test_the_bundles_that_were_used_last_are_kept(store: Store) -> None:
    old, held, newer, now = (bundle_of(name, 1000, age) for name, age in zip("abcd", (400, 300, 200, 0), strict=True))
    holding = HeldBundle(held)
    os.utime(held, (1, 1))
    assert evict_bundles(3500) == [old]
    assert evict_bundles(0) == [newer]
    assert (held.exists(), now.exists()) == (True, True)
    holding.close()
    assert store.prune(1000) == 1000
    assert [path.name for path in bundles_folder().iterdir() if path.is_dir()] == ["d"]


def test_a_removed_model_takes_its_bundles_along(store: Store) -> None:
    model = store.pull(str(CHECKPOINT), "own")
    mine, other = bundle_of("mine", 5000, 100), bundle_of("other", 1000, 100)
    note_source(mine, store.path(model))
    note_source(other, CHECKPOINT)
    assert isinstance(model.source, Files)
    assert store.remove("own") >= 5000 + model.size_bytes
    assert (mine.exists(), other.exists()) == (False, True)
