"""Chain hashes: the name of a page in the tiers, which covers all tokens up to its end and what computed them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from hashlib import sha256
from typing import NamedTuple

import numpy as np


class UnitName(NamedTuple):
    """A page or a state in the tiers: the chain hash of the page's tokens, and the number of its cache kind."""

    chain: bytes
    kind: int


def model_root(bundle: str, activation: str, page_size: int) -> bytes:
    """What all names of a model start from."""
    return sha256(json.dumps([bundle, activation, page_size]).encode()).digest()


def first_link(root: bytes, adapter: str) -> bytes:
    """What comes before the first page. ``adapter`` is the digest of one, "" for none."""
    return sha256(root + adapter.encode()).digest()


def chain_hashes(link: bytes, keys: Sequence[int], page_size: int) -> Iterator[bytes]:
    """For each full page: the hash of the tokens up to its end. ``keys`` are the tokens as the prefix cache compares
    them, and ``link`` is the hash before them.
    """
    data = np.array(keys, "<i8").tobytes()
    size = 8 * page_size
    for start in range(0, len(keys) // page_size * size, size):
        link = sha256(link + data[start : start + size]).digest()
        yield link
