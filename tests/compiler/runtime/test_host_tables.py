"""Rows of tables that stay on the host: gathered as op `embed` defines them, from tables in one part or in several, and
never uploaded.
"""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from decoder_families import TOKENS, make_family
from plain_target import compile_plain
from ragged import chunked_logits
from tolerances import F32, relative_error

from nearfar.compiler import quant
from nearfar.compiler.bundle.entries import FileEntry, GatheredEntry, WeightEntry, shards_of
from nearfar.compiler.bundle.folder import Bundle, open_bundle
from nearfar.compiler.bundle.manifest import Manifest
from nearfar.compiler.ir.ops import OPS
from nearfar.compiler.runtime.batch import Chunk, make_batch
from nearfar.compiler.runtime.errors import BundleError, RequestError
from nearfar.compiler.runtime.host_tables import HostTables, gathers
from nearfar.compiler.runtime.inputs import require_known_inputs
from nearfar.compiler.runtime.reference import ReferenceRunner
from nearfar.server_fallback.engine.model import TokenModel

# In the package, this name is the pass itself.
PASS = import_module("nearfar.compiler.passes.gather_on_host")
INPUT = "per_layer_embedded"
TABLE = "model.embed_tokens_per_layer.weight"
VECTORS = json.loads((Path(__file__).parents[2] / "conformance/host_tables.json").read_text())
FORMATS = ("q4f16", "q4f32", "q8f16", "f16", "f32")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gemma4") / "checkpoint"
    np.save(folder.parent / "expected.npy", make_family("gemma4_text", folder))
    return folder


@pytest.fixture
def compiled(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Bundle]:
    """Compiles the checkpoint for a target without kernels, with tables split into parts of ``part_bytes``."""

    def make(quantization: str = "f32", part_bytes: int = PASS.PART_BYTES, *, self_test: bool = False) -> Bundle:
        monkeypatch.setattr(PASS, "PART_BYTES", part_bytes)
        return compile_plain(checkpoint, tmp_path / "bundle", quantization, 64, self_test=self_test)

    return make


@pytest.mark.parametrize("quantization", FORMATS)
def test_gathered_rows_are_those_of_the_embed_op(quantization: str, compiled: Callable[..., Bundle]) -> None:
    bundle = compiled(quantization, part_bytes=6_000)
    manifest = bundle.manifest
    gathered = manifest.plan("generate").gathered[INPUT]
    assert len(gathered.weights) > 1
    # Ids in any order, more than once, the first and the last of each part, and one that no part has.
    ends = np.cumsum([manifest.host_weights[name].shape[0] for name in gathered.weights])
    token_ids = np.array([7, *ends - 1, *ends, 7, 0, 508, 3], np.int32)
    table = np.concatenate([bundle.weight(name) for name in gathered.weights])
    inputs = {"table": table, "token_ids": token_ids, "sampled": np.zeros(1, np.int32)}
    expected = OPS["embed"].run(inputs, {"scale": gathered.scale, "first_row": None})
    assert expected is not None
    found = HostTables(bundle).gather(manifest.plan("generate").gathered, token_ids)[INPUT]
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, expected)
    assert not found[token_ids == 509].any()


@pytest.mark.parametrize("part_bytes", [6_000, PASS.PART_BYTES])
def test_a_model_with_its_table_on_the_host_computes_the_same(
    part_bytes: int, checkpoint: Path, compiled: Callable[..., Bundle]
) -> None:
    """The self-test of the bundle compares with the graph that looks the rows up in a step."""
    bundle = compiled("f32", part_bytes, self_test=True)
    runner = ReferenceRunner(bundle)
    assert bundle.manifest.self_test is not None
    expected = np.load(checkpoint.parent / "expected.npy")
    for chunk in (len(TOKENS), 9):
        assert relative_error(chunked_logits(runner, TOKENS, chunk), expected) < F32


def test_a_table_on_the_host_has_shards_of_its_own(compiled: Callable[..., Bundle]) -> None:
    manifest = compiled(part_bytes=6_000).manifest
    tables = manifest.plan("generate").gathered[INPUT].weights
    assert [*manifest.host_weights] == tables == [f"{TABLE}.part{index}" for index in range(len(tables))]
    assert not manifest.weights.keys() & {TABLE, *tables}
    assert not shards_of(manifest.weights) & shards_of(manifest.host_weights)
    assert shards_of(manifest.weights) | shards_of(manifest.host_weights) == set(range(len(manifest.shards)))


def test_a_model_without_such_a_table_gathers_nothing(compile_tiny: Callable[..., Path]) -> None:
    manifest = open_bundle(compile_tiny("qwen3", "q4f16")).manifest
    assert not manifest.host_weights
    assert not gathers(manifest)
    assert not TokenModel.of(manifest).gathers


