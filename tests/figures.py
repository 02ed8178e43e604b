"""Writes the figures in READMEs that code can print: `make figures`, or ``python tests/figures.py [--check]``.

figures.toml lists the texts: each has a file and a ``{}`` for each of its values. The values are those of the built
packages and of graphs, and what tests and benchmarks recorded.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LIST = Path(__file__).with_suffix(".toml")
NUMBER = r"[-+]?\d+(?:,\d{3})*(?:\.\d+)?"


class FigureError(Exception):
    """A text of the list that a file lacks or has twice, or a value that does not exist."""


@dataclass(frozen=True, slots=True)
class Figure:
    file: str
    text: str
    """With a ``{}`` for each value. Its spaces match any white space, so that tables and paragraphs can be wrapped."""
    values: Sequence[str]
    """Each is a kind of value in KINDS and its argument. A kind may give several values with spaces between them."""

    @property
    def pattern(self) -> re.Pattern[str]:
        parts = [r"\s+".join(map(re.escape, part.split(" "))) for part in self.text.split("{}")]
        return re.compile(f"({NUMBER})".join(parts))

    def fill(self, content: str) -> str:
        """The file's content with the values as they are now. Raises FigureError."""
        found = list(self.pattern.finditer(content))
        if len(found) != 1:
            raise FigureError(f"{self.file} contains {len(found)} times instead of once: {self.text}")
        values = [each for value in self.values for each in value_of(value).split()]
        if len(values) != self.text.count("{}"):
            raise FigureError(f"{self.file}: {self.text}: has {self.text.count('{}')} places for {len(values)} values")
        for index, value in reversed(list(enumerate(values, 1))):
            start, end = found[0].span(index)
            content = content[:start] + value + content[end:]
        return content


def read_figures() -> Sequence[Figure]:
    return [Figure(**row) for row in tomllib.loads(LIST.read_text("utf-8"))["figure"]]


def value_of(value: str) -> str:
    kind, _, argument = value.partition(" ")
    if kind not in KINDS:
        raise FigureError(f"'{value}': the kinds of values are {', '.join(KINDS)}")
    return KINDS[kind](argument)


@cache
def gzipped_kb(file: str) -> str:
    """By Node.js, as web/size.mjs does, because zlibs differ by up to one percent."""
    code = "process.stdout.write(String(zlib.gzipSync(fs.readFileSync(process.argv[1]), { level: 9 }).length))"
    done = subprocess.run(["node", "-e", code, ROOT / file], check=True, capture_output=True, text=True)
    return f"{int(done.stdout) / 1e3:,.0f}"


def size_kb(file: str) -> str:
    return f"{(ROOT / file).stat().st_size / 1e3:,.0f}"


@cache
def recorded(file: str) -> Mapping[str, Any]:
    return dict(json.loads((ROOT / file).read_text("utf-8")))


def installed_mb(extra: str) -> str:
    """What `make install-size` measured."""
    return f"{recorded('tests/bench/results/install-size.json')[extra]:,}"


def soak(run_and_field: str) -> str:
    """What `soak.record` recorded of a run, in seconds or as a number."""
    run, field = run_and_field.split()
    value = recorded("tests/bench/results/soak.json")["runs"][run][field]
    return f"{value:,}" if isinstance(value, int) else f"{value:.2f}"


def router(argument: str) -> str:
    """What `make bench-router-public` measured: a part, a policy, and its figures. An interval has two values."""
    part, policy, *names = argument.split()
    row = recorded("tests/bench/results/router-public.json")["figures"][f"{part} {policy}"]
    return " ".join(
        router_value(name, value)
        for name in names
        for value in (row[name] if isinstance(row[name], list) else [row[name]])
    )


def router_value(name: str, value: float) -> str:
    if name.startswith("cpt"):
        return f"{100 * value:.1f}"
    if name == "seconds":
        return f"{value:.0f}"
    return f"{value:+.3f}" if name in ("ahead_of_length", "ahead_of_rule") else f"{value:.3f}"


def recall_percent(mode: str) -> str:
    """The row of all questions in the encoder's README, which a test recomputes."""
    text = (ROOT / "tests/demo_encoder/README.md").read_text("utf-8")
    names, row = re.search(r"\| recall@5, percent +\|(.*)\|\n", text), re.search(r"\| all questions +\|(.*)\|\n", text)
    if names is None or row is None:
        raise FigureError("tests/demo_encoder/README.md lacks the recall of all questions")
    columns = [name.split()[0] for name in names[1].split("|")]
    return str(int(float(row[1].split("|")[columns.index(mode)]) + 0.5))


def eyes(argument: str) -> str:
    """What the demo model that sees answered when it was trained: a task, and "percent" or "questions"."""
    task, key = argument.split()
    return f"{recorded('compiler/demo/nearfar-demo-eyes/accuracy.json')[task][key]:,}"


def ears(name: str) -> str:
    """What the demo model that hears wrote down when it was trained: a set of sounds, or "utterances"."""
    return f"{recorded('compiler/demo/nearfar-demo-ears/accuracy.json')[name]:,}"


def finder(argument: str) -> str:
    """What the demo finder found when it was trained: "accuracy" and a key, "form", its name and a column, "all" and a
    column, or "alarms" and a column.
    """
    of, _, key = argument.partition(" ")
    found = recorded("compiler/demo/nearfar-demo-finder/accuracy.json")
    if of == "accuracy":
        return f"{found['recall'].get(key, found.get(key))}"
    corpus = found["corpus"]
    if of == "alarms":
        return f"{corpus['alarms'][int(key)]}"
    form, _, column = key.rpartition(" ")
    rows = [corpus["forms"][form]] if of == "form" else list(corpus["forms"].values())
    return f"{sum(row[int(column)] for row in rows)}"


