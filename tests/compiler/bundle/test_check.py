"""The check of a manifest: every defect is a BundleError before anything is mapped, and valid manifests run within
bounds.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from mutations import NEST, mutations
from plain_target import compile_plain
from tiny_encoders import make_encoder

from nearfar.compiler.bundle.check import parse_manifest
from nearfar.compiler.bundle.check_kernels import check_facts
from nearfar.compiler.bundle.check_steps import check_step
from nearfar.compiler.bundle.digest import text_sha256
from nearfar.compiler.bundle.fault import Fault
from nearfar.compiler.bundle.file_name import file_in, is_plain_name
from nearfar.compiler.bundle.folder import open_bundle
from nearfar.compiler.ir.tasks import TransitionSpec
from nearfar.compiler.runtime.errors import BundleError

NAMES = json.loads((Path(__file__).parents[2] / "conformance/file_names.json").read_text())
WRONG_TREES = json.loads((Path(__file__).parents[2] / "conformance/wrong_trees.json").read_text())["cases"]
BUNDLES = ("webgpu", "cpu", "mlx")
# The number of mutations of each bundle in `make test`, and in the exhaustive tests.
FEW, MANY = 60, 10_000

# Opens every manifest of the input and runs its self-test. Each defect is a NearfarError; a crash ends the process.
RUN_ALL = """
import json, shutil, sys
from pathlib import Path
from nearfar.compiler.bundle.folder import open_any
from nearfar.compiler.runtime.errors import NearfarError
from nearfar.compiler.pipeline.target import open_runner
from nearfar.compiler.runtime.runner import Limits
folder = Path(sys.argv[1])
ran = refused = 0
for line in sys.stdin:
    (folder / "manifest.json").write_text(line)
    try:
        bundle = open_any(folder)
        open_runner(bundle.manifest.target, bundle, Limits(tokens=16, rows=4, pages=4)).close()
        ran += 1
    except NearfarError:
        refused += 1
