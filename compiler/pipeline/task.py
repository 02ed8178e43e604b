"""What a model is compiled for: to generate text, for embeddings, to rerank, or to classify."""

from __future__ import annotations

from ..formats.checkpoint import Checkpoint
from ..formats.logit_score import as_reranker
from ..ir.tasks import Task, task_of
from ..runtime.errors import RequestError

DOES = {
    "generate": "generates text",
    "embed": "makes embeddings",
    "rerank": "scores pairs of a query and a passage",
    "classify": "scores the labels of a text or of its tokens",
    "decide": "answers typed questions",
    "transcribe": "transcribes sound",
}


def for_task(checkpoint: Checkpoint, task: Task | None) -> Checkpoint:
    """The checkpoint for a task; None: what its files say. A model that generates text can rerank, if it is a reranker
    that answers "yes" or "no".

    Raises RequestError for a task that the checkpoint is not for.
    """
    found = task_of(checkpoint.task)
    if task is None or task == found:
        return checkpoint
    if task == "rerank" and found == "generate":
        return as_reranker(checkpoint)
    hint = "; vectors of a decoder need the modules.json of sentence-transformers" if task == "embed" else ""
    raise RequestError(
        f"--task {task}: {checkpoint.path} {DOES[found]}{hint}; remove the option, or give another model"
    )
