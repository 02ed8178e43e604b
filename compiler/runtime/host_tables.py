"""Gathers rows of the tables that stay on the host: the inputs of a batch that a plan declares as ``gathered``.

The shards are mapped, so only the rows that are read take memory, and the system may drop them again.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from .. import quant
from ..bundle.entries import GatheredEntry, WeightEntry, shards_of
from ..bundle.folder import Bundle
from ..bundle.manifest import Description, Manifest
from ..ir.ops import Array
from ..quant.base import FloatArray
from .errors import RequestError


def gathers(manifest: Description) -> bool:
    """Whether a runtime must know the token ids of a batch, because it gathers rows for them."""
    return isinstance(manifest, Manifest) and any(plan.gathered for plan in manifest.plans.values())


def require_known_tokens(model: str, gathered: Mapping[str, GatheredEntry], token_ids: npt.NDArray[np.int32]) -> None:
    """Raise RequestError for a token that is known only to the device."""
    if gathered and (token_ids < 0).any():
        raise RequestError(
            f"{model}: gathers input '{next(iter(gathered))}' on the host, so token ids must not be negative; read the "
            "sampled tokens before the next batch"
        )


class HostTables:
    """The host weights of a bundle."""

    def __init__(self, bundle: Bundle) -> None:
        self._weights = bundle.manifest.host_weights
        self._shards = {
            shard: np.memmap(bundle.file(bundle.manifest.shards[shard].file), np.uint8, "r")
            for shard in shards_of(self._weights)
        }

    def gather(
        self, gathered: Mapping[str, GatheredEntry], token_ids: npt.NDArray[np.int32]
    ) -> dict[str, npt.NDArray[np.float32]]:
        """The gathered inputs (S, columns) of a batch, by name."""
        return {name: self._rows(entry, token_ids) for name, entry in gathered.items()}

    def _rows(self, gathered: GatheredEntry, token_ids: npt.NDArray[np.int32]) -> FloatArray:
        found = np.zeros((len(token_ids), self._weights[gathered.weights[0]].shape[1]), np.float32)
        first = 0
        for weight in (self._weights[name] for name in gathered.weights):
            here = (token_ids >= first) & (token_ids < first + weight.shape[0])
            if here.any():
                tokens, order = np.unique(token_ids[here] - first, return_inverse=True)
                found[here] = (self._read(weight, tokens) * np.float32(gathered.scale))[order]
            first += weight.shape[0]
        return found

    def _read(self, weight: WeightEntry, rows: npt.NDArray[np.int32]) -> FloatArray:
        """Rows of a weight, unpacked."""
        planes: dict[str, Array] = {}
        for plane in weight.planes:
            stored = self._shards[plane.shard][plane.offset : plane.offset + plane.size]
            planes[plane.name] = stored.view(plane.dtype).reshape(plane.shape)[rows]
        assert weight.quantization is not None
        return quant.form_by_name(weight.quantization).unpack(planes, weight.shape[1])
