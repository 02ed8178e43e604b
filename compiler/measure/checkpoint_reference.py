"""A checkpoint as the reference: compute its logits in float32, without a bundle, with the numpy functions of
`ir/ops/`.

Windows of tokens give rows of the final norm, and from these the logits of any rows. Weights are read from the
checkpoint's files a block of rows at a time, for many windows at once; only the head's matrix stays in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property

import numpy as np

from ..arch import by_model_type
from ..formats import Checkpoint
from ..formats.towers import decoder_alone
from ..ir.graph import Parameter
from ..ir.ops import Array
from ..ir.pages import PAGES
from ..ir.tasks import task_of
from ..pipeline.stored_forms import round_activations
from ..pipeline.task import DOES
from ..pipeline.weights import check_tensors, read_rows
from ..quant.base import FloatArray
from ..runtime.errors import RequestError
from ..runtime.graph_walk import Execution, walk
from ..runtime.windows import Head, window_inputs, without_head

# Tokens per walk over the weights; the activations of all of them are in memory together.
TOKENS_AT_ONCE = 2048


class CheckpointReference:
    """For windows of up to ``window`` tokens. Raises CheckpointError for tensors that do not fit, RequestError for a
    model that generates no text.
    """

    def __init__(self, checkpoint: Checkpoint, window: int) -> None:
        if checkpoint.task is not None:
            does = DOES[task_of(checkpoint.task)]
            raise RequestError(
                f"{checkpoint.path}: {does}, and has no next tokens to compare; give a model that generates text"
            )
        checkpoint = decoder_alone(checkpoint)
        self.checkpoint, self._window = checkpoint, window
        graph = by_model_type(checkpoint.spec.model_type).forward(checkpoint.spec, window, window)
        check_tensors(checkpoint, graph.parameters)
        self._graph = round_activations(graph, checkpoint)
        self._headless = without_head(self._graph)

    def hidden(
        self, windows: Sequence[Sequence[int]], progress: Callable[[int], None] = lambda _: None
    ) -> Iterator[FloatArray]:
        """The input of the head, (n, E) for each window of n tokens. ``progress`` receives the number of finished
        windows.
        """
        at_once = max(1, TOKENS_AT_ONCE // self._window)
        for start in range(0, len(windows), at_once):
            group = windows[start : start + at_once]
            rows = self._walk(group)
            yield from np.split(rows, np.cumsum([len(window) for window in group])[:-1])
            progress(start + len(group))

    def logits(self, hidden: FloatArray) -> FloatArray:
        """(n, E) -> (n, V)."""
        return self._headless.logits(hidden, self._head)

    @cached_property
    def _head(self) -> Head:
        return self._headless.head_of(lambda parameter: self._read(parameter, 0, parameter.rows))

    def _walk(self, windows: Sequence[Sequence[int]]) -> FloatArray:
        """The final norm's rows of all windows, one after the other."""
        inputs, dims = window_inputs(windows, self._window)
        # A layer reads what it has just written, so layers whose pages have the same shape can share them, unless later
        # layers read them too.
        shared: dict[object, Array] = {}
        pages = {}
        for name, state in self._graph.states.items():
            if state.shape[0] == PAGES:
                shape = (len(windows), *state.shape[1:])
                is_read_again = sum(node.op == "attention" for node in self._graph.users(name)) > 1
                key = name if is_read_again else shape
                pages[name] = shared.setdefault(key, np.zeros(shape, np.float32))  # type: ignore[arg-type]
        execution = Execution(self._graph, {**inputs, **pages}, dims)
        (rows,) = walk(self._graph, self._headless.rows, [execution], self._read)
        return rows

    def _read(self, parameter: Parameter, start: int, stop: int) -> FloatArray:
        return read_rows(self.checkpoint, parameter, start, stop)
