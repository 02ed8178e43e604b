"""The probe of a bundle: small, complete, and with a test that its own weights pass."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from light_bundle import few_kernels
from tiny_encoders import make_encoder
from tiny_models import make_checkpoint

from nearfar.compiler.bundle.entries import PlaneEntry
from nearfar.compiler.bundle.folder import Bundle, open_bundle
from nearfar.compiler.bundle.manifest import EMBED, GENERATE
from nearfar.compiler.bundle.probe import PROBE_FILE, ProbeFile, made_plane
from nearfar.compiler.pipeline.compile import CompileOptions, compile_model
from nearfar.compiler.pipeline.probe import FOLDER, write_shards
from nearfar.compiler.runtime.reference import ReferenceRunner
from nearfar.compiler.runtime.runner import Limits
from nearfar.compiler.runtime.trust import check_runner


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("probe")
    make_checkpoint("mistral", folder / "model", num_hidden_layers=5)
    with few_kernels():
        return compile_model(str(folder / "model"), folder / "bundle", CompileOptions())


def probe_of(bundle: Bundle) -> ProbeFile:
    return ProbeFile.model_validate_json((bundle.path / PROBE_FILE).read_bytes(), strict=True)


def test_a_probe_has_all_lists_of_the_plan_and_fewer_layers(bundle: Bundle) -> None:
    probe, complete = probe_of(bundle), bundle.manifest.plans[GENERATE]
    assert {step.variants for step in probe.plans[GENERATE].steps} == {step.variants for step in complete.steps}
    # The layers are small, so that two of them take turns.
    assert probe.layers == [0, 1, 0, 1, 0]
    assert len(probe.plans[GENERATE].steps) < len(complete.steps)
    assert not (bundle.path / FOLDER).exists()
    bundle.verify()
    assert PROBE_FILE in {entry.file for entry in bundle.manifest.files}


def test_the_runner_of_plans_passes_the_probes_test_with_made_weights(bundle: Bundle, tmp_path: Path) -> None:
    probe = probe_of(bundle)
    for file in ("kernels", "tokenizer.json"):
        (tmp_path / file).symlink_to(bundle.path / file)
    shards = write_shards(tmp_path, probe.weights, [shard.size for shard in probe.shards], probe.values)
    assert shards == probe.shards
    names = ("plans", "weights", "shards", "self_test", "vector_test")
    manifest = bundle.manifest.model_copy(update={name: getattr(probe, name) for name in names})
    (tmp_path / "manifest.json").write_text(json.dumps(manifest.model_dump(mode="json")))
    runner = ReferenceRunner(open_bundle(tmp_path), limits=Limits())
    check_runner(runner, manifest)


def test_the_probe_of_an_encoder_has_a_vector_test_and_what_follows_its_layers(tmp_path: Path) -> None:
    make_encoder("bert", "mean_tokens", tmp_path / "model", num_hidden_layers=6)
    with few_kernels(tokens="many"):
        bundle = compile_model(str(tmp_path / "model"), tmp_path / "bundle", CompileOptions())
    probe, complete = probe_of(bundle), bundle.manifest.plans[EMBED]
    # The first and the last layer have kernels of their own, and two of the others take turns.
    assert (probe.layers, probe.self_test) == ([0, 1, 2, 1, 2, 5], None)
    assert probe.vector_test is not None
    assert any(value for row in probe.vector_test.rows for value in row.values)
    steps = probe.plans[EMBED].steps
    assert {step.variants for step in steps} == {step.variants for step in complete.steps}
    assert len(steps) < len(complete.steps)
    assert steps[-1].op == complete.steps[-1].op


def test_made_planes_are_those_of_every_runtime() -> None:
    cases = json.loads((Path(__file__).parents[2] / "conformance/probe_planes.json").read_text())
    for case in cases:
        made = made_plane(case_plane(case), case["number"], case["values"])
        assert made.tobytes().hex() == case["bytes"]
        assert len(made) == case["size"]


def case_plane(case: dict[str, object]) -> PlaneEntry:
    return PlaneEntry.model_validate(
        {"name": "w", "dtype": case["dtype"], "shape": [1], "shard": 0, "offset": 0, "size": case["size"]}
    )
