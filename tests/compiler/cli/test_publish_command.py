"""`nearfar publish`: consent to licenses, quality, what is compiled and what is refused."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from light_bundle import few_kernels

from nearfar.compiler.cli import main
from nearfar.compiler.cli.publish import files_of_license
from nearfar.compiler.demo import DEMOS
from nearfar.compiler.formats import load
from nearfar.compiler.pipeline.compile import compile_model
from nearfar.compiler.pipeline.options import CompileOptions

GEMMA = "---\nlicense: gemma\n---\n"
APACHE = "---\nlicense: apache-2.0\nbase_model: Qwen/Qwen3-0.6B-Base\n---\n"


@pytest.fixture(scope="module")
def model(tiny_checkpoints: Mapping[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "Tiny"
    shutil.copytree(tiny_checkpoints["qwen3"], folder)
    (folder / "README.md").write_text(APACHE)
    (folder / "LICENSE").write_text("the text of the license")
    return folder


@pytest.fixture(scope="module")
def gemma(tiny_checkpoints: Mapping[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of a model under Gemma's terms."""
    folder = tmp_path_factory.mktemp("gemma")
    shutil.copytree(tiny_checkpoints["qwen3"], folder / "Tiny")
    (folder / "Tiny/README.md").write_text(GEMMA)
    with few_kernels():
        compile_model(str(folder / "Tiny"), folder / "bundle", CompileOptions(self_test=False))
    return folder / "bundle"


def published(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    code = main(["publish", *arguments, "--json"])
    shown = capsys.readouterr()
    return json.loads(shown.out if code == 0 else shown.err)


def test_terms_are_shown_and_need_consent(gemma: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    site = tmp_path / "site"
    refused = published(capsys, str(gemma), "-o", str(site), "--no-web")
    assert refused["error"]["code"] == "request_error"
    for words in ("Gemma Terms of Use", "section 3.2", "ai.google.dev/gemma/terms", "--accept-license"):
        assert words in refused["error"]["message"]
    assert not site.exists()
    done = published(capsys, str(gemma), "-o", str(site), "--no-web", "--accept-licence")
    assert done["license"]["id"] == "gemma"
    assert "Gemma is provided under and subject to the Gemma Terms of Use" in (site / "tiny/NOTICE").read_text()


def test_a_person_may_consent_in_the_terminal(
    gemma: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    answers = iter(["no", "yes"])
    monkeypatch.setattr("builtins.input", lambda _: next(answers))
    arguments = ["publish", str(gemma), "-o", str(tmp_path / "site"), "--no-web"]
    assert main(arguments) == 2
    assert main(arguments) == 0
    shown = capsys.readouterr()
    assert "Bind your users to the use restrictions" in shown.err
    assert "the text of Gemma Terms of Use is not in the site" in shown.err
    assert "writing site" in shown.err


def test_an_unknown_license_needs_consent_too(
    tiny_bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refused = published(capsys, str(tiny_bundle), "-o", str(tmp_path / "site"), "--no-web")
    assert "find out whether you may publish it" in refused["error"]["message"]


def test_a_model_is_compiled_measured_and_published(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "text.txt"
    text.write_text("a b c d e f g h " * 20)
    site = tmp_path / "site"
    arguments = [str(model), "--quantization", "q8f16", "--context", "128", "--text", str(text), "--windows", "1"]
    with few_kernels():
        done = published(capsys, *arguments, "-o", str(site), "--no-web")
    [bundle] = done["bundles"]
    assert (bundle["folder"], bundle["quantization"], bundle["context"]) == ("tiny/webgpu", "q8f16", 128)
    assert 0 < bundle["kl_mean"] < 0.1
    assert (done["license"]["id"], done["base_models"]) == ("apache-2.0", ["Qwen/Qwen3-0.6B-Base"])
    card = (site / "README.md").read_text()
    assert "nearfar publish Tiny --quantization q8f16 --context 128`" in card
    assert "tokens of text.txt" in card
    assert (site / "tiny/LICENSE").read_text() == "the text of the license"
    assert str(tmp_path) not in card


def test_a_demo_model_has_the_text_of_its_license() -> None:
    root = Path(__file__).parents[3]
    for checkpoint in DEMOS.values():
        assert [path.read_text() for path in files_of_license(load(str(checkpoint)))] == [
            (root / "LICENSE").read_text()
        ]


def test_quality_that_was_not_measured_says_why(
    gemma: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done = published(capsys, str(gemma), "-o", str(tmp_path / "site"), "--no-web", "--accept-license")
    assert done["bundles"][0]["kl_mean"] is None
    card = (tmp_path / "site/README.md").read_text()
    assert "not measured: the checkpoint was not given (--reference)" in card


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "nothing says where to publish"),
        (("-o", "site", "--target", "cpu"), "are for a model to compile"),
        (("-o", "site", "--base", "site/", "--accept-license", "--no-web"), "is not an address"),
        (("--to", "ftp://x"), "is neither hf:OWNER/NAME nor"),
    ],
)
def test_options_that_contradict_are_refused(
    gemma: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    assert message in published(capsys, str(gemma), *arguments)["error"]["message"]


def test_a_model_beside_a_bundle_is_refused(gemma: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    refused = published(capsys, str(gemma), str(model), "-o", "site")
    assert "Tiny: is not a bundle; give one model to compile, or bundles of one model" in refused["error"]["message"]
