"""/slots, as in llama.cpp's server. Source: its README."""

from __future__ import annotations

from pydantic import Field

from .common import Reply, Request


class SlotRequest(Request):
    """``filename`` names a file in the folder of --slot-save-path; erasing needs none. ``model`` (extension) may be
    left out if there is one model.
    """

    filename: str | None = Field(default=None, max_length=1000)
    model: str | None = None


class SlotReply(Reply):
    """``n_tokens`` (extension) are those of its last answer, with the prompt."""

    id: int
    n_ctx: int
    is_processing: bool
    n_tokens: int


class SaveTimings(Reply):
    save_ms: float


class RestoreTimings(Reply):
    restore_ms: float


class SlotSaved(Reply):
    id_slot: int
    filename: str
    n_saved: int
    n_written: int
    timings: SaveTimings


class SlotRestored(Reply):
    id_slot: int
    filename: str
    n_restored: int
    n_read: int
    timings: RestoreTimings


class SlotErased(Reply):
    id_slot: int
    n_erased: int
