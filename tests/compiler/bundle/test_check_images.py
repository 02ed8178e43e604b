"""The numbers of an ImageSpec that contradict each other are refused."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from image_families import FAMILIES, spec_of, write_family

from nearfar.compiler.bundle.check_description import check_images
from nearfar.compiler.bundle.fault import Fault
from nearfar.compiler.ir.images import (
    AreaBounds,
    EvenTiles,
    FixedSize,
    ImagePrompt,
    ImageSpec,
    LargestArea,
    LongestEdge,
    PositionSpec,
    TileGrid,
)

VOCABULARY = 500


@cache
def images(family: str) -> ImageSpec:
    with TemporaryDirectory() as folder:
        return spec_of(write_family(FAMILIES[family], Path(folder)))


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_read_from_a_checkpoint_agrees(family: str) -> None:
    check_images(images(family), VOCABULARY)


WRONG = {
    "two means": (replace(images("gemma3"), mean=(0.5, 0.5)), "images.mean"),
    "a mean alone": (replace(images("gemma3"), std=None), "images.mean"),
    "a huge mean": (replace(images("gemma3"), mean=(0.5, 2.0**40, 0.5)), "images.mean: is 0.5, 1099511627776, 0.5"),
    "a mean that is no number": (replace(images("gemma3"), mean=(math.nan, 0.5, 0.5)), "images.mean"),
    "an infinite mean": (replace(images("gemma3"), mean=(0.5, 0.5, -math.inf)), "images.mean"),
    "a huge std": (replace(images("gemma3"), std=(0.5, 0.5, 2.0**40)), "images.std: is 0.5, 0.5, 1099511627776"),
    "a tiny std": (replace(images("gemma3"), std=(2.0**-40, 0.5, 0.5)), "images.std"),
    "a std that is no number": (replace(images("gemma3"), std=(math.nan, 0.5, 0.5)), "images.std"),
    "half a block": (replace(images("gemma3"), size=FixedSize(896, 910)), "images.size"),
    "a huge picture": (replace(images("gemma4"), size=LargestArea(2**27)), "images.size"),
    "bounds that cross": (replace(images("qwen3_vl"), size=AreaBounds(9999, 5000, False, None)), "images.size"),
    "less than a block": (replace(images("qwen3_vl"), size=AreaBounds(1, 900, False, None)), "images.size"),
    "one tile of any sides": (replace(images("idefics3"), tiles=None), "images.size"),
    "a short table": (replace(images("gemma3"), positions=PositionSpec("plain", 63)), "images.positions.side"),
    "short axes": (replace(images("gemma4"), positions=PositionSpec("axes", 839, 2)), "images.positions.side"),
    "one axis": (replace(images("gemma4"), positions=PositionSpec("axes", 10240, 1)), "images.positions.taps"),
    "more taps than rows": (replace(images("lfm2_vl"), positions=PositionSpec("antialiased", 4, 17)), "positions.taps"),
    "tiles of part blocks": (replace(images("idefics3"), tiles=EvenTiles(528)), "images.tiles.side"),
    "tiny tiles": (replace(images("idefics3"), tiles=EvenTiles(15)), "images.tiles.side"),
    "huge tiles": (replace(images("idefics3"), size=LongestEdge(4096, 4096), tiles=EvenTiles(8256)), "tiles.side"),
    "a grid of one": (replace(images("lfm2_vl"), tiles=TileGrid(512, 1, 10, 1.0, True)), "images.tiles.most"),
    "a large grid": (replace(images("lfm2_vl"), tiles=TileGrid(512, 2, 1000, 1.0, True)), "images.tiles.most"),
    "an unknown token": (
        replace(images("gemma3"), prompt=ImagePrompt("<a>", "<b>", VOCABULARY)),
        "images.prompt.placeholder_id",
    ),
    "no mark": (replace(images("gemma3"), prompt=ImagePrompt("", "<b>", 0)), "images.prompt"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_contradiction_is_named(name: str) -> None:
    spec, where = WRONG[name]
    with pytest.raises(Fault, match=where):
        check_images(spec, VOCABULARY)
