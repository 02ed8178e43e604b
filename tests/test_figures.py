"""The figures in READMEs are those that code prints now, and `make figures` writes them."""

from __future__ import annotations

from pathlib import Path

import figures
import pytest
from conftest import lacks
from figures import Figure, FigureError, outdated
from result_row import with_row


@pytest.mark.usefixtures("node")
def test_the_figures_in_readmes_are_those_of_the_code() -> None:
    if not all(
        (figures.ROOT / name).exists()
        for name in ("web/dist/nearfar.js", "mobile/webview/dist/app.js", "mobile/expo/dist/index.js")
    ):
        lacks("the packages are not built (make web mobile)")
    assert outdated() == [], "run make figures"


@pytest.fixture
def readme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    listed = [Figure("a.md", "adds {} MB and {}", ["installed_mb serve", "gzipped_kb x"])]
    monkeypatch.setattr(figures, "read_figures", lambda: listed)
    monkeypatch.setattr(figures, "recorded", lambda _: {"serve": 1022})
    monkeypatch.setattr(figures, "KINDS", {**figures.KINDS, "gzipped_kb": lambda _: "9"})
    return tmp_path / "a.md"


def test_figures_are_written_across_line_ends_and_nothing_else(readme: Path) -> None:
    readme.write_text("It adds 1 MB. It adds\n5,600.5 MB and 12, and adds 7 of 12.\n")
    assert outdated(readme.parent) == ["a.md"]
    assert outdated(readme.parent, write=True) == ["a.md"]
    assert readme.read_text() == "It adds 1 MB. It adds\n1,022 MB and 9, and adds 7 of 12.\n"
    assert outdated(readme.parent) == []


def test_a_figure_of_the_router_has_its_sign_and_its_interval(readme: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = [Figure("a.md", "| {} ({} - {}) | {} % |", ["router a words ahead_of_length ahead_of_length_95 cpt50"])]
    row = {"ahead_of_length": -0.0143, "ahead_of_length_95": [-0.0244, 0.0039], "cpt50": 0.4313}
    monkeypatch.setattr(figures, "read_figures", lambda: listed)
    monkeypatch.setattr(figures, "recorded", lambda _: {"figures": {"a words": row}})
    readme.write_text("|  +1.5 (0.1 - 2) | 3 %   |\n")
    assert outdated(readme.parent, write=True) == ["a.md"]
    assert readme.read_text() == "|  -0.014 (-0.024 - 0.004) | 43.1 %   |\n"


@pytest.mark.parametrize(("text", "count"), [("adds 5 MB", 0), ("adds 5 MB and 9. adds 5 MB and 9.", 2)])
def test_a_text_that_its_file_lacks_or_repeats_is_an_error(readme: Path, text: str, count: int) -> None:
    readme.write_text(text)
    with pytest.raises(FigureError, match=f"a.md contains {count} times instead of once: adds"):
        outdated(readme.parent)


def test_an_unknown_kind_of_value_is_an_error() -> None:
    with pytest.raises(FigureError, match=r"'sizes x': the kinds of values are .*gzipped_kb, size_kb"):
        figures.value_of("sizes x")


def test_make_test_all_replaces_its_row() -> None:
    table = "| date | result |\n| --- | --- |\n| 2026-01-02 | 5 passed |\n\nMore.\n"
    assert with_row(table, "| 2026-02-03 | 6 passed |") == table.replace("2026-01-02 | 5", "2026-02-03 | 6")
