"""The names of tensors that a training script saved with the wrappers around its model: torch.compile's `_orig_mod.`
anywhere, PEFT's `base_model.model.` and data parallelism's `module.` in front of all names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from ..errors import CheckpointError

COMPILED = "_orig_mod."
OUTER = ("module.", "base_model.model.")
_ADAPTER_PARTS = (".lora_A.", ".lora_B.", ".base_layer.", ".modules_to_save.")


def without_wrappers(path: Path, names: Iterable[str]) -> Mapping[str, str]:
    """The names on disk by the tensors' own names. Raises CheckpointError for LoRA adapters that were not merged, and
    for two tensors that get one name.
    """
    renamed = {name: name.replace(COMPILED, "") for name in names}
    adapter = next((name for name in renamed if any(part in f".{name}" for part in _ADAPTER_PARTS)), None)
    if adapter is not None:
        raise CheckpointError(
            f"{path}: tensor {adapter} belongs to a PEFT model whose adapters are not merged; merge them "
            "(model.merge_and_unload()) and save that model",
            tensor=adapter,
        )
    for prefix in (*OUTER, *OUTER):
        if all(own.startswith(prefix) for own in renamed.values()):
            renamed = {name: own.removeprefix(prefix) for name, own in renamed.items()}
    found: dict[str, str] = {}
    for name, own in renamed.items():
        if own in found:
            raise CheckpointError(f"{path}: tensor {name} and another one are both {own} without wrappers", tensor=name)
        found[own] = name
    return found
