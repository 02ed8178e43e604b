"""Writes the catalog's types for TypeScript, as `bundle/schema.py` writes those of the manifest.

``python -m nearfar.compiler.publish.schema`` writes both files into the web package. A test compares them.
"""

from __future__ import annotations

from pathlib import Path

from ..bundle.schema import checks, interface
from .catalog import CATALOG_VERSION, Catalog, CatalogBundle, CatalogLicense, CatalogModel

FOLDER = Path(__file__).parents[2] / "web/src/catalog"
HEADER = """\
// The catalog of a published site. Written by compiler/publish/schema.py from catalog.py there: edit that file.

import type { ActivationEntry } from "../runtime/manifest.js";
"""


def outputs() -> dict[Path, str]:
    """The content of each file."""
    version = f"\nexport const CATALOG_VERSION = {CATALOG_VERSION};\n"
    types = "".join(map(interface, (CatalogLicense, CatalogBundle, CatalogModel, Catalog)))
    return {FOLDER / "catalog.ts": HEADER + version + types, FOLDER / "catalog_types.json": checks(Catalog)}


if __name__ == "__main__":
    for path, text in outputs().items():
        path.write_text(text, encoding="utf-8")
