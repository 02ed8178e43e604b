"""`nearfar watermark detect`, and the options with which a server marks its answers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from command_line import parsed

from nearfar.compiler.bundle.folder import open_bundle
from nearfar.compiler.cli import main
from nearfar.compiler.demo import CHECKPOINT
from nearfar.compiler.ir.watermark import Watermark
from nearfar.compiler.runtime.errors import RequestError
from nearfar.compiler.runtime.text.tokenizer import Tokenizer
from nearfar.compiler.runtime.text.tokenizer_files import TokenizerFiles
from nearfar.server_fallback.cli.served_models import make_opener
from nearfar.server_fallback.executors.local_opener import LocalOpener
from nearfar.server_fallback.executors.watermark_key import require_marks, watermark_of

SECRET = "a-secret-of-the-server"


@pytest.fixture
def key(tmp_path: Path) -> Path:
    file = tmp_path / "watermark.key"
    file.write_text(f"{SECRET}\n")
    return file


def marked_text(words: int) -> str:
    """A text whose tokens are green whenever one of some random ones is, by an author that only knows the key."""
    tokenizer = Tokenizer(TokenizerFiles.at(CHECKPOINT / "tokenizer.json"))
    watermark, drawn = Watermark.of(SECRET.encode()), np.random.default_rng(0)
    known = [
        token_id
        for token_id in range(600)
        if (text := tokenizer.text_of(token_id)) is not None and text.strip().isalpha() and text.startswith(" ")
    ]
    token_ids = [known[0]]
    while len(token_ids) < words:
        some = drawn.choice(known, 8).tolist()
        token_ids.append(next((each for each in some if watermark.are_green(token_ids[-1], each)), some[0]))
    return tokenizer.decode(token_ids)


def test_a_marked_text_is_found_and_others_are_not(
    key: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "letter.txt"
    file.write_text(marked_text(120), encoding="utf-8")
    command = ["watermark", "detect", str(file), "--model", "demo", "--key", str(key)]

    def found(*more: str) -> dict[str, object]:
        assert main([*command, "--json", *more]) == 0
        return dict(json.loads(capsys.readouterr().out))

    marked = found()
    assert marked["marked"] is True
    assert float(str(marked["p_value"])) < 1e-9
    assert float(str(marked["z_score"])) > 6
    assert main(command) == 0
    assert capsys.readouterr().out.startswith("marked: ")
    readme = (Path(__file__).parents[3] / "README.md").read_text(encoding="utf-8")[:3000]
    file.write_text(readme, encoding="utf-8")
    assert found()["marked"] is False
    # A marked part of a long text is found by windows alone.
    file.write_text(f"{readme}{marked_text(60)}{readme}", encoding="utf-8")
    parts = found("--window", "60")
    assert parts["marked"] is True
    windows = parts["windows"]
    assert isinstance(windows, list)
    assert 0 < sum(part["marked"] for part in windows) < 6
    assert main([*command, "--window", "60"]) == 0
    assert "% green, p = " in capsys.readouterr().out
    file.write_text("Hello there.", encoding="utf-8")
    assert found()["marked"] is None
    assert main(command) == 0
    assert capsys.readouterr().out.startswith("too short to decide: ")
    key.write_text("short")
    assert main(command) == 2
    printed = capsys.readouterr()
    assert "must hold a secret of 16" in " ".join(printed.err.split())
    assert main([*command[:4], "no-such-model", *command[5:]]) == 2


def test_a_watermark_needs_a_key_and_excludes_what_it_cannot_mark(key: Path, tmp_path: Path, tiny_bundle: Path) -> None:
    local = parsed("serve", "demo", "--watermark-key", str(key), "--watermark-share", "0.5").local
    assert watermark_of(local) == Watermark.of(SECRET.encode(), 0.5, 2.0)
    assert watermark_of(parsed("serve", "demo").local) is None
    for options, message in (
        (["--watermark", "all"], "--watermark all: needs the secret"),
        (["--watermark-key", str(tmp_path / "none")], "cannot be read"),
        (["--watermark-key", str(key), "--receipt-key", "key.pem"], "--watermark-key excludes --receipt-key"),
    ):
        with pytest.raises(RequestError, match=message) as refused:
            LocalOpener(parsed("serve", "demo", *options).local)
        assert SECRET not in str(refused.value)
    with pytest.raises(RequestError, match="marks answers of our own engine, and --executor is upstream"):
        make_opener(parsed("serve", "--executor", "upstream", "--watermark-key", str(key)), {}, lambda *_: None)
    with pytest.raises(SystemExit):
        parsed("serve", "demo", "--watermark-share", "1")
    with pytest.raises(RequestError, match="was compiled without --watermark"):
        require_marks(open_bundle(tiny_bundle).manifest)
