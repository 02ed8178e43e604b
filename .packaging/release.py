"""The release of nearfar as one command, `make release`: checks versions and the changelog, builds the wheel, the npm
packages, the docs and the demo site into build/release, and checks the site. It uploads only with --upload, and then
only what has a token; otherwise it prints what it would upload.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# In the order in which they are published: the later ones need the earlier ones.
PACKAGES = ("web", "mobile/webview", "mobile/react-native", "mobile/capacitor", "mobile/expo")
OUT = Path("build/release")
# Called with a command and its folder. Raises CalledProcessError.
Run = Callable[[Sequence[str], Path], None]


@dataclass(frozen=True, slots=True)
class Step:
    """``folder`` is relative to the checkout. An upload needs the variable ``token``."""

    words: str
    command: tuple[str, ...]
    folder: Path = Path()
    token: str | None = None


def versions(root: Path) -> dict[str, str]:
    """The version of each package, by its file."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found = {"pyproject.toml": str(project["version"])}
    for package in PACKAGES:
        file = f"{package}/package.json"
        found[file] = str(json.loads((root / file).read_text(encoding="utf-8"))["version"])
    return found


def problems(root: Path, *, upload: bool, changed: str = "") -> list[str]:
    """What forbids a release. ``changed``: what `git status --porcelain` prints."""
    found, listed = [], versions(root)
    if len(set(listed.values())) > 1:
        found.append("versions differ: " + ", ".join(f"{file} {version}" for file, version in listed.items()))
    version = listed["pyproject.toml"]
    changelog = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    entry = re.search(rf"^## {re.escape(version)}(?P<note> .*)?\n(?P<body>(?:(?!^## ).*\n?)*)", changelog, re.MULTILINE)
    if entry is None or not re.search(r"^- ", entry["body"], re.MULTILINE):
        found.append(f"CHANGELOG.md has no entry '## {version}' with a change")
    elif upload and "unreleased" in (entry["note"] or ""):
        found.append(f"CHANGELOG.md says that {version} is unreleased; write the date")
    if upload and changed.strip():
        found.append("files are not committed; commit them first")
    return found


def builds(python: str) -> list[Step]:
    site = str(OUT / "site")
    check = (
        "import sys; from pathlib import Path; from nearfar.compiler.bundle.folder import open_any; "
        "[open_any(path.parent).verify() for path in Path(sys.argv[1]).glob('*/*/manifest.json')]"
    )
    return [
        Step("wheel", (python, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(OUT), ".")),
        Step("wheel, as PyPI reads it", (python, "-m", "twine", "check", "--strict", f"{OUT}/*.whl")),
        *(
            Step(
                f"npm package {package}",
                ("npm", "pack", "--silent", "--pack-destination", str(ROOT / OUT)),
                Path(package),
            )
            for package in PACKAGES
        ),
        Step("docs", ("make", "docs")),
        Step("demo site", (python, "-m", "nearfar.compiler.cli", "publish", "demo", "--target", "webgpu", "-o", site)),
        Step("demo site, every hash", (python, "-c", check, site)),
    ]


def uploads(python: str, site: str | None) -> list[Step]:
    """``site``: where the demo site goes, as --to of `nearfar publish` takes it."""
    steps = [
        Step("wheel to PyPI", (python, "-m", "twine", "upload", f"{OUT}/*.whl"), token="TWINE_PASSWORD"),
        *(
            Step(f"{package} to npm", ("npm", "publish", "--access", "public"), Path(package), token="NODE_AUTH_TOKEN")
            for package in PACKAGES
        ),
    ]
    if site is not None:
        command = (python, "-m", "nearfar.compiler.cli", "publish", "demo", "--target", "webgpu", "--to", site)
        token = "HF_TOKEN" if site.startswith("hf:") else "AWS_SECRET_ACCESS_KEY"
        steps.append(Step(f"demo site to {site}", command, token=token))
    return steps


def release(
    root: Path, run: Run, environment: Mapping[str, str], *, upload: bool, site: str | None, changed: str
) -> int:
    """Returns the exit code. Nothing is built if a check fails, and nothing uploaded if a build does."""
    found = problems(root, upload=upload, changed=changed)
    for problem in found:
        print(f"error: {problem}")
    if found:
        return 1
    (root / OUT).mkdir(parents=True, exist_ok=True)
    print(f"release {versions(root)['pyproject.toml']}")
    for step in builds(sys.executable):
        print(f"build   {step.words}")
        try:
            run(expanded(step, root), root / step.folder)
        except subprocess.CalledProcessError as error:
            print(f"error: {step.words}: '{' '.join(step.command[:4])} ...' failed with exit code {error.returncode}")
            return 1
    missing = 0
    for step in uploads(sys.executable, site):
        command = " ".join(step.command)
        if not upload:
            print(f"would   {step.words}: {command}")
        elif step.token is not None and not environment.get(step.token):
            missing += 1
            print(f"skipped {step.words}: {step.token} is not set; {command}")
        else:
            print(f"upload  {step.words}")
            run(expanded(step, root), root / step.folder)
    if not upload:
        print("nothing was uploaded; review build/release, then run 'make release UPLOAD=1'")
    return 1 if missing else 0


def expanded(step: Step, root: Path) -> list[str]:
    """The command with the files that a pattern names."""
    words = []
    for word in step.command:
        words += sorted(map(str, (root / step.folder).glob(word))) if word.endswith("*.whl") else [word]
    return words


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--upload", action="store_true", help="upload what has a token")
    parser.add_argument("--site", help="where the demo site goes: hf:OWNER/NAME or s3://BUCKET/PREFIX")
    options = parser.parse_args()
    changed = subprocess.check_output(["git", "status", "--porcelain"], cwd=ROOT, text=True)

    def run(command: Sequence[str], folder: Path) -> None:
        subprocess.run(list(command), cwd=folder, check=True)

    return release(ROOT, run, os.environ, upload=options.upload, site=options.site, changed=changed)


if __name__ == "__main__":
    sys.exit(main())