def encoder_loss(argument: str) -> str:
    """What `make bench-encoder-loss` measured: the name of a format, and the key of its figure."""
    name, _, key = argument.rpartition(" ")
    figure = json.loads((ROOT / "tests/bench/results/encoder-loss.json").read_text("utf-8"))["formats"][name][key]
    if key.startswith("top"):
        return f"{100 * figure:.0f}"
    return f"{figure:.4f}" if key.startswith("cosine") else f"{round(figure, 2):g}"


def web_experts(argument: str) -> str:
    """What `make bench-web-experts` measured with a number of experts on the device, by its column."""
    held, column = argument.split()
    run = next(
        each for each in recorded("tests/bench/results/web-experts.json")["results"] if each["held"] == int(held)
    )
    if column == "buffers":
        return f"{run['largestBufferBytes'] / 1e6:,.0f}"
    counts, tokens = run["decode"]["experts"], run["decode"]["tokens"]
    if column == "hits":
        return f"{100 * counts['hits'] / (counts['hits'] + counts['reads']):.0f}"
    return f"{counts['bytesRead'] / tokens / 1e6:.0f}"


def cpu_experts(argument: str) -> str:
    """What bench_cpu_experts.py measured: a way of holding weights, and the key of a time or a size."""
    way, _, key = argument.rpartition(" ")
    figure = recorded("tests/bench/results/cpu-experts.json")["results"][way][key]
    return f"{figure / 1e6:,.0f}" if isinstance(figure, int) else f"{figure:g}"


def simulator(argument: str) -> str:
    """What a benchmark of the simulator recorded: the file (simulator-papers, say), the keys with "/" between them, the
    factor and the format.
    """
    rest, factor, form = argument.rsplit(" ", 2)
    file, _, keys = rest.partition(" ")
    value: Any = recorded(f"tests/bench/results/{file}.json")
    for key in keys.split("/"):
        value = value[int(key)] if isinstance(value, list) else value[key]
    return f"{value * float(factor):{form}}"


def simulated(workers: str) -> str:
    """Of real workers and their simulation: both and the difference in percent, for each figure of the table."""
    found = recorded("tests/bench/results/simulator.json")["results"][workers]
    cells = []
    for name in ("ttft_mean", "ttft_short_p50", "ttft_long_p50", "ttft_p90", "tpot_p50", "tokens_per_second"):
        real, ours = found["real"][name], found["simulated"][name]
        scale = 1 if name == "tokens_per_second" else 1000
        cells.append(f"{real * scale:.0f} {ours * scale:.0f} {100 * (ours / real - 1):+.0f}")
    return " ".join(cells)


def stages(workers: str) -> str:
    """Milliseconds of short prompts outside the devices, before and in their steps, real and simulated."""
    found = recorded("tests/bench/results/simulator.json")["results"][workers]["stages"]
    kinds = [("reaching", "returning"), ("waiting",), ("computing",)]
    return " ".join(
        f"{1000 * sum(found[side][name] for name in names):.0f}" for names in kinds for side in ("real", "simulated")
    )


@cache
def nodes(model: str) -> tuple[int, int]:
    """The ops of a published model's graph, and the steps that the passes leave, for WebGPU in `q4f16`."""
    from nearfar.compiler import quant
    from nearfar.compiler.bundle.manifest import GENERATE
    from nearfar.compiler.formats.huggingface import read_spec
    from nearfar.compiler.measure.model_table import QUANTIZATION
    from nearfar.compiler.measure.shapes import shape_checkpoint
    from nearfar.compiler.passes import run_passes
    from nearfar.compiler.pipeline.graphs import graphs_of
    from nearfar.compiler.pipeline.target import load_target

    spec = read_spec(ROOT / "compiler/arch/published" / f"{model}.json")
    target = load_target("webgpu")
    graph = graphs_of(shape_checkpoint(Path(model), spec), spec.max_position_embeddings)[GENERATE]
    quantization = quant.by_name(QUANTIZATION)
    fused = run_passes(graph, quantization, target.MAX_BINDING_BYTES, host_tables=target.HOST_TABLES)
    return len(graph.nodes), len(fused.nodes)


def masks(name: str) -> str:
    from mask_corpus import figure

    return figure(name)


KINDS: Mapping[str, Callable[[str], str]] = {
    "masks": masks,
    "finder": finder,
    "gzipped_kb": gzipped_kb,
    "size_kb": size_kb,
    "installed_mb": installed_mb,
    "router": router,
    "recall_percent": recall_percent,
    "eyes": eyes,
    "ears": ears,
    "soak": soak,
    "encoder_loss": encoder_loss,
    "web_experts": web_experts,
    "cpu_experts": cpu_experts,
    "simulator": simulator,
    "simulated": simulated,
    "stages": stages,
    "ops": lambda model: str(nodes(model)[0]),
    "steps": lambda model: str(nodes(model)[1]),
}


def outdated(root: Path = ROOT, *, write: bool = False) -> Sequence[str]:
    """The files whose figures differ from the values. ``write``: change them. Raises FigureError."""
    contents: dict[str, str] = {}
    for figure in read_figures():
        content = contents.get(figure.file) or (root / figure.file).read_text("utf-8")
        contents[figure.file] = figure.fill(content)
    changed = [file for file, content in contents.items() if content != (root / file).read_text("utf-8")]
    if write:
        for file in changed:
            (root / file).write_text(contents[file], "utf-8")
    return changed


if __name__ == "__main__":
    check = "--check" in sys.argv[1:]
    files = outdated(write=not check)
    if files:
        print(f"{'outdated' if check else 'written'}: {', '.join(files)}")
    sys.exit(1 if check and files else 0)
