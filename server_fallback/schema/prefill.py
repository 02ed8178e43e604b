"""/v1/nearfar/prefill (extension): the server computes the start of a prompt for a client that has the same model, and
sends its keys, values and states at 4 bits; `far_prefill/blocks.py` and `far_prefill/layout.py` define the form.

The answer is a sequence of frames (`frame.py`), the blocks; a header has the ``sha256`` of its payload.

    opened   what the client compares with its own model: the sizes of a page, the layers of each page group, the states
    pages    the keys and values of ``tokens`` tokens from ``start`` on; of each group from page ``first`` on
    states   of recurrent layers, after ``tokens`` tokens, as ``dtype``: as requested, or "float32"
    end      the answer is complete
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from ..far_prefill.layout import StatesForm
from .common import Int64, Items, Request


class PrefillRequest(Request):
    """``prompt``: token ids in whole pages of the model. ``start``: how many of them the client has, in whole pages; at
    least two pages follow. ``tokenizer_sha256`` is the hash of the client's tokenizer.json, which must equal the
    server's, because otherwise the token ids differ. ``states``: how matrices of recurrent states travel.
    """

    model: str
    tokenizer_sha256: str
    prompt: Annotated[Items[int], Field(min_length=1)]
    start: Annotated[int, Field(ge=0)] = 0
    states: StatesForm = "q4"
    priority: Int64 | None = None


# For the OpenAPI document: the answer.
BLOCKS: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "Blocks, each with its length, its fields as JSON, and its content.",
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}
