"""Signed bundles: --trust accepts only unchanged bundles that a trusted key has signed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import lacks

from nearfar.compiler.bundle.folder import open_any
from nearfar.compiler.bundle.signature import SIGNATURE_FILE, new_key, read_trusted_keys, sign
from nearfar.compiler.cli import main
from nearfar.compiler.runtime.errors import BundleError, OutputError, RequestError


@pytest.fixture(scope="module", autouse=True)
def cryptography() -> None:
    try:
        import cryptography  # noqa: F401
    except ImportError:
        lacks("cryptography is not installed (pip install 'nearfar[sign]')")


@pytest.fixture
def bundle(compile_tiny: Callable[..., Path], tmp_path: Path) -> Path:
    """A signed bundle, its key "me", and another key "other"."""
    path = Path(shutil.copytree(compile_tiny("qwen3", "q4f16"), tmp_path / "bundle"))
    for name in ("me", "other"):
        new_key(tmp_path / name)
    sign(path, (path / "manifest.json").read_bytes(), tmp_path / "me")
    return path


def open_trusting(bundle: Path, *names: str) -> None:
    open_any(bundle, read_trusted_keys([bundle.parent / f"{name}.pub" for name in names]))


def test_a_bundle_that_a_trusted_key_signed_opens(bundle: Path) -> None:
    open_trusting(bundle, "me")
    open_trusting(bundle, "other", "me")
    open_any(bundle)


def test_a_bundle_that_is_not_signed_is_refused(bundle: Path) -> None:
    (bundle / SIGNATURE_FILE).unlink()
    with pytest.raises(BundleError, match="is not signed"):
        open_trusting(bundle, "me")
    open_any(bundle)


def test_a_bundle_that_another_key_signed_is_refused(bundle: Path) -> None:
    with pytest.raises(BundleError, match="which --trust does not list"):
        open_trusting(bundle, "other")


def test_a_manifest_that_was_changed_is_refused(bundle: Path) -> None:
    manifest = json.loads((bundle / "manifest.json").read_text())
    (bundle / "manifest.json").write_text(json.dumps({**manifest, "model": "other"}))
    with pytest.raises(BundleError, match="was changed after it was signed"):
        open_trusting(bundle, "me")


def test_a_signature_under_the_id_of_a_trusted_key_is_still_checked(bundle: Path) -> None:
    entry = json.loads((bundle / SIGNATURE_FILE).read_text())
    sign(bundle, (bundle / "manifest.json").read_bytes(), bundle.parent / "other")
    forged = json.loads((bundle / SIGNATURE_FILE).read_text()) | {"key": entry["key"]}
    (bundle / SIGNATURE_FILE).write_text(json.dumps(forged))
    with pytest.raises(BundleError, match="was changed after it was signed"):
        open_trusting(bundle, "me")


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", "null", '{"algorithm": "ed25519", "key": 1, "signature": 2}', "[" * 4000, "\x00"]
)
def test_a_file_that_is_not_a_signature_is_refused(text: str, bundle: Path) -> None:
    (bundle / SIGNATURE_FILE).write_text(text)
    with pytest.raises(BundleError, match="is not a signature"):
        open_trusting(bundle, "me")


def test_only_the_owner_can_read_a_private_key_and_it_is_never_replaced(bundle: Path) -> None:
    key = bundle.parent / "me"
    assert key.stat().st_mode & 0o077 == 0
    with pytest.raises(OutputError, match="exists already"):
        new_key(key)


def test_a_file_that_is_not_a_key_is_named(bundle: Path) -> None:
    with pytest.raises(RequestError, match="is not a public key in PEM"):
        read_trusted_keys([bundle / "manifest.json"])
    with pytest.raises(RequestError, match="is not a public key in PEM"):
        read_trusted_keys([bundle.parent / "me"])
    with pytest.raises(RequestError, match="is not a private key in PEM"):
        sign(bundle, b"", bundle.parent / "me.pub")


def test_commands_sign_and_trust(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = bundle.parent
    (bundle / SIGNATURE_FILE).unlink()
    trust = ("--trust", str(folder / "me.pub"))
    assert main(["inspect", str(bundle), *trust]) == 2
    assert "is not signed" in capsys.readouterr().err
    assert main(["sign", str(bundle), "--key", str(folder / "me")]) == 0
    assert main(["inspect", str(bundle), *trust]) == 0
    assert main(["run", str(bundle), "1", "--raw", "--max-tokens", "1", "--runner", "numpy", *trust]) == 0
    assert main(["run", str(bundle), "1", "--raw", "--trust", str(folder / "other.pub")]) == 2
    (bundle / "tokenizer.json").write_text("{}")
    assert main(["sign", str(bundle), "--key", str(folder / "me")]) == 2
    assert main(["sign", str(bundle)]) == 2