def test_tokens_that_only_the_device_knows_are_refused(compiled: Callable[..., Bundle]) -> None:
    bundle = compiled()
    require_known_inputs(bundle.manifest)
    assert TokenModel.of(bundle.manifest).gathers
    runner = ReferenceRunner(bundle)
    batch = make_batch([Chunk([5, 6], 0, [0], [1], slot=0)], bundle.manifest.page_size)
    runner.forward(batch)
    with pytest.raises(RequestError, match=r"'per_layer_embedded' on the host, so token ids must not be negative"):
        runner.forward(make_batch([Chunk([-1], 2, [0], [0], slot=0)], bundle.manifest.page_size))
    with pytest.raises(RequestError, match="which the plan does not declare"):
        runner.forward(replace(batch, extra={INPUT: np.zeros((2, 60), np.float32)}))


def change(where: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def apply(manifest: dict[str, Any]) -> None:
        *path, last = where.split("/")
        entry: Any = manifest
        for key in path:
            entry = entry[int(key) if isinstance(entry, list) else key]
        entry[int(last) if isinstance(entry, list) else last] = value

    return apply


HOST, GATHERED = f"host_weights/{TABLE}", f"plans/generate/gathered/{INPUT}"


@pytest.mark.parametrize(
    ("where", "value", "message"),
    [
        (f"{HOST}/planes/0/offset", 1 << 40, "must be inside shard"),
        (f"{HOST}/planes/0/shard", 99, "is in shard 99"),
        (f"{HOST}/planes/0/shard", 0, "must be inside shard|weights of the host and of the device"),
        (f"{HOST}/shape", [509, 64], "it must be|has .* bytes|must be an input"),
        (f"{HOST}/layout", "tiles16", "it must be|layout rows"),
        (f"{HOST}/quantization", None, "has shape"),
        (f"plans/generate/inputs/{INPUT}/shape", ["S", 61], "must be an input"),
        (f"plans/generate/inputs/{INPUT}/shape", ["R", 60], "must be an input"),
        (f"plans/generate/inputs/{INPUT}/dtype", "int32", "must be an input"),
        (f"{GATHERED}/weights", [], "columns"),
        (f"{GATHERED}/weights", ["model.embed_tokens.weight"], "not weights of the host"),
        (f"{GATHERED}/scale", -1.0, "has the scale"),
        (f"{GATHERED}/table", "x", "Extra inputs"),
        ("plans/generate/gathered/token_ids", {"weights": [TABLE], "scale": 1.0}, "must be an input"),
        ("plans/generate/gathered/nothing", {"weights": [TABLE], "scale": 1.0}, "must be an input"),
        ("spec/vocab_size", 510, "has 509 rows for 510 tokens|table has 509 rows"),
        ("host_weights", {}, "not weights of the host"),
    ],
)
def test_a_manifest_with_a_wrong_table_is_refused(
    where: str, value: Any, message: str, compiled: Callable[..., Bundle]
) -> None:
    bundle = compiled()
    file = bundle.path / "manifest.json"
    manifest = json.loads(file.read_text())
    change(where, value)(manifest)
    file.write_text(json.dumps(manifest))
    with pytest.raises(BundleError, match=message):
        open_bundle(bundle.path)


def test_the_tests_cover_every_format() -> None:
    assert set(FORMATS) == set(quant.NAMES) < {case["quantization"] for case in VECTORS["cases"]}


@pytest.mark.parametrize("case", VECTORS["cases"], ids=lambda case: str(case["quantization"]))
def test_rows_equal_those_of_the_other_runtime(case: dict[str, Any], tmp_path: Path) -> None:
    """Web: web/test/runtime/host_tables.test.ts."""
    shard, planes = b"", []
    for plane in case["planes"]:
        data = b64decode(plane["base64"])
        entry = {key: plane[key] for key in ("name", "dtype", "shape")}
        planes.append({**entry, "shard": 0, "offset": len(shard), "size": len(data)})
        shard += data + bytes(-len(data) % 256)
    (tmp_path / "shard.bin").write_bytes(shard)
    weight = {"shape": case["shape"], "quantization": case["quantization"], "layout": "rows", "planes": planes}
    manifest = Manifest.model_construct(
        host_weights={"table": WeightEntry.model_validate(weight)},
        shards=[FileEntry(file="shard.bin", size=len(shard), sha256="0" * 64)],
    )
    gathered = GatheredEntry(weights=["table"], scale=case["scale"])
    tables = HostTables(Bundle(tmp_path, manifest))
    rows = tables.gather({"rows": gathered}, np.array(case["token_ids"], np.int32))["rows"]
    assert rows.tobytes() == b64decode(case["rows"])
