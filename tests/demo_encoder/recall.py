"""The recall of the demo encoder: ``python -m demo_encoder.recall [--model MODEL] [--missed]``.

Searches this repository's documents for the held-out questions with the browser's index, in all its modes. A question
counts if the passage that answers it is among the first five.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from .questions import Question, passage_of, questions
from .repository_text import HELD_OUT_DOCUMENTS, REPOSITORY, documents

TOOL = REPOSITORY / "web" / "dist" / "tools" / "search_documents.js"
COUNT = 5
MODES = ("vectors", "words", "hybrid")


@dataclass(frozen=True, slots=True)
class Recall:
    """``found``: for each mode of search, the questions whose passage was found. ``outdated`` ones have no passage."""

    asked: Sequence[Question]
    outdated: Sequence[Question]
    found: dict[str, Sequence[Question]]

    def share(self, mode: str, *, seen: bool | None = None) -> float:
        """Percent of the questions about documents that training has seen, has not seen, or (None) all of them."""
        asked, found = (
            [one for one in some if seen is None or (one.document not in HELD_OUT_DOCUMENTS) == seen]
            for some in (self.asked, self.found[mode])
        )
        return 100 * len(found) / len(asked)


def measure(url: str, model: str) -> Recall:
    """``url``: a server that embeds. Needs Node and the built web package."""
    all_questions = questions("held-out")
    task = {"documents": documents(), "queries": [one.text for one in all_questions], "count": COUNT}
    printed = subprocess.run(
        ["node", TOOL, url, model], input=json.dumps(task), capture_output=True, text=True, check=True
    ).stdout
    result: dict[str, Any] = json.loads(printed)
    passages = [(document, text) for document, text in result["passages"]]
    wanted = [passage_of(one, passages) for one in all_questions]
    asked = [one for one, place in zip(all_questions, wanted, strict=True) if place is not None]
    found: dict[str, Sequence[Question]] = {
        mode: [
            one
            for one, place, hits in zip(all_questions, wanted, rows, strict=True)
            if place is not None and place in hits
        ]
        for mode, rows in result["found"].items()
    }
    return Recall(asked, [one for one in all_questions if one not in asked], found)


@contextmanager
def served(model: str, *options: str) -> Iterator[str]:
    """The address of `nearfar serve MODEL`, which runs inside the context."""
    command = [sys.executable, "-m", "nearfar.compiler.cli", "serve", model, "--port", "0", *options]
    unbuffered = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=unbuffered) as process:
        try:
            if process.stdout is None:
                raise AssertionError("the server's output is a pipe")
            for line in process.stdout:
                if "http://" in line:
                    yield "http://" + line.split("http://")[1].split()[0].removesuffix("/v1").split("/v1")[0]
                    return
            raise SystemExit("nearfar serve ended before it printed its address")
        finally:
            process.terminate()


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m demo_encoder.recall", description=__doc__)
    parser.add_argument("--model", default="demo-encoder", help="as for nearfar serve (default: %(default)s)")
    parser.add_argument("--missed", action="store_true", help="list the questions that the hybrid search misses")
    options = parser.parse_args(arguments)
    with served(options.model) as url:
        recall = measure(url, served_name(url))
    print("| recall@5, percent | vectors | words (BM25) | hybrid |\n|---|---|---|---|")
    for name, seen in (("all questions", None), ("documents of the training", True), ("held-out documents", False)):
        print(f"| {name} | " + " | ".join(f"{recall.share(mode, seen=seen):.1f}" for mode in recall.found) + " |")
    print(
        f"{len(recall.asked)} questions; {len(recall.outdated)} are outdated: {[one.text for one in recall.outdated]}"
    )
    if options.missed:
        print(*(one.text for one in recall.asked if one not in recall.found["hybrid"]), sep="\n")


def served_name(url: str) -> str:
    """The name of the only model of a server."""
    from urllib.request import urlopen

    with urlopen(f"{url}/v1/models") as response:
        name: str = json.load(response)["data"][0]["id"]
    return name


if __name__ == "__main__":
    main()