print(ran, refused)
"""


@pytest.fixture(scope="module")
def manifests(compile_tiny: Callable[..., Path], compile_base: Callable[..., Path]) -> dict[str, Path]:
    """One bundle for each target."""
    return {
        "webgpu": compile_tiny("qwen3", "q4f16"),
        "cpu": compile_base("qwen3", "f32", target="cpu", lora_rank=4),
        "mlx": compile_tiny("llama", "f32", target="mlx"),
    }


@pytest.mark.parametrize("name", NAMES["accepted"])
def test_a_plain_name_is_accepted(name: str, tmp_path: Path) -> None:
    assert is_plain_name(name)
    assert file_in(tmp_path, name) == tmp_path / name


@pytest.mark.parametrize("name", NAMES["refused"])
def test_a_name_that_could_lead_out_of_the_folder_is_refused(name: str, tmp_path: Path) -> None:
    assert not is_plain_name(name)
    with pytest.raises(BundleError, match="a name must be relative, inside the folder"):
        file_in(tmp_path, name)


def test_a_link_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    (tmp_path / "secret").write_text("x")
    (bundle / "inside").write_text("x")
    (bundle / "link").symlink_to("inside")
    (bundle / "out").symlink_to("../secret")
    (bundle / "folder").symlink_to("..")
    assert file_in(bundle, "link") == bundle / "link"
    for name in ("out", "folder/secret"):
        with pytest.raises(BundleError, match=r"is a link to .*secret, outside of the bundle"):
            file_in(bundle, name)


def test_links_of_hugging_faces_cache_are_followed_only_to_its_own_blobs(tmp_path: Path) -> None:
    repository = tmp_path / "models--me--bundle"
    snapshot = repository / "snapshots/0123/cpu"
    snapshot.mkdir(parents=True)
    (repository / "blobs").mkdir()
    (repository / "blobs/abc").write_text("x")
    (repository / "refs").write_text("x")
    (snapshot / "a.bin").symlink_to("../../../blobs/abc")
    (snapshot / "b.bin").symlink_to("../../../refs")
    assert file_in(snapshot, "a.bin").read_text() == "x"
    with pytest.raises(BundleError, match="outside of the bundle"):
        file_in(snapshot, "b.bin")


CHANGES: dict[str, Callable[[dict[str, Any]], object]] = {
    "a file outside": lambda m: m["shards"][0].update(file="../x"),
    "a hash that is a path": lambda m: m["shards"][0].update(sha256="../x"),
    "an offset beyond the shard": lambda m: first_plane(m).update(offset=2**40),
    "an end beyond the shard": lambda m: first_plane(m).update(
        shard=0, offset=(m["shards"][0]["size"] - 1) // 256 * 256
    ),
    "a negative offset": lambda m: first_plane(m).update(offset=-256),
    "an offset that is not aligned": lambda m: first_plane(m).update(offset=4),
    "a size that is not the shape's": lambda m: first_plane(m).update(size=4),
    "a shard that there is not": lambda m: first_plane(m).update(shard=9),
    "a plane of another name": lambda m: first_plane(m).update(name="w"),
    "a weight of more rows": lambda m: next(iter(m["weights"].values())).update(shape=[10**6, 72]),
    "a larger vocabulary": lambda m: m["spec"].update(vocab_size=510),
    "an edited chat template": lambda m: m["tokenizer"].update(chat_template="{{ messages[-1].content }}"),
    "no chat template of a tree": lambda m: m["tokenizer"].update(chat_template=None),
    "no layers": lambda m: m["spec"].update(num_layers=0),
    "a soft cap of zero": lambda m: m["spec"].update(attention_softcap=0.0),
    "a rotation without a base": lambda m: m["spec"]["rope"].update(theta=0.0),
    "a context of more tokens than arrays hold": lambda m: (
        m.update(context=2**25),
        m["spec"].update(max_position_embeddings=2**25),
    ),
    "a vocabulary of more tokens than arrays hold": lambda m: m["spec"].update(vocab_size=2**25),
    "too many layers": lambda m: m["spec"].update(num_layers=2**31),
    "a longer context": lambda m: m.update(context=300),
    "other pages": lambda m: m.update(page_size=32),
    "a shorter rotation table": lambda m: generate(m)["constants"]["rope_table"].update(shape=[16, 12, 2]),
    "a smaller buffer": lambda m: generate(m)["buffers"]["logits"].update(shape=["R", 1]),
    "a smaller state": lambda m: generate(m)["states"]["token_counts"].update(shape=["N", 1]),
    "pages of fewer heads": lambda m: generate(m)["states"]["layers.0.kv"].update(shape=["P", 2, 1, 16, 24]),
    "positions that are tokens": lambda m: attention(m)["inputs"].update(positions="token_ids"),
    "starts that are pages": lambda m: attention(m)["inputs"].update(seq_starts="page_indptr"),
    "an array that there is not": lambda m: attention(m)["inputs"].update(qkv="nowhere"),
    "a list of another step": lambda m: generate(m)["steps"][1].update(variants=generate(m)["steps"][3]["variants"]),
    "a list that there is not": lambda m: generate(m)["steps"][1].update(variants="linear_0"),
    "a kernel that there is not": lambda m: m["variants"][generate(m)["steps"][1]["variants"]][0].update(
        kernels=["nowhere"]
    ),
    "a dim that there is not": lambda m: next(iter(m["kernels"].values())).update(grid=["Q", 1]),
    "a division by nothing": lambda m: next(iter(m["kernels"].values())).update(grid=[["ceildiv", "S", 0], 1]),
    "facts of another kernel": lambda m: next(iter(m["kernels"].values()))["facts"].update(columns=8),
    "an entry of something else": lambda m: next(iter(m["kernels"].values())).update(entry="system"),
    "scratch that shrinks as batches grow": lambda m: next(iter(m["scratch"].values())).update(
        shape=[["sub", 100, "S"]]
    ),
    "a token beyond the vocabulary": lambda m: m["self_test"]["prompt_ids"].__setitem__(0, 509),
    "a row beyond the prompt": lambda m: m["self_test"]["rows"][0].update(row=99),
    "an output that there is not": lambda m: generate(m)["outputs"].update(logits="nowhere"),
    "expressions without end": lambda m: next(iter(m["kernels"].values())).update(grid=[nested("S"), 1]),
}


WINDOW_CHANGES: dict[str, Callable[[dict[str, Any]], object]] = {
    "slots of the other group": lambda m: windowed(m)["inputs"].update(slots="slots"),
    "pages of the other group": lambda m: windowed(m)["inputs"].update(page_ids="page_ids"),
    "starts of the other group's pages": lambda m: windowed(m)["inputs"].update(page_indptr="page_indptr"),
    "keys of the other group": lambda m: windowed(m)["inputs"].update(kv="layers.1.kv"),
    "no window": lambda m: windowed(m)["attrs"].pop("window"),
    "a window beyond the pages that are retained": lambda m: windowed(m)["attrs"].update(window=12),
    "fewer of its pages listed": lambda m: generate(m)["inputs"]["window_page_ids"].update(shape=["L"]),
    "a window in full layers": lambda m: m["spec"].update(windows=[None] * m["spec"]["num_layers"]),
}


def windowed(manifest: dict[str, Any]) -> dict[str, Any]:
    """The attention of a layer with a window."""
    return next(step for step in generate(manifest)["steps"] if step["inputs"].get("page_ids") == "window_page_ids")


def generate(manifest: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = manifest["plans"]["generate"]
    return found


def first_plane(manifest: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = next(iter(manifest["weights"].values()))["planes"][0]
    return found


def attention(manifest: dict[str, Any]) -> dict[str, Any]:
    return next(step for step in generate(manifest)["steps"] if step["op"] == "attention")


def nested(value: Any) -> Any:
    for _ in range(NEST):
        value = ["add", value, 1]
    return value


@pytest.mark.parametrize("change", CHANGES)
def test_a_manifest_that_contradicts_itself_is_refused(change: str, manifests: dict[str, Path]) -> None:
    manifest = json.loads((manifests["webgpu"] / "manifest.json").read_text())
    CHANGES[change](manifest)
    with pytest.raises(BundleError, match="compile the bundle again"):
        parse_manifest(dump(manifest), Path("manifest.json"))


@pytest.mark.parametrize("case", WRONG_TREES, ids=[case["about"] for case in WRONG_TREES])
def test_a_chat_tree_that_is_no_syntax_tree_is_refused_by_the_path_of_its_part(
    case: dict[str, Any], manifests: dict[str, Path]
) -> None:
    manifest = json.loads((manifests["webgpu"] / "manifest.json").read_text())
    template = manifest["tokenizer"]["chat_template"] or ""
    manifest["tokenizer"]["chat_tree"] = {
        "tree": case["tree"],
        "template_sha256": text_sha256(template),
        "content": "text",
    }
    where = f"tokenizer.chat_tree.tree{case['path']}"
    with pytest.raises(BundleError, match=f"{re.escape(where)}: is not a part of a template's syntax tree"):
        parse_manifest(dump(manifest), Path("manifest.json"))


VECTOR_CHANGES: dict[str, Callable[[dict[str, Any]], object]] = {
    "a token beyond the vocabulary": lambda test: test["texts"][0].__setitem__(0, 509),
    "a text without tokens": lambda test: test["texts"].append([]),
    "a row beyond the texts": lambda test: test["rows"][0].update(row=99),
    "an element beyond the vector": lambda test: test["rows"][0]["elements"].__setitem__(0, 10**6),
    "a value too few": lambda test: test["rows"][0]["values"].pop(),
    "only zeros": lambda test: [row.update(values=[0.0] * len(row["values"])) for row in test["rows"]],
    "a tolerance that allows everything": lambda test: test["tolerances"].update(float32=2.0),
}


def test_a_vector_test_that_contradicts_the_model_is_refused(tmp_path: Path) -> None:
    make_encoder("bert", "mean_tokens", tmp_path / "checkpoint")
    compile_plain(tmp_path / "checkpoint", tmp_path / "bundle", "f32", 64, self_test=True)
    text = (tmp_path / "bundle/manifest.json").read_text()
    for change in VECTOR_CHANGES.values():
        manifest = json.loads(text)
        change(manifest["vector_test"])
        with pytest.raises(BundleError, match="vector_test"):
            parse_manifest(dump(manifest), Path("manifest.json"))


def test_labels_that_form_no_spans_have_no_transitions(tmp_path: Path) -> None:
    names = {0: "O", 1: "B-a", 2: "I-a", 3: "E-a", 4: "S-a"}
    make_encoder("bert", "ForTokenClassification", tmp_path / "checkpoint", num_labels=5, id2label=names)
    compile_plain(tmp_path / "checkpoint", tmp_path / "bundle", "f32", 64, self_test=False)
    manifest = json.loads((tmp_path / "bundle/manifest.json").read_text())
    manifest["classifier"]["transitions"] = asdict(TransitionSpec())
    parse_manifest(dump(manifest), Path("manifest.json"))
    for change in ({"per_token": False}, {"labels": ["O", "B-a", "I-a", "E-a", "E-b"]}):
        with pytest.raises(BundleError, match=r"classifier\.labels"):
            parse_manifest(
                dump({**manifest, "classifier": {**manifest["classifier"], **change}}), Path("manifest.json")
            )


def test_a_kernel_for_norms_over_all_heads_is_refused_for_norms_of_each(manifests: dict[str, Path]) -> None:
    """It would read more weights than the norms have."""
    manifest = open_bundle(manifests["webgpu"]).manifest
    plan = manifest.plans["generate"]
    step = next(step for step in plan.steps if step.op == "attention")
    kernel = manifest.kernels[manifest.variants[step.variants][0].kernels[0]]
    use = check_step("step", step, plan, manifest)
    check_facts("kernel", step.op, use, kernel.facts, kernel.bindings)
    preparation = {**kernel.facts["preparation"], "norm_wide": True}
    wide = {**kernel.facts, "preparation": preparation}
    with pytest.raises(Fault, match="made for True"):
        check_facts("kernel", step.op, use, wide, kernel.bindings)


@pytest.mark.parametrize("change", WINDOW_CHANGES)
def test_page_groups_that_contradict_the_model_are_refused(change: str, windowed_bundle: Path) -> None:
    manifest = json.loads((windowed_bundle / "manifest.json").read_text())
    parse_manifest(dump(manifest), Path("manifest.json"))
    WINDOW_CHANGES[change](manifest)
    with pytest.raises(BundleError, match="compile the bundle again"):
        parse_manifest(dump(manifest), Path("manifest.json"))


def test_the_rows_of_an_adapters_module_are_inside_its_states(manifests: dict[str, Path]) -> None:
    manifest = json.loads((manifests["cpu"] / "manifest.json").read_text())
    part = next(iter(manifest["lora"]["modules"].values()))[0]
    pairs = [{"pairs": {"head_dim": head_dim, "rotary_dim": rows}} for head_dim, rows in ((0, 2), (7, 2), (24, 5))]
    for change in ({"stop": 10**6}, {"start": -1}, {"part": 99}, {"a": "sampled"}, {"first_row": -1}, *pairs):
        before = dict(part)
        part.update(change)
        with pytest.raises(BundleError, match=r"lora\."):
            parse_manifest(dump(manifest), Path("manifest.json"))
        part.update(before)
    parse_manifest(dump(manifest), Path("manifest.json"))


def test_a_kernel_library_is_loaded_from_the_bytes_that_were_hashed(manifests: dict[str, Path], tmp_path: Path) -> None:
    """A file that is replaced after the bundle was verified is never run."""
    from nearfar.compiler.runtime.runner import Limits
    from nearfar.targets.cpu.runner import CpuRunner

    bundle = open_bundle(Path(shutil.copytree(manifests["cpu"], tmp_path / "bundle")))
    bundle.verify()
    (library,) = (bundle.path / "kernels").iterdir()
    library.write_bytes(b"\x7fELF, and not what was hashed")
    with pytest.raises(BundleError, match="does not match the manifest"):
        CpuRunner(bundle, limits=Limits())


@pytest.mark.parametrize("target", BUNDLES)
def test_a_mutated_manifest_is_a_bundle_error_or_valid(target: str, manifests: dict[str, Path]) -> None:
    fuzz(manifests[target], FEW, seed=1)


@pytest.mark.exhaustive
@pytest.mark.parametrize("target", BUNDLES)
def test_many_mutated_manifests_are_bundle_errors_or_valid(target: str, manifests: dict[str, Path]) -> None:
    accepted = fuzz(manifests[target], MANY, seed=2)
    print(f"{target}: {len(accepted)} of {MANY:,} accepted")


@pytest.mark.parametrize("count", [8, pytest.param(200, marks=pytest.mark.exhaustive)])
def test_accepted_mutations_run_without_a_crash(count: int, manifests: dict[str, Path], tmp_path: Path) -> None:
    """Native code crashes if it reads outside of its arrays, so it runs in a separate process."""
    folder = Path(shutil.copytree(manifests["cpu"], tmp_path / "bundle"))
    text = (folder / "manifest.json").read_text()
    accepted = []
    for changed in mutations(text, seed=3):
        # Only the library's own code defines how much scratch it needs; changing that means changing native code.
        data = dump(changed)
        try:
            manifest = parse_manifest(data, Path("manifest.json"))
        except BundleError:
            continue
        if changed["scratch"] == json.loads(text)["scratch"] and manifest.context <= 512:
            accepted.append(json.dumps(changed))
        if len(accepted) == count:
            break
    done = subprocess.run(
        [sys.executable, "-c", RUN_ALL, str(folder)],
        input="\n".join(accepted),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    ran, refused = map(int, done.stdout.split())
    assert ran + refused == count
    assert ran > 0


def fuzz(folder: Path, count: int, seed: int) -> list[dict[str, Any]]:
    """The accepted manifests. Any error other than BundleError fails the test."""
    accepted = []
    for changed in islice(mutations((folder / "manifest.json").read_text(), seed), count):
        try:
            parse_manifest(dump(changed), Path("manifest.json"))
        except BundleError:
            continue
        accepted.append(changed)
    return accepted


def dump(value: Any) -> bytes:
    """The JSON of a value that may be nested deeper than Python's own writer supports."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(10 * NEST)
    try:
        return json.dumps(value).encode()
    finally:
        sys.setrecursionlimit(before)
