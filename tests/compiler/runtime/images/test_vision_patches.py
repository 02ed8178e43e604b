"""The patches with which runtimes test a tower."""

from __future__ import annotations

import json

import pytest
from image_families import FAMILIES, spec_of, write_family
from vision_vectors import RECORDED, tower_of, vectors

from nearfar.compiler.runtime.feature_test import test_patches as patches_of_test
from nearfar.compiler.runtime.patches import require_patches


def test_python_and_the_page_make_the_same_patches() -> None:
    assert vectors() == json.loads(RECORDED.read_text())


@pytest.mark.parametrize("name", FAMILIES)
def test_the_patches_fit_the_tower(name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    spec = spec_of(write_family(FAMILIES[name], tmp_path_factory.mktemp(name)))
    batch = patches_of_test(tower_of(spec), spec)
    require_patches(batch, tower_of(spec), spec.positions.taps)
    assert len(batch.patches) <= min(160, tower_of(spec).tile_patches)
