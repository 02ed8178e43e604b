"""Licenses and base models, as cards, GGUF files and LICENSE files state them. Hugging Face's own reader of cards and
the package gguf write or read the same.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import pytest
from huggingface_hub import ModelCardData
from light_bundle import few_kernels

from nearfar.compiler.bundle.entries import OriginEntry
from nearfar.compiler.bundle.folder import open_any
from nearfar.compiler.cli import main
from nearfar.compiler.formats.gguf.container import read_container
from nearfar.compiler.formats.origin import origin_of_folder, origin_of_gguf
from nearfar.compiler.pipeline.compile import compile_model
from nearfar.compiler.pipeline.options import CompileOptions
from nearfar.compiler.publish.licenses import known_licenses, license_of, recognized, stated

ROOT = Path(__file__).parents[3]
APACHE = (ROOT / "LICENSE").read_text()


def card(**values: Any) -> str:
    return f"---\n{ModelCardData(**values).to_yaml()}\n---\n# A model\nlicense: mit\n"


def origin_of(folder: Path, **files: str) -> OriginEntry:
    for name, text in files.items():
        (folder / name.replace("_md", ".md")).write_text(text)
    return origin_of_folder(folder)


def test_the_card_names_the_license_and_the_base_models(tmp_path: Path) -> None:
    origin = origin_of(tmp_path, README_md=card(license="apache-2.0", base_model=["Qwen/Qwen3-0.6B-Base"]))
    assert (origin.license, origin.base_models) == ("apache-2.0", ["Qwen/Qwen3-0.6B-Base"])
    assert origin.read_from == ["README.md"]
    known = license_of(origin)
    assert known is not None
    assert not known.terms


@pytest.mark.parametrize(
    ("license_name", "expected"), [("lfm1.0", "lfm1.0"), ("qwen-research", "qwen-research"), ("our-own", None)]
)
def test_another_license_is_known_by_its_name_or_said_in_its_own_words(
    tmp_path: Path, license_name: str, expected: str | None
) -> None:
    link = "https://example.com/license"
    header = card(license="other", license_name=license_name, license_link=link)
    origin = origin_of(tmp_path, README_md=header)
    known = license_of(origin)
    assert (known and known.id) == expected
    assert origin.license_link == link
    assert stated(origin) == (license_name if known is None else known.title)


@pytest.mark.parametrize(
    "header",
    [
        "",
        "# A model\nlicense: mit\n",
        "---\n[broken\n---\n",
        "---\n- a list\n---\n",
        "---\nlicense: 3\nbase_model: {}\n---\n",
    ],
)
def test_what_a_card_does_not_say_is_unknown(tmp_path: Path, header: str) -> None:
    origin = origin_of(tmp_path, README_md=header)
    assert (origin.license, origin.base_models) == (None, [])
    assert stated(origin).startswith("unknown")


def test_a_license_file_counts_only_with_the_exact_text(tmp_path: Path) -> None:
    assert origin_of(tmp_path, LICENSE=APACHE).license == "apache-2.0"
    assert origin_of(tmp_path, LICENSE=APACHE).read_from == ["LICENSE"]
    changed = APACHE.replace("irrevocable", "revocable")
    assert changed != APACHE
    assert origin_of(tmp_path, LICENSE=changed).license is None
    assert recognized(APACHE + "You must not use this model on Sundays. " * 60) is None


@pytest.mark.parametrize("name", ["gemma", "llama3.2", "lfm1.0", "qwen-research"])
def test_an_agreement_is_known_by_its_heading_alone(name: str) -> None:
    heading = known_licenses()[name].heading
    assert heading is not None
    found = recognized(f"{heading.title()}\nVersion of some day. You agree.")
    assert found is not None
    assert found.id == name
    assert recognized(f"Our own terms. {'They differ from others. ' * 20} See the {heading}.") is None


def test_llamas_agreement_asks_for_its_words_and_its_name() -> None:
    llama = known_licenses()["llama3.2"]
    assert llama.terms
    assert llama.texts("display") == ["Built with Llama"]
    assert llama.texts("name") == ["Llama"]
    assert llama.texts("notice")[0].startswith("Llama 3.2 is licensed under the Llama 3.2 Community License")
    assert all(each.url.startswith("https://") for each in known_licenses().values())


def gguf_file(path: Path, **values: str) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    for name, value in values.items():
        getattr(writer, f"add_{name}")(value)
    writer.add_base_model_count(1)
    writer.add_base_model_repo_url(0, "https://huggingface.co/Qwen/Qwen3-0.6B")
    for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close):
        step()
    return path


def test_a_gguf_file_says_it_in_its_metadata(tmp_path: Path) -> None:
    path = gguf_file(tmp_path / "m.gguf", license="other", license_name="lfm1.0", license_link="https://l.example")
    (tmp_path / "README.md").write_text(card(license="mit", base_model="someone/else"))
    origin = origin_of_gguf(read_container(path).metadata, path)
    assert (origin.license, origin.license_name, origin.license_link) == ("other", "lfm1.0", "https://l.example")
    assert origin.base_models == ["Qwen/Qwen3-0.6B"]
    assert origin.read_from == ["m.gguf"]


def test_what_a_gguf_file_leaves_out_is_in_the_card_beside_it(tmp_path: Path) -> None:
    path = gguf_file(tmp_path / "m.gguf")
    (tmp_path / "README.md").write_text(card(license="mit", base_model="someone/else"))
    origin = origin_of_gguf(read_container(path).metadata, path)
    assert (origin.license, origin.base_models) == ("mit", ["Qwen/Qwen3-0.6B"])
    assert origin.read_from == ["m.gguf", "README.md"]


def test_a_snapshot_of_the_hub_is_known_by_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "models--Qwen--Qwen3-0.6B/snapshots/abc"
    folder.mkdir(parents=True)
    origin = origin_of(folder, README_md=card(license="apache-2.0"))
    assert (origin.repository, origin.revision) == ("Qwen/Qwen3-0.6B", "abc")


def test_the_manifest_and_inspect_repeat_what_the_checkpoint_says(
    tiny_checkpoints: Mapping[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tmp_path / "Llama-tiny"
    shutil.copytree(tiny_checkpoints["llama"], model)
    (model / "README.md").write_text(card(license="llama3.2", base_model="meta-llama/Llama-3.2-1B"))
    bundle = tmp_path / "bundle"
    with few_kernels():
        compile_model(str(model), bundle, CompileOptions(self_test=False))
    origin = open_any(bundle).manifest.origin
    assert origin == origin_of_folder(model)
    assert main(["inspect", str(bundle), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)["origin"]
    assert shown["known_license"]["id"] == "llama3.2"
    assert shown["base_models"] == ["meta-llama/Llama-3.2-1B"]
    assert main(["inspect", str(bundle)]) == 0
    table = capsys.readouterr().out
    assert "Llama 3.2 Community License (from README.md)" in table
    assert "display: Built with Llama" in table


def test_a_bundle_of_an_earlier_release_has_no_origin(
    tiny_bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = tmp_path / "bundle"
    shutil.copytree(tiny_bundle, bundle)
    manifest = json.loads((bundle / "manifest.json").read_text())
    assert manifest.pop("origin")["license"] is None
    (bundle / "manifest.json").write_text(json.dumps(manifest))
    assert main(["inspect", str(bundle)]) == 0
    assert "unknown: the bundle was compiled by a release" in capsys.readouterr().out
