"""nearfar cp: another name for a model of the store. It takes no space of its own."""

from __future__ import annotations

from ..store.store import Store
from .options import Cp


def run(options: Cp) -> None:
    """Raises UnknownModel, and RequestError for a text that cannot be a name."""
    copied = Store.of_user().copy(options.model, options.to)
    print(f"copied {options.model} to {copied.name}")
