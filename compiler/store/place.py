"""The folder of everything that nearfar stores by itself: models by name, their files, bundles and kernels."""

from __future__ import annotations

import os
import sys
from pathlib import Path

VARIABLE = "NEARFAR_CACHE"


def cache_folder() -> Path:
    """The folder of everything that nearfar stores; it need not exist."""
    if os.environ.get(VARIABLE):
        return Path(os.environ[VARIABLE]).expanduser()
    home = Path.home()
    if sys.platform == "darwin":
        return home / "Library" / "Caches" / "nearfar"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", home / "AppData" / "Local")) / "nearfar"
    return Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache") / "nearfar"
