"""Preparing pictures, against what transformers' processors make of them on torchvision (`tests/image_oracle.py`)."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import image_oracle
import numpy as np
import pytest
from image_families import FAMILIES, pattern, spec_of, write_family
from image_oracle import VECTORS, processed, processor_of, sha256, their_patches

from nearfar.compiler.runtime.errors import RequestError
from nearfar.compiler.runtime.images.patches import image_layout, prepare_image

RECORDED: dict[str, Any] = json.loads(VECTORS.read_text())
CASES = [(name, case) for name, each in RECORDED.items() for case in each["cases"]]


@pytest.mark.parametrize("name", FAMILIES)
def test_a_folder_says_how_its_pictures_are_prepared(name: str, tmp_path: Path) -> None:
    spec = spec_of(write_family(FAMILIES[name], tmp_path))
    assert json.loads(json.dumps(asdict(spec))) == RECORDED[name]["spec"]


@pytest.mark.parametrize(("name", "case"), CASES, ids=lambda each: each if isinstance(each, str) else each["key"][:6])
def test_pixels_and_text_are_those_of_the_models_own_processor(name: str, case: Any, tmp_path: Path) -> None:
    spec = spec_of(write_family(FAMILIES[name], tmp_path))
    prepared = prepare_image(spec, pattern(case["width"], case["height"]))
    for place, value in case["samples"]:
        assert float(prepared.patches.flat[place]) == value
    assert list(prepared.features) == case["features"]
    assert prepared.starts.tolist() == (np.cumsum([0, *case["features"]]) * spec.block**2).tolist()
    assert prepared.text.count(spec.prompt.placeholder) == sum(case["features"])
    assert hashlib.sha256(prepared.text.encode()).hexdigest() == case["text"]
    for part in ("patches", "rows", "weights", "positions"):
        assert sha256(getattr(prepared, part)) == case[part], part
    assert prepared.key == case["key"]


@pytest.mark.parametrize("name", FAMILIES)
def test_pictures_of_any_size_have_as_many_tokens_as_in_transformers(name: str, tmp_path: Path) -> None:
    spec = spec_of(write_family(FAMILIES[name], tmp_path))
    for width, height, count in RECORDED[name]["counts"]:
        try:
            found = sum(image_layout(spec, width, height)["features"])
        except RequestError:
            found = 0
        assert found == count, (width, height)


def test_pictures_that_the_processor_refuses_are_refused(tmp_path: Path) -> None:
    for name, each in RECORDED.items():
        spec = spec_of(write_family(FAMILIES[name], tmp_path / name))
        for width, height in each["refused"]:
            with pytest.raises(RequestError, match=f"{width} x {height}"):
                image_layout(spec, width, height)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", FAMILIES)
def test_processors_on_torchvision_make_the_recorded_pixels(name: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    try:
        image_oracle.import_torchvision()
    except ImportError:
        pytest.skip("torchvision is not installed; pip install torchvision==0.28.0 compares with the real processors")
    folder = write_family(FAMILIES[name], tmp_path)
    spec = spec_of(folder)
    processor, mark = processor_of(name, folder)
    for case in RECORDED[name]["cases"]:
        output = processed(processor, mark, pattern(case["width"], case["height"]))
        assert sha256(their_patches(spec, output)) == case["patches"]
