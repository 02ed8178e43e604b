"""The names in graphs and plans of what sequences keep between batches: page groups, and slots of states.

The layers of a page group share page tables. A model whose layers all see the whole context has one group, and so has
a model whose layers all have a window. A model with both may have two: layers without a window use the first one, and
layers with a window the second one, whose dims are PW and LW and whose inputs are prefixed.
"""

from __future__ import annotations

PAGES = "P"
WINDOW_PAGES = "PW"
# The dims of the pages of each group.
PAGE_DIMS = (PAGES, WINDOW_PAGES)
# The prefix of the second group's inputs.
WINDOW = "window_"
# The inputs that describe the pages of a group: of each new token, of each sequence, and of each sampled row.
PAGE_INPUTS = ("slots", "page_indptr", "page_ids", "sample_page_indptr")
# The dim of the slots of states, and the input (B, 2) with the slots from which a batch's sequences are read and into
# which they are written; see `ops/states.py`.
STATES = "Z"
STATE_SLOTS = "state_slots"
# The dims of a model with heads that draft tokens: the pages of the heads' keys and values; the pages of its last
# layer's rows, which are those of the first group if the heads are used, else none; and how many new rows are kept
# there. The input (S,) names the kept row of each token of the heads; see `ops/drafts.py`.
DRAFT_PAGES = "PD"
KEPT_PAGES = "PH"
KEPT = "H"
KEPT_ROWS = "kept_rows"
# Their states: the kept rows, those of the heads themselves, and the tokens that the heads sampled last.
KEPT_STATE = "kept"
DRAFT_KEPT = "draft.kept"
DRAFT_SAMPLED = "draft.sampled"
# The dim of the pages of sources: the keys and values that a plan "audio" computes once for a window of sound, and that
# the layers of "generate" attend to. The prefix of their inputs: the slot of each row of a source, and for the tokens
# that attend to it, the position of its last row and its pages.
SOURCE_PAGES = "PS"
SOURCE = "source_"
SOURCE_INPUTS = ("positions", "slots", "page_indptr", "page_ids")
