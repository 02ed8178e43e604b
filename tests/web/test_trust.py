"""Self-test and tuning in headless Chromium: a bundle with a kernel that is wrong answers like the sound one, and the
page can tell.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from light_bundle import lighten
from page_model import page_bundle
from playwright.sync_api import BrowserContext, Page
from static_site import serve
from tiny_models import VOCAB_SIZE

from nearfar.compiler.browser.page_server import PAGE
from nearfar.compiler.bundle.folder import open_bundle
from nearfar.compiler.ir.expr import holds
from nearfar.compiler.ir.sampling import Sampler
from nearfar.compiler.runtime.generate import generate
from nearfar.compiler.runtime.reference import ReferenceRunner

HTML = """<!doctype html><body><script type="module">
import { Engine } from "./nearfar.js";
window.Engine = Engine;
window.compiled = [];
const { createComputePipelineAsync } = GPUDevice.prototype;
GPUDevice.prototype.createComputePipelineAsync = function (descriptor) {
    window.compiled.push(descriptor.label);
    return createComputePipelineAsync.call(this, descriptor);
};
document.body.dataset.state = "ready";
</script>"""
# Loads a bundle, answers a prompt, and returns what the page can know.
LOAD = """async ([bundle, prompt, maxTokens, options]) => {
    const phases = new Set();
    const onProgress = ({ phase }) => phases.add(phase);
    let engine;
    try {
        engine = await window.Engine.load(bundle, { onProgress, ...options });
    } catch (error) {
        return { error: { code: error.code, message: error.message, details: error.details } };
    }
    const tuning = await engine.exportTuning();
    const ids = [];
    for await (const { tokenId } of engine.generateTokens({ promptIds: prompt, maxTokens })) ids.push(tokenId);
    const { activation, selfTest, kernels } = engine.info;
    engine.destroy();
    return { activation, selfTest, kernels, ids, tuning, phases: [...phases], compiled: window.compiled };
}"""
MAX_TOKENS = 12
# web/test/runtime/trust.test.ts has all these cases on Dawn in Node, with kernels for a test. test_store.py loads a
# bundle again whose self-test the browser remembers, and test_webgpu_runner.py has the logits of all kernels of int8.
pytestmark = pytest.mark.exhaustive
# Every kernel leaves the workgroups beyond its last one alone.
GUARD = "> podArgs.packGridDimX"


@pytest.fixture(scope="module")
def bundle() -> Path:
    """A bundle with all variants of the projections."""
    return page_bundle(keep=("linear",))


@pytest.fixture(scope="module")
def site(bundle: Path, chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Path:  # noqa: ARG001
    """A page of the package alone, and bundles: a sound one, one whose first choice for a step is wrong, one whose only
    choice is.
    """
    site = tmp_path_factory.mktemp("trust")
    for script in ("nearfar.js", "tuning.js"):
        shutil.copy(PAGE.parent / script, site)
    (site / "index.html").write_text(HTML)
    for name in ("sound", "broken", "hopeless"):
        shutil.copytree(bundle, site / name)
        lighten_but_two(site / name)
    break_kernels(site / "broken", variants(site / "broken")[0])
    for variant in variants(site / "hopeless"):
        break_kernels(site / "hopeless", variant)
    return site


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    with serve(site) as url:
        yield url


@pytest.fixture(scope="module")
def expected(bundle: Path) -> dict[str, list[int]]:
    """A prompt of 75 tokens, and the 12 that the reference runner then generates greedily."""
    prompt = [(7 * i * i + 11 * i + 3) % VOCAB_SIZE for i in range(75)]
    runner = ReferenceRunner(open_bundle(bundle), activation="float32")
    return {"prompt_token_ids": prompt, "token_ids": list(generate(runner, prompt, MAX_TOKENS, Sampler()))}


def load(page: Page, address: str, bundle: str, expected: dict[str, list[int]], **options: object) -> dict[str, Any]:
    page.goto(address)
    page.wait_for_selector("body[data-state=ready]", state="attached")
    found: dict[str, Any] = page.evaluate(LOAD, [f"./{bundle}/", expected["prompt_token_ids"], MAX_TOKENS, options])
    return found


def test_a_sound_bundle_passes_within_its_tolerance(
    page: Page, address: str, expected: dict[str, list[int]], site: Path
) -> None:
    found = load(page, address, "sound", expected)
    assert found["selfTest"]["state"] == "passed"
    assert found["selfTest"]["switchedOff"] == []
    assert 0 < found["selfTest"]["largestDeviation"] < manifest_of(site / "sound")["self_test"]["tolerances"]["float32"]
    assert found["ids"] == expected["token_ids"]


def test_a_wrong_kernel_is_switched_off_once_and_answers_stay_those_of_the_sound_bundle(
    context: BrowserContext, address: str, expected: dict[str, list[int]], site: Path
) -> None:
    wrong = variants(site / "broken")[0]
    first = load(context.new_page(), address, "broken", expected)
    assert first["selfTest"]["state"] == "passed-with-switched-off"
    assert first["selfTest"]["switchedOff"] == [wrong]
    assert first["selfTest"]["remembered"] is False
    assert "self-test" in first["phases"]
    assert first["ids"] == expected["token_ids"]
    # On a CPU, nothing is timed by default.
    assert first["tuning"] is None
    # The browser stores the result beyond the lifetime of the page.
    second = load(context.new_page(), address, "broken", expected)
    assert second["selfTest"] == {**first["selfTest"], "remembered": True}
    assert "self-test" not in second["phases"]
    assert second["ids"] == first["ids"]
    assert wrong in first["compiled"]
    assert wrong not in second["compiled"], "what is switched off is not even compiled"


def test_without_the_self_test_the_wrong_kernel_would_have_changed_the_answer(
    page: Page, address: str, expected: dict[str, list[int]]
) -> None:
    found = load(page, address, "broken", expected, selfTest="never")
    assert found["selfTest"]["state"] == "untested"
    assert found["ids"] != expected["token_ids"]


def test_a_bundle_that_cannot_be_right_here_does_not_load(
    page: Page, address: str, expected: dict[str, list[int]]
) -> None:
    error = load(page, address, "hopeless", expected)["error"]
    assert error["code"] == "device_error"
    assert "this device computes the model wrongly (with float32 activations logits are off by" in error["message"]
    assert error["details"]["largestDeviation"] > 0.01
    assert error["message"].startswith(error["details"]["adapter"])


def test_a_measured_tuning_ships_with_a_bundle_and_answers_stay(
    context: BrowserContext, address: str, expected: dict[str, list[int]], site: Path, bundle: Path
) -> None:
    measured = load(context.new_page(), address, "sound", expected, tuning=True)
    record = measured["tuning"]
    assert record["activation"] == "float32"
    assert record["adapter"]["vendor"] != ""
    assert measured["ids"] == expected["token_ids"]
    # As measured on a machine where the last row is the fastest for every size.
    manifest = manifest_of(bundle)
    step = next(filter(gates, manifest["plans"]["generate"]["steps"]))
    names = variants(bundle)
    turned = {**record, "variants": {step["variants"]: [{"when": None, "variant": names[-1]}]}}
    shutil.copytree(bundle, site / "shipped")
    (site / "shipped/manifest.json").write_text(json.dumps({**manifest, "tuning": [turned]}))
    lighten_but_two(site / "shipped")
    shipped = load(context.new_page(), address, "shipped", expected, tuning=True, selfTest="never")
    assert shipped["tuning"] == turned
    assert shipped["ids"] == expected["token_ids"]
    assert shipped["kernels"] < measured["kernels"], "what the record puts last is not even compiled"


@pytest.fixture(scope="module")
def integer_bundle(site: Path) -> Path:
    """The model with 4-bit weights and int8 activations, whose projections have the rows that run by default."""
    path = site / "int8"
    shutil.copytree(page_bundle(keep=("linear",), quantization="q4f32", activations=("int8", "float32")), path)
    manifest = manifest_of(path)
    for step in manifest["plans"]["generate"]["steps"]:
        if step["op"] == "linear":
            rows = manifest["variants"][step["variants"]]
            exact = [[row for row in rows if row["activation"] == dtype][-1] for dtype in ("int8", "float32")]
            manifest["variants"][step["variants"]] = [row for row in rows if "packed" in str(row["needs"])] + exact
    (path / "manifest.json").write_text(json.dumps(manifest))
    return path


def test_int8_answers_as_the_python_runner_does(
    page: Page,
    address: str,
    expected: dict[str, list[int]],
    integer_bundle: Path,
    vulkan: None,  # noqa: ARG001
) -> None:
    from nearfar.targets.webgpu.runner import WebGPURunner

    bundle, prompt = open_bundle(integer_bundle), expected["prompt_token_ids"]
    runner = WebGPURunner(bundle)
    assert runner.activation == "int8"
    ids = list(generate(runner, prompt, MAX_TOKENS, Sampler()))
    runner.close()
    found = load(page, address, "int8", expected)
    assert (found["activation"], found["selfTest"]["state"], found["ids"]) == ("int8", "passed", ids)
    tolerances = manifest_of(integer_bundle)["self_test"]["tolerances"]
    assert tolerances["float32"] < found["selfTest"]["largestDeviation"] < tolerances["int8"]
    kernels = manifest_of(integer_bundle)["kernels"]
    templates = {kernels[name]["template"] for name in found["compiled"] if name in kernels}
    assert {"quantize_rows", "linear_dots", "linear_dot_tile"} <= templates


def test_a_device_whose_integer_products_are_wrong_answers_with_the_next_dtype(
    page: Page, address: str, expected: dict[str, list[int]], integer_bundle: Path, site: Path
) -> None:
    shutil.copytree(integer_bundle, site / "lies")
    manifest = manifest_of(site / "lies")
    # As on a device that multiplies signed bytes as unsigned ones, or the other way around.
    for kernel in manifest["kernels"].values():
        if kernel["template"] in ("linear_dots", "linear_dot_tile"):
            file = site / "lies" / kernel["file"]
            code = file.read_text().replace("dot4U8Packed", "other").replace("dot4I8Packed", "dot4U8Packed")
            code = re.sub(r"\bother\(", "u32_of(", code).replace("dot4U8Packed(", "i32_of(")
            code += "fn u32_of(a: u32, b: u32) -> u32 { return bitcast<u32>(dot4I8Packed(a, b)); }\n"
            file.write_text(code + "fn i32_of(a: u32, b: u32) -> i32 { return bitcast<i32>(dot4U8Packed(a, b)); }\n")
            kernel["sha256"] = hashlib.sha256(file.read_bytes()).hexdigest()
    (site / "lies/manifest.json").write_text(json.dumps(manifest))
    found = load(page, address, "lies", expected)
    assert (found["activation"], found["selfTest"]["state"]) == ("float32", "passed-with-switched-off")
    assert "int8" in found["selfTest"]["switchedOff"]
    exact = ReferenceRunner(open_bundle(integer_bundle), activation="float32")
    assert found["ids"] == list(generate(exact, expected["prompt_token_ids"], MAX_TOKENS, Sampler()))


def gates(step: dict[str, Any]) -> bool:
    """Whether a step is a projection that gates halves of its outputs."""
    return [part["op"] for part in step["attrs"].get("store", ())] == ["gate_halves"]


def variants(bundle: Path) -> list[str]:
    """The names of the variants that can run a gated projection of a single token, as those of an answer, with float32
    activations, first choice first.
    """
    manifest = manifest_of(bundle)
    step = next(filter(gates, manifest["plans"]["generate"]["steps"]))
    rows = [
        row
        for row in manifest["variants"][step["variants"]]
        if row["activation"] in (None, "float32") and holds(row["when"], {"S": 1})
    ]
    return list(dict.fromkeys("+".join(row["kernels"]) for row in rows))


def lighten_but_two(bundle: Path) -> None:
    """Leave the first and the last variant of a gated projection, and one of each other step. Each takes seconds to
    compile.
    """
    lighten(bundle, keep=("linear",), self_test=True)
    first, *_, last = variants(bundle)
    manifest = manifest_of(bundle)
    for step in manifest["plans"]["generate"]["steps"]:
        rows = manifest["variants"][step["variants"]]
        if gates(step):
            rows = [row for row in rows if "+".join(row["kernels"]) in (first, last)]
        elif step["op"] == "linear":
            rows = [row for row in rows if row["when"] is None and not row["needs"]]
        manifest["variants"][step["variants"]] = rows
    (bundle / "manifest.json").write_text(json.dumps(manifest))


def break_kernels(bundle: Path, variant: str) -> None:
    """The variant's last kernel forgets its last workgroup."""
    manifest = manifest_of(bundle)
    kernel = manifest["kernels"][variant.split("+")[-1]]
    code = (bundle / kernel["file"]).read_text()
    assert GUARD in code
    (bundle / kernel["file"]).write_text(code.replace(GUARD, f"{GUARD.replace('>', '>=')}"))
    kernel["sha256"] = hashlib.sha256((bundle / kernel["file"]).read_bytes()).hexdigest()
    (bundle / "manifest.json").write_text(json.dumps(manifest))


def manifest_of(bundle: Path) -> dict[str, Any]:
    manifest: dict[str, Any] = json.loads((bundle / "manifest.json").read_text())
    return manifest
