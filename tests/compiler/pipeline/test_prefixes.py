"""Prefixes that come with a bundle: a sequence that continues one computes what it would have computed itself."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from decoder_families import make_family
from plain_target import PlainTarget, compile_plain
from tiny_models import make_checkpoint
from tolerances import F32, KV_Q4_F32, relative_error

from nearfar.compiler.bundle.folder import Bundle, open_bundle
from nearfar.compiler.bundle.manifest import MANIFEST_FILE
from nearfar.compiler.cli.inspect import prefix_facts
from nearfar.compiler.cli.output import megabytes
from nearfar.compiler.ir.kv_format import KvName
from nearfar.compiler.pipeline import prefixes
from nearfar.compiler.pipeline.compile import CompileOptions, build, compile_any, prepare
from nearfar.compiler.pipeline.store import SizeStore
from nearfar.compiler.runtime.batch import Chunk, make_batch
from nearfar.compiler.runtime.errors import BundleError, RequestError
from nearfar.compiler.runtime.page_groups import group_windows, live_pages
from nearfar.compiler.runtime.reference import ReferenceRunner
from nearfar.compiler.runtime.runner import Limits
from nearfar.compiler.runtime.text.tokenizer import Tokenizer

# A token for each byte.
SYSTEM = "You count boats. " * 7
FULL = 112
CONTEXT = 160


@pytest.fixture
def system(tmp_path: Path) -> Path:
    (tmp_path / "system.txt").write_text(SYSTEM)
    return tmp_path / "system.txt"


def continued(bundle: Bundle, question: list[int]) -> np.ndarray:
    """The logits of the question after the pages that come with the bundle, on pages in another order. The bytes that a
    runner reads and writes have the order in which they come, which is that of browsers.
    """
    manifest = bundle.manifest
    (entry,) = manifest.prefixes
    runner = ReferenceRunner(bundle, limits=Limits(states=2, rows=64, pages=10, window_pages=10))
    count = -(-(entry.tokens + len(question)) // manifest.page_size)
    order = list(reversed(range(count)))
    pages = live_pages(group_windows(manifest), entry.tokens, manifest.page_size)
    units = [[order[page] for page in some] for some in pages] + ([[1]] if manifest.keeps_states else [])
    data = bundle.file(entry.file).read_bytes()
    runner.write_pages(units, data)
    assert runner.read_pages(units).result() == data
    return logits_of(runner, question, entry.tokens, order, (1, 0))


def logits_of(
    runner: ReferenceRunner, tokens: list[int], start: int, pages: list[int], state: tuple[int, int]
) -> np.ndarray:
    chunk = Chunk(tokens, start, pages, range(len(tokens)), state=state, window_pages=pages)
    return runner.forward(make_batch([chunk], runner.manifest.page_size)).logits


@pytest.mark.parametrize(
    ("family", "kv", "tolerance"),
    [
        ("lfm2", "activation", F32),
        ("qwen3_5_text", "activation", F32),
        ("gemma3_text", "activation", F32),
        ("gemma3_text", "q8", KV_Q4_F32),
    ],
)
def test_a_prompt_that_continues_a_prefix_has_the_logits_of_the_whole_prompt(
    family: str, kv: KvName, tolerance: float, tmp_path: Path, system: Path
) -> None:
    make_family(family, tmp_path / "model")
    bundle = compile_plain(tmp_path / "model", tmp_path / "bundle", "f32", CONTEXT, kv=kv, prefix=(system,))
    manifest = open_bundle(tmp_path / "bundle").manifest
    tokenizer = Tokenizer(bundle.tokenizer_files())
    whole = tokenizer.encode_chat([{"role": "system", "content": SYSTEM}, {"role": "user", "content": "how many?"}])
    (entry,) = manifest.prefixes
    assert entry.tokens == FULL
    assert entry.tokens_sha256 == hashlib.sha256(np.array(whole[:FULL], "<i4").tobytes()).hexdigest()
    runner = ReferenceRunner(bundle, limits=Limits(states=2, rows=160, pages=10, window_pages=10))
    expected = logits_of(runner, whole, 0, list(range(manifest.pages_for(len(whole)))), (0, 0))
    found = continued(bundle, whole[FULL:])
    assert relative_error(found, expected[FULL:]) < tolerance
    # A prefix of other tokens would be noticed.
    assert relative_error(continued(bundle, whole[FULL - 1 : -1]), expected[FULL:]) > 10 * tolerance


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    make_checkpoint("llama_plain", folder, num_hidden_layers=1)
    return folder


def options(system: Path, **changes: object) -> CompileOptions:
    return CompileOptions(**{"context": CONTEXT, "quantization": "f32", "prefix": (system,), **changes})  # type: ignore[arg-type]


def test_a_prefix_that_is_too_large_is_refused_with_its_size(
    model: Path, tmp_path: Path, system: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefixes, "MOST_BYTES", 1 << 10)
    with pytest.raises(RequestError, match=r"its 112 tokens take 0\.\d MiB .* --kv q8 or q4"):
        compile_plain(model, tmp_path / "bundle", "f32", CONTEXT, prefix=(system,))
    assert not (tmp_path / "bundle").exists()


def test_texts_that_no_chats_share_are_refused(model: Path, tmp_path: Path, system: Path) -> None:
    def refused(match: str) -> None:
        with pytest.raises(RequestError, match=match):
            compile_plain(model, tmp_path / "bundle", "f32", CONTEXT, prefix=(system,))

    system.write_text("short")
    refused("share 0 tokens in whole pages, and a bundle ships 64 to 159")
    system.write_text("long " * 100)
    refused("share 496 tokens")
    system.write_bytes(b"\xff")
    refused("cannot be read")
    system.unlink()
    refused("cannot be read")


def test_a_template_that_writes_the_date_is_refused(tmp_path: Path, system: Path) -> None:
    make_checkpoint("llama_plain", tmp_path / "dated", num_hidden_layers=1)
    config = tmp_path / "dated/tokenizer_config.json"
    template = "{{ strftime_now('%d %B %Y') }}{% for message in messages %}{{ message.content }}{% endfor %}"
    config.write_text(json.dumps({**json.loads(config.read_text()), "chat_template": template}))
    with pytest.raises(RequestError, match="writes the date or the time"):
        compile_plain(tmp_path / "dated", tmp_path / "bundle", "f32", CONTEXT, prefix=(system,))


@pytest.mark.parametrize("target", ["cpu", "cuda", "onnx", "mlx"])
def test_other_targets_refuse_the_option_by_its_name(target: str, model: Path, tmp_path: Path, system: Path) -> None:
    with pytest.raises(RequestError, match=f"--prefix: target {target} does not support"):
        compile_any(str(model), tmp_path / "bundle", options(system, target=target))


def test_a_dry_run_counts_the_files_of_prefixes(
    model: Path, tmp_path: Path, system: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = compile_plain(model, tmp_path / "bundle", "f32", CONTEXT, prefix=(system,))
    (entry,) = bundle.manifest.prefixes
    monkeypatch.setattr("nearfar.compiler.pipeline.compile.load_target", lambda _: PlainTarget())
    store = SizeStore()
    build(prepare(str(model), options(system), lambda *_: None, lambda _: None), store, lambda *_: None)
    size = bundle.file(entry.file).stat().st_size
    assert store.sizes[entry.file] == size
    assert prefix_facts(bundle.manifest) == f"112 tokens: {megabytes(size)} with float32"


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"tokens": 111}, "111 tokens, which must fill pages"),
        ({"tokens": 160}, "160 tokens"),
        ({"tokens": 96}, "is missing, or not of"),
        ({"file": "prefixes/1.float32.bin"}, "is missing, or not of"),
        ({"activation": "float16"}, "for float16, which the bundle does not offer"),
    ],
)
def test_a_manifest_whose_prefix_does_not_fit_is_refused(
    change: dict[str, object], fault: str, model: Path, tmp_path: Path, system: Path
) -> None:
    compile_plain(model, tmp_path / "bundle", "f32", CONTEXT, prefix=(system,))
    path = tmp_path / "bundle" / MANIFEST_FILE
    manifest = json.loads(path.read_text())
    manifest["prefixes"][0].update(change)
    path.write_text(json.dumps(manifest))
    with pytest.raises(BundleError, match=fault):
        open_bundle(tmp_path / "bundle")
