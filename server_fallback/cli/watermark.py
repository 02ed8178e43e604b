"""nearfar watermark detect: find out whether a text, or a part of it, has the watermark of a key."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from rich.markup import escape

from nearfar.compiler.bundle.folder import open_any
from nearfar.compiler.bundle.manifest import MANIFEST_FILE
from nearfar.compiler.cli.output import new_console, print_json
from nearfar.compiler.demo import DEMOS
from nearfar.compiler.formats import load
from nearfar.compiler.given_file import MAX_DATA_BYTES, read_given_text
from nearfar.compiler.runtime.errors import RequestError, reason_of
from nearfar.compiler.runtime.text.tokenizer import Tokenizer
from nearfar.compiler.runtime.text.tokenizer_files import TokenizerFiles
from nearfar.compiler.store.store import Store

from ..executors.watermark_key import read_watermark
from ..text.watermark_detection import Detection, Window, detect, windows
from .options import WatermarkDetect


def run_detect(options: WatermarkDetect) -> None:
    """Raises RequestError for a key or text that cannot be read, and BundleError or CheckpointError for the model."""
    watermark = read_watermark(options.key, "--key", options.watermark_share)
    tokenizer = Tokenizer(tokenizer_files(options.model))
    token_ids = tokenizer.encode(read_text(options.text), add_special_tokens=False)
    whole = detect(watermark, token_ids)
    parts = [] if options.window is None else list(windows(watermark, token_ids, options.window))
    marked = [part for part in parts if part.p_value <= options.level]
    verdict = bool(marked) if parts else whole.p_value <= options.level
    is_long = whole.scored >= options.min_tokens
    if options.json:
        found: dict[str, Any] = {"marked": verdict if is_long else None, "tokens": len(token_ids), **described(whole)}
        if parts:
            found["windows"] = [
                {
                    "start": part.start,
                    "stop": part.stop,
                    **described(part.found),
                    "p_value": part.p_value,
                    "marked": part.p_value <= options.level,
                    "text": tokenizer.decode(token_ids[part.start : part.stop]),
                }
                for part in parts
            ]
        print_json(found)
        return
    print(f"{'marked' if verdict else 'no mark found'}: " if is_long else "too short to decide: ", end="")
    print(sentence(whole, watermark.share) + ("" if is_long else f"; at least {options.min_tokens} are needed"))
    for part in marked:
        show(part, tokenizer.decode(token_ids[part.start : part.stop]))


def described(found: Detection) -> dict[str, Any]:
    return {
        "scored_tokens": found.scored,
        "green_tokens": found.green,
        "green_share": round(found.green_share, 4),
        "z_score": round(found.z_score, 3),
        "p_value": found.p_value,
    }


def sentence(found: Detection, share: float) -> str:
    return (
        f"{found.green} of {found.scored} scored tokens are green, {found.green_share:.0%}; without this mark, "
        f"{share:.0%} are expected (z = {found.z_score:.1f}), and {found.p_value:.2g} of all texts have as many"
    )


def show(part: Window, text: str) -> None:
    shown = " ".join(text.split())
    shown = shown if len(shown) <= 60 else f"{shown[:57]}..."
    line = f"  tokens {part.start} to {part.stop}: {part.found.green_share:.0%} green, p = {part.p_value:.2g}: {shown}"
    new_console(soft_wrap=True).print(escape(line), highlight=False)


def tokenizer_files(model: str) -> TokenizerFiles:
    """Raises RequestError for a model that is not on this machine, BundleError and CheckpointError."""
    path = Path(str(DEMOS.get(model, model))).expanduser()
    if not path.exists():
        store = Store.of_user()
        stored = store.find(model)
        if stored is None:
            raise RequestError(
                f"--model {model}: is not a bundle, a checkpoint or a tokenizer.json, nor in the store (nearfar list)"
            )
        path = store.path(stored)
    if (path / MANIFEST_FILE).is_file():
        return open_any(path).tokenizer_files()
    of_folder = path / "tokenizer.json"
    if path.name == of_folder.name or of_folder.is_file():
        return TokenizerFiles.at(of_folder if of_folder.is_file() else path)
    return load(str(path)).tokenizer


def read_text(path: Path) -> str:
    """Raises RequestError."""
    try:
        return sys.stdin.read() if str(path) == "-" else read_given_text(path, MAX_DATA_BYTES)
    except OSError as error:
        raise RequestError(f"{path}: cannot be read: {reason_of(error)}") from error
    except UnicodeDecodeError as error:
        raise RequestError(f"{path}: is not UTF-8 text") from error
