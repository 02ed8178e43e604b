"""A probe on Dawn in Node, on SwiftShader: it computes the compiler's reference with weights that it makes itself, and
refuses what cannot run.
"""

from __future__ import annotations

import json
import os
import platform
import resource
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from light_bundle import few_kernels
from tiny_encoders import make_encoder
from tiny_models import make_checkpoint

from nearfar.compiler.bundle.device_report import DeviceReport
from nearfar.compiler.pipeline.compile import CompileOptions, compile_model

WEB = Path(__file__).parents[2] / "web"
TOOL = WEB / "dist/tools/bench_probe.js"
SWIFTSHADER = Path("/usr/lib/chromium/vk_swiftshader_icd.json")
IPHONE = "Mozilla/5.0 (iPhone; CPU iPhone OS 19_0 like Mac OS X) AppleWebKit/605.1.15 Mobile/15E148"
MOST_BYTES = 2_000_000
# Pages of 27 kB in each of five layers.
MANY_PAGES = 60_000
# More than Node.js and a driver take, and less than so many pages besides.
ADDRESS_SPACE, MORE_PAGES = 4 << 30, 110_000

pytestmark = pytest.mark.skipif(
    not SWIFTSHADER.exists() or shutil.which("node") is None, reason="needs Node.js and Chromium's SwiftShader"
)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("probe")
    make_checkpoint("llama", folder / "model", num_hidden_layers=5)
    with few_kernels():
        return compile_model(str(folder / "model"), folder / "bundle", CompileOptions()).path


def probe(bundle: Path, *arguments: str, address_space: int | None = None) -> DeviceReport:
    """The report, which is one that Python reads."""

    def limit() -> None:
        if address_space is not None:
            resource.setrlimit(resource.RLIMIT_AS, (address_space, address_space))

    done = subprocess.run(
        ["node", TOOL, bundle, "--rounds", "0", *arguments],
        env={**os.environ, "VK_ICD_FILENAMES": str(SWIFTSHADER)},
        capture_output=True, text=True, check=False, preexec_fn=limit,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return DeviceReport.model_validate_json(done.stdout, strict=True)


# web/test/probe has the measurements and predictions, with a device of its own.
@pytest.mark.exhaustive
def test_a_probe_passes_its_test_and_predicts(bundle: Path) -> None:
    report = probe(bundle)
    assert report.refusals == []
    assert report.test is not None
    assert report.test.state == "passed"
    assert report.test.largest_deviation is not None
    assert report.test.largest_deviation < 1e-3
    assert report.device.runs_on_cpu
    assert report.bytes_read < MOST_BYTES
    assert report.bytes_read < sum(path.stat().st_size for path in bundle.rglob("*") if path.is_file())
    assert report.fit is not None
    assert (report.fit.activation, report.fit.context, report.fit.memory_budget) == ("float32", 512, None)
    assert [each.prompt_tokens for each in report.first_token] == [16, 64, 256]
    for first in report.first_token:
        assert 0 < first.low <= first.seconds <= first.high
    for decode in report.decode:
        assert 0 < decode.low <= decode.tokens_per_second <= decode.high
    assert [time.step for time in report.times[:6]] == ["read", "compile", "test", "memory", "round trip", "token"]
    assert sum(time.ms for time in report.times) <= report.probe_ms


@pytest.mark.exhaustive
def test_an_encoder_has_the_times_of_batches_of_texts(tmp_path: Path) -> None:
    make_encoder("bert", "mean_tokens", tmp_path / "model", num_hidden_layers=4)
    with few_kernels(tokens="many"):
        encoder = compile_model(str(tmp_path / "model"), tmp_path / "bundle", CompileOptions()).path
    report = probe(encoder)
    assert report.refusals == []
    assert report.test is not None
    assert report.test.largest_deviation is not None
    assert report.test.largest_deviation < 1e-3
    assert (report.speed, report.first_token, report.decode) == (None, [], [])
    assert (report.encode[0].texts, report.encode[0].tokens) == (1, 16)
    for each in report.encode:
        assert 0 < each.low <= each.seconds <= each.high


# web/test/probe/memory.test.ts has the limit, and the test of a platform's limit below a refusal.
@pytest.mark.exhaustive
@pytest.mark.skipif(platform.system() != "Linux", reason="limits the address space as Linux does")
def test_a_page_without_addresses_for_the_model_is_refused_and_does_not_end(bundle: Path) -> None:
    report = probe(bundle, "--pages", str(MORE_PAGES), address_space=ADDRESS_SPACE)
    (refusal,) = report.refusals
    assert refusal.reason == "memory"
    assert refusal.found is not None
    assert refusal.needed is not None
    assert refusal.found < refusal.needed
    assert refusal.found < ADDRESS_SPACE
    assert "use a smaller model" in refusal.message


@pytest.mark.exhaustive
def test_a_device_that_computes_the_layers_wrongly_is_refused(bundle: Path, tmp_path: Path) -> None:
    shutil.copytree(bundle, tmp_path / "bundle")
    file = tmp_path / "bundle/probe.json"
    content: dict[str, Any] = json.loads(file.read_text())
    # The reference is another one, so that the device's results are wrong.
    for row in content["self_test"]["rows"]:
        row["logits"] = [1.5 * logit for logit in row["logits"]]
    replace_file(tmp_path / "bundle", file, json.dumps(content))
    (refusal,) = probe(tmp_path / "bundle").refusals
    assert refusal.reason == "wrong"
    assert "computes the model wrongly" in refusal.message


def test_a_platform_that_allows_less_memory_is_refused(bundle: Path) -> None:
    iphone = json.dumps({"userAgent": IPHONE, "maxTouchPoints": 5})
    report = probe(bundle, "--platform", iphone, "--pages", str(MANY_PAGES))
    (refusal,) = report.refusals
    assert report.device.platforms == ["ios"]
    assert (refusal.reason, report.measured, report.decode) == ("memory", None, [])
    assert refusal.found is not None
    assert refusal.needed is not None
    assert refusal.found < refusal.needed
    assert "iOS ends a page that takes more memory" in refusal.message


def replace_file(bundle: Path, file: Path, text: str) -> None:
    """Write a file of the bundle, and its size and hash into the manifest."""
    from hashlib import sha256

    data = text.encode()
    file.write_bytes(data)
    manifest = json.loads((bundle / "manifest.json").read_text())
    for entry in manifest["files"]:
        if entry["file"] == file.name:
            entry |= {"size": len(data), "sha256": sha256(data).hexdigest()}
    (bundle / "manifest.json").write_text(json.dumps(manifest))
