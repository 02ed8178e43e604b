"""What an extra of nearfar adds to an installation, by the metadata of the installed distributions.

``python tests/install_size.py EXTRA...`` prints one line of JSON, in the environment of the Python that runs it: the
megabytes of the compiler with its dependencies (``base``), and those that each extra adds. ``--extras`` prints the
extras that users install, separated by commas.
"""

from __future__ import annotations

import json
import sys
import tomllib
from collections.abc import Mapping, Sequence, Set
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

# The editable nearfar of a checkout has the metadata of its last installation.
PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text("utf-8"))["project"]
EXTRAS: Mapping[str, Sequence[str]] = PROJECT["optional-dependencies"]
# What the extra "serve" may add.
MAX_SERVE_MB = 300
# The first is for developers, the second replaces "cuda".
MEASURED = sorted(EXTRAS.keys() - {"dev", "cuda12"})


def closure(*extras: str) -> Set[str]:
    """The distributions that ``pip install 'nearfar[EXTRAS]'`` installs. Raises PackageNotFoundError."""
    found: set[tuple[str, str]] = set()
    pending = [("nearfar", extra) for extra in ("", *extras)]
    while pending:
        name, extra = pending.pop()
        if (name, extra) in found:
            continue
        found.add((name, extra))
        for needed in requirements(name, extra):
            if needed.marker is None or needed.marker.evaluate({"extra": extra}):
                pending += [(canonicalize_name(needed.name), chosen) for chosen in ("", *needed.extras)]
    return {name for name, _ in found}


def requirements(name: str, extra: str) -> Sequence[Requirement]:
    if name == "nearfar":
        texts = EXTRAS[extra] if extra else PROJECT["dependencies"]
    else:
        texts = distribution(name).requires or []
    return [Requirement(text) for text in texts]


def size_bytes(name: str) -> int:
    """The size of a distribution's files, without those that Python compiled."""
    files = [path.locate() for path in distribution(name).files or [] if path.suffix != ".pyc"]
    return sum(Path(str(file)).stat().st_size for file in files if Path(str(file)).is_file())


def sizes_mb(extras: Sequence[str]) -> Mapping[str, int]:
    """Raises PackageNotFoundError for an extra that is not installed."""
    base = closure()
    sizes = {"base": sum(map(size_bytes, base))}
    for extra in extras:
        sizes[extra] = sum(map(size_bytes, closure(extra) - base))
    return {name: round(size / 1e6) for name, size in sizes.items()}


if __name__ == "__main__":
    print(",".join(MEASURED) if sys.argv[1:] == ["--extras"] else json.dumps(sizes_mb(sys.argv[1:])))
