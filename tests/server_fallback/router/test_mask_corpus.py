"""What masks find of the adversarial corpus, whose figures `web/masks.md` has."""

from __future__ import annotations

from mask_corpus import HARMLESS, measured


def test_no_form_but_spelled_ones_leaks_and_few_harmless_texts_are_masked() -> None:
    forms, alarms = measured()
    assert {form for form, each in forms.items() if each.leaks} <= {"spelled"}
    assert forms["spelled"].percent >= 90
    # A text that is split over parts or messages has no place for a placeholder.
    assert {form for form, each in forms.items() if each.near} == {"split over parts", "split over messages"}
    assert alarms <= 2
    assert len(HARMLESS) > 40
