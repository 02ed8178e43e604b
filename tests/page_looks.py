"""Checks of how a page looks: window sizes, the contrast of all text, and the names of all controls."""

from __future__ import annotations

import os

from conftest import ROOT
from playwright.sync_api import Page

AXE = ROOT / "web" / "node_modules" / "axe-core" / "axe.min.js"
SCREENSHOTS = ROOT / "build" / "screenshots"
DESK, PHONE, NARROW = (1280, 800), (390, 780), (360, 640)
# `make test-all` looks at all colours in all sizes, and keeps pictures.
EVERY_LOOK = bool(os.environ.get("NEARFAR_ALL_VARIANTS"))
# The lowest contrast between text and its background (W3C, WCAG 2.2, 1.4.3), over all visible text.
LEAST_CONTRAST = """() => {
    const parse = (text) => {
        const [r, g, b, a = 1] = text.match(/[\\d.]+/g).map(Number);
        return text.startsWith("color") ? [255 * r, 255 * g, 255 * b, a] : [r, g, b, a];
    };
    const over = ([r, g, b, a], under) => [r, g, b].map((value, index) => a * value + (1 - a) * under[index]);
    const behind = (node) => {
        const above = node.parentElement === null ? [255, 255, 255] : behind(node.parentElement);
        return over(parse(getComputedStyle(node).backgroundColor), above);
    };
    const luminance = (colour) => {
        const linear = (value) => value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
        const [r, g, b] = colour.map((value) => linear(value / 255));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const found = [];
    for (const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT); walker.nextNode();) {
        const node = walker.currentNode.parentElement;
        const isBlank = walker.currentNode.data.trim() === "";
        if (isBlank || !node.checkVisibility() || node.closest(".unseen, :disabled")) continue;
        const under = behind(node);
        const colour = over(parse(getComputedStyle(node).color), under);
        const [low, high] = [luminance(under), luminance(colour)].sort((a, b) => a - b);
        found.push([(high + 0.05) / (low + 0.05), walker.currentNode.data]);
    }
    return found.sort((a, b) => a[0] - b[0])[0];
}"""
NAMELESS = """() => [...document.querySelectorAll("button, input, textarea, a, [role=progressbar], [role=img]")]
    .filter((node) => node.checkVisibility() && !node.getAttribute("aria-label") && !node.labels?.length)
    .filter((node) => node.textContent.trim() === "")
    .map((node) => node.outerHTML)"""
OVERFLOW = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"


def require_legible(page: Page, name: str, *, full_page: bool = False) -> None:
    """Asserts that all text has enough contrast and that nothing overflows: dark on a narrow phone and light on a desk,
    because colours and sizes do not depend on each other. The page stays light on a desk.

    `make test-all` checks each with each, and a usual phone. Its pictures are build/screenshots/NAME-*.png.
    """
    page.emulate_media(reduced_motion="reduce")
    sizes = {"narrow": NARROW, "phone": PHONE, "desk": DESK}
    usual = [("dark", "narrow"), ("light", "desk")]
    for scheme, size in [(scheme, size) for scheme in ("dark", "light") for size in sizes] if EVERY_LOOK else usual:
        page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
        resize(page, sizes[size])
        assert page.evaluate(OVERFLOW) <= 0, (scheme, size)
        contrast, text = page.evaluate(LEAST_CONTRAST)
        assert contrast >= 4.5, (scheme, size, contrast, text)
        if size != "narrow":
            page.evaluate("() => scrollTo(0, 0)")
            picture(page, f"{name}-{size}-{scheme}", full_page=full_page)


def picture(page: Page, name: str, *, full_page: bool = False) -> None:
    """Keep a picture of the page, which takes as long as many checks, for `make test-all`."""
    if EVERY_LOOK:
        page.screenshot(path=SCREENSHOTS / f"{name}.png", full_page=full_page)


def resize(page: Page, size: tuple[int, int]) -> None:
    page.set_viewport_size({"width": size[0], "height": size[1]})


def fact(page: Page, answer: int, term: str) -> str:
    """The description of a term in an answer's details."""
    found = (
        page.locator(".answer")
        .nth(answer)
        .locator(".facts > div", has=page.locator(f"dt:text-is('{term}')"))
        .locator("dd")
    )
    return found.text_content() or ""


def require_accessible(page: Page) -> None:
    """Asserts that axe finds no violation of WCAG 2.2 (A and AA) on a phone, and on a desk in `make test-all`, and that
    controls have names. The page stays on a desk.
    """
    page.evaluate(AXE.read_text())
    for size in (DESK, PHONE) if EVERY_LOOK else (PHONE,):
        resize(page, size)
        tags = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
        found = page.evaluate("(tags) => window.axe.run(document, { runOnly: tags })", tags)
        assert [(rule["id"], [node["html"][-90:] for node in rule["nodes"]]) for rule in found["violations"]] == []
    assert page.evaluate(NAMELESS) == []
    resize(page, DESK)
