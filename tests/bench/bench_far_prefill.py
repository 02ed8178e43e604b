"""Far prefill: what 4 bits cost, what a device's checks find, and from which length on a prompt is sooner there from a
server. Prints tables and writes ``results/far-prefill.json``.

    make bench-far-prefill

1. The demo model on numpy: its next tokens after keys and values that another runner has computed and sent, against
   those after its own; with the dtype of that runner, and with weights that differ. The difference of pages is what
   `web/src/prefill/compare.ts` compares, in steps of 4 bits.
2. Recurrent states of a model with random weights that travel as float32, float16, 8-bit and 4-bit rows, beside what
   pages at 4 bits alone change: the distributions of the next 64 tokens, which are given.
3. The break-even: `decidePrefill` of dist/prefill.js with the sizes of published models, and assumed speeds.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from bench_compile import machine
from bench_prefixes import HYBRID
from bench_wire import held_out_prompts
from checkpoints import Shapes, published, write_checkpoint
from rich.console import Console
from rich.table import Table

from nearfar.compiler.bundle.folder import Bundle, open_bundle
from nearfar.compiler.demo import CHECKPOINT
from nearfar.compiler.formats.huggingface import read_spec
from nearfar.compiler.ir.kv_format import KV_FORMATS
from nearfar.compiler.ir.ops.kv_pages import dequantize_pages, dequantize_rows, page_rows, quantize_rows, rotated
from nearfar.compiler.ir.spec import ModelSpec
from nearfar.compiler.pipeline.compile import CompileOptions, compile_model
from nearfar.compiler.quant.base import Array, FloatArray
from nearfar.compiler.runtime.batch import Chunk, make_batch
from nearfar.compiler.runtime.reference import ReferenceRunner
from nearfar.compiler.runtime.runner import Limits
from nearfar.server_fallback.far_prefill.layout import WIRE, KvLayout, State, numbers_of, to_wire

RESULTS = Path(__file__).parent / "results" / "far-prefill.json"
WEB = Path(__file__).parents[2] / "web"
PAGE, ANSWER = 16, 24
MODELS = ("gemma-3-270m-it", "gemma-3-1b-it", "qwen3.5-0.8b", "lfm2-350m", "qwen3-0.6b", "llama-3.2-1b-instruct")
# Tokens a second that a device reads, and the megabits a second of its link.
DEVICES, LINKS = (15, 60, 250), (10, 50)
SERVER_TOKENS_PER_SECOND, ROUND_TRIP_SECONDS, LONG = 3000, 0.05, 4000
STEP = 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=int, default=6, help="prompts of each task; default: %(default)s")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="far-prefill-") as name:
        folder = Path(name)
        found: dict[str, Any] = {
            "machine": machine(),
            "pages": list(pages(folder, options.examples)),
            "states": list(states(folder)),
            "break_even": break_even(folder),
        }
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")
    console = Console(width=150)
    for title in ("pages", "states", "break_even"):
        console.print(table(title, found[title]))


# --- what travels ---


@dataclass(slots=True)
class Held:
    """A runner with room for one sequence. ``layout``: that of its pages."""

    runner: ReferenceRunner
    layout: KvLayout
    activation: str

    @staticmethod
    def open(bundle: Bundle, activation: str, noise: float = 0.0) -> Held:
        """``noise``: the standard deviation of what is added to weights, as a share of theirs."""
        pages = bundle.manifest.pages_for(bundle.manifest.context)
        runner = ReferenceRunner(
            bundle, limits=Limits(tokens=512, sequences=1, rows=FOLLOWING, pages=pages, states=2), activation=activation
        )
        if noise > 0:
            of_weight, rng = runner._weight, np.random.default_rng(3)
            changed = dict[str, FloatArray]()

            def weight(name: str) -> FloatArray:
                if name not in changed:
                    own = of_weight(name)
                    changed[name] = (own + noise * own.std() * rng.standard_normal(own.shape)).astype(own.dtype)
                return changed[name]

            runner._weight = weight  # type: ignore[method-assign]
        return Held(runner, KvLayout.of(bundle.manifest), activation)

    def compute(self, ids: Sequence[int], start: int) -> Array:
        """The logits after ``ids``, of which the first ``start`` are held."""
        pages = range(-(-len(ids) // PAGE))
        chunk = Chunk(
            ids[start:], start, pages, sample=[len(ids) - start - 1], state=(0, 0) if self.layout.states else None
        )
        logits: Array = self.runner.forward(make_batch([chunk], PAGE)).logits[0]
        return logits.astype(np.float64)

    def following(self, ids: Sequence[int], start: int) -> Array:
        """The logits after each of ``ids`` from ``start`` on."""
        pages, rows = range(-(-len(ids) // PAGE)), range(len(ids) - start)
        chunk = Chunk(ids[start:], start, pages, sample=list(rows), state=(0, 0) if self.layout.states else None)
        logits: Array = self.runner.forward(make_batch([chunk], PAGE)).logits
        return logits.astype(np.float64)

    def read(self, count: int) -> tuple[list[Array], bytes]:
        """Of each layer the first pages (n, 2, K, page, D), and the states."""
        units = [list(range(count)), *([[0]] if self.layout.states else [])]
        (data,), content = self.layout.split(self.runner.read_pages(units).result(), self.activation, [0], count * PAGE)
        flat = np.frombuffer(data, np.uint8).reshape(count, -1)
        found, start = list[Array](), 0
        for layer in self.layout.groups[0].layers:
            size = self.layout._layer_bytes(layer, self.activation)
            numbers = numbers_of(np.ascontiguousarray(flat[:, start : start + size]), self.activation)
            found.append(numbers.reshape(count, 2, layer.heads, PAGE, layer.head_dim).astype(np.float32))
            start += size
        return found, content

    def write(self, layers: Sequence[Array], content: bytes) -> None:
        dtype = {"float32": np.float32, "float16": np.float16}[self.activation]
        with np.errstate(over="ignore"):
            data = np.concatenate([layer.astype(dtype).reshape(len(layer), -1) for layer in layers], axis=1).tobytes()
        units = [list(range(len(layers[0]))), *([[0]] if self.layout.states else [])]
        self.runner.write_pages(units, data + content)


def decoded(pages: Array) -> Array:
    """Pages after they have travelled."""
    n, _, heads, _, _ = pages.shape
    back = dequantize_pages(to_wire(pages).reshape(n, 2, heads, PAGE, -1), WIRE)
    back[:, 0] = rotated(back[:, 0])
    return back


def difference(own: Sequence[Array], theirs: Sequence[Array]) -> float:
    """As `compare.ts`: of one page of all layers."""
    return max(float(mean_steps(one, other)) for one, other in zip(own, theirs, strict=True))


def mean_steps(own: Array, theirs: Array) -> float:
    both = []
    for page in (own, theirs):
        words = to_wire(page[None]).reshape(1, 2, page.shape[1], PAGE, -1)
        codes, scales = page_rows(words)
        both.append(
            (dequantize_rows(np.concatenate([codes, scales[..., None]], axis=-1), WIRE), scales.view(np.float32))
        )
    (a, a_scales), (b, b_scales) = both
    steps = np.maximum(np.abs(a_scales), np.abs(b_scales))[..., None]
    return float(np.mean(np.abs(a - b) / np.where(steps == 0, 1, steps)))


def divergence(own: Array, other: Array) -> float:
    """Kullback and Leibler's, in nats."""
    p, q = (logits - logits.max() - np.log(np.exp(logits - logits.max()).sum()) for logits in (own, other))
    return float((np.exp(p) * (p - q)).sum())


def answer(held: Held, ids: list[int], logits: Array) -> list[int]:
    """The greedy answer after ``ids``, which are held."""
    tokens = list(ids)
    for _ in range(ANSWER):
        tokens.append(int(logits.argmax()))
        logits = held.compute(tokens, len(tokens) - 1)
    return tokens[len(ids) :]


# --- 1. pages ---


def pages(folder: Path, examples: int) -> Iterator[dict[str, Any]]:
    options = CompileOptions(quantization="f16", context=512, activations=("float32", "float16"), self_test=False)
    compile_model(str(CHECKPOINT), folder / "demo", options)
    bundle = open_bundle(folder / "demo")
    ids = [token for prompt in held_out_prompts(bundle, "near", examples) for token in prompt]
    prompts = [ids[start : start + 200] for start in range(0, len(ids) - 200, 200)]
    near = Held.open(bundle, "float32")
    for name, activation, noise in (
        ("the same", "float32", 0.0), ("the same, float16", "float16", 0.0), ("weights + 1 %", "float32", 0.01),
        ("weights + 3 %", "float32", 0.03), ("weights + 10 %", "float32", 0.1),
    ):  # fmt: skip
        far = Held.open(bundle, activation, noise)
        yield {"far computes with": name, "prompts": len(prompts), **over_prompts(near, far, prompts)}


def over_prompts(near: Held, far: Held, prompts: Sequence[list[int]]) -> dict[str, Any]:
    first, last, same, divergences, agreed, equal = [], [], 0, [], 0, 0
    for ids in prompts:
        count = (len(ids) - 1) // PAGE
        own = near.compute(ids, 0)
        held, _ = near.read(count)
        expected = answer(near, ids, own)
        far.compute(ids[: count * PAGE], 0)
        sent, content = far.read(count)
        first.append(difference([layer[0] for layer in held], [layer[0] for layer in sent]))
        travelled = [decoded(layer) for layer in sent]
        # Near keeps its own first page, and computes from the last one on.
        near.write(
            [np.concatenate([one[:1], other[1 : count - 1]]) for one, other in zip(held, travelled, strict=True)],
            content,
        )
        logits = near.compute(ids, (count - 1) * PAGE)
        computed, _ = near.read(count)
        last.append(difference([layer[-1] for layer in computed], [layer[-1] for layer in sent]))
        divergences.append(divergence(own, logits))
        same += int(own.argmax() == logits.argmax())
        found = answer(near, ids, logits)
        equal += found == expected
        agreed += next((at for at, (a, b) in enumerate(zip(expected, found, strict=True)) if a != b), ANSWER)
    return {
        "first page differs": round(max(first), 4), "last page differs": round(max(last), 3),
        "same next token": round(same / len(prompts), 4), "KL": float(f"{np.mean(divergences):.3g}"),
        f"equal answers of {ANSWER} tokens": round(equal / len(prompts), 3),
        "equal tokens before the first other one": round(agreed / len(prompts), 1),
    }  # fmt: skip


# --- 2. states ---

# The matrices of a head as large as those of Qwen3.5.
WIDE_HEADS = Shapes("hybrid-wide-heads", HYBRID.config | {"linear_key_head_dim": 128, "linear_value_head_dim": 128})
FOLLOWING = 64
FORMS = ("float32", "float16", "8-bit rows", "4-bit rows", "4-bit rows, and pages", "pages alone")


def states(folder: Path) -> Iterator[dict[str, Any]]:
    write_checkpoint(WIDE_HEADS, folder / "hybrid", lambda columns: columns**-0.5)
    options = CompileOptions(quantization="f32", context=512, activations=("float32",), self_test=False)
    compile_model(str(folder / "hybrid"), folder / "hybrid-bundle", options)
    held = Held.open(open_bundle(folder / "hybrid-bundle"), "float32")
    rng, end = np.random.default_rng(4), 192
    runs = []
    for _ in range(8):
        ids = rng.integers(0, 1000, end + FOLLOWING).tolist()
        held.compute(ids[:end], 0)
        layers, content = held.read(end // PAGE)
        own = held.following(ids, end)
        runs.append((ids, layers, content, own, held.read(end // PAGE + 1)[0]))
    for form in FORMS:
        divergences, same, errors, steps, size = [], [], [], [], 0
        for ids, layers, content, own, computed in runs:
            travelled = list(travel(held.layout, content, form))
            size = sum(each[1] for each in travelled)
            changed = b"".join(each[0] for each in travelled)
            given, back = np.frombuffer(content, "<f4"), np.frombuffer(changed, "<f4")
            errors.append(float(np.sqrt(np.mean((given - back) ** 2) / np.mean(given**2))))
            held.write([decoded(layer) for layer in layers] if "pages" in form else layers, changed)
            other = held.following(ids, end)
            divergences.append([divergence(*pair) for pair in zip(own, other, strict=True)])
            same.append(np.mean(own.argmax(axis=-1) == other.argmax(axis=-1)))
            again, _ = held.read(end // PAGE + 1)
            steps.append(difference([each[-1] for each in computed], [each[-1] for each in again]))
        found = np.array(divergences)
        yield {
            "states travel as": form, "bytes": size, "relative error": float(f"{np.mean(errors):.2g}"),
            "KL": float(f"{found.mean():.2g}"), "KL of the first 8": float(f"{found[:, :8].mean():.2g}"),
            "largest KL": float(f"{found.max():.2g}"), "same likeliest token": round(float(np.mean(same)), 4),
            "next page differs": round(max(steps), 3),
        }  # fmt: skip


def travel(layout: KvLayout, content: bytes, form: str) -> Iterator[tuple[bytes, int]]:
    """Each state after it has travelled, and its bytes on the way."""
    start = 0
    for state in layout.states:
        numbers = np.frombuffer(content[4 * start : 4 * (start + state.size)], "<f4").reshape(state.shape)
        start += state.size
        if form in ("float32", "pages alone"):
            yield numbers.tobytes(), numbers.nbytes
        elif form == "float16" or not state.is_matrix:
            yield numbers.astype("<f2").astype("<f4").tobytes(), 2 * state.size
        else:
            rows = KV_FORMATS["q8" if form.startswith("8") else "q4"]
            words = quantize_rows(rotated(numbers), rows)
            yield rotated(dequantize_rows(words, rows)).astype("<f4").tobytes(), words.nbytes


# --- 3. the break-even ---


def break_even(folder: Path) -> list[dict[str, Any]]:
    cases, rows = list[dict[str, Any]](), list[dict[str, Any]]()
    lengths, specs = range(STEP, LONG + 1, STEP), dict[str, ModelSpec]()
    for name in MODELS:
        config = folder / f"{name}.json"
        config.write_text(json.dumps(published(name).config))
        spec = specs[name] = read_spec(config)
        cases += [facts(spec, length, device, link) for device in DEVICES for link in LINKS for length in lengths]
    decisions = iter(decided(cases))
    counted = iter(cases)
    for name, spec in specs.items():
        row: dict[str, Any] = {"model": name, "MB of states": round(state_bytes(spec) / 1e6, 1)}
        for device in DEVICES:
            for link in LINKS:
                found = [(next(counted), next(decisions)) for _ in lengths]
                row["MB"] = round(found[-1][0]["bytes"] / 1e6, 1)
                from_far = [fact["near_tokens"] for fact, decision in found if decision["side"] == "far"]
                last = found[-1][1]
                times = f"{last['near_seconds']:.0f} s, {last['far_seconds']:.1f} s"
                row[f"{device} tok/s, {link} Mbit/s"] = f"{min(from_far)} ({times})" if from_far else f"never ({times})"
        rows.append(row)
    return rows


def facts(spec: ModelSpec, tokens: int, device: int, link: int) -> dict[str, Any]:
    return {
        "near_tokens": tokens, "checked_tokens": 4 * PAGE, "far_tokens": tokens, "bytes": sent_bytes(spec, tokens),
        "near_tokens_per_second": device, "far_tokens_per_second": SERVER_TOKENS_PER_SECOND,
        "bytes_per_second": link * 1e6 / 8, "queue_seconds": 0, "round_trip_seconds": ROUND_TRIP_SECONDS, "usd": 0,
    }  # fmt: skip


def sent_bytes(spec: ModelSpec, tokens: int) -> int:
    """Of layers with a window, only the pages that the last page reads, and the first one."""
    total = state_bytes(spec)
    for layer in range(spec.num_layers):
        if "attention" not in spec.mixer(layer) or spec.kv_layer(layer) != layer:
            continue
        heads, size = spec.heads_of(layer)
        window, count = spec.window(layer), tokens // PAGE
        live = count if window is None else min(count, -(-window // PAGE) + 2)
        total += live * 2 * heads * PAGE * 4 * WIRE.words(size)
    return total


def state_bytes(spec: ModelSpec) -> int:
    """As `pack_states` makes them."""
    if spec.states is None:
        return 0
    heads, keys, values = spec.states.heads, spec.states.key_dim, spec.states.value_dim
    matrix, total = State("matrix", (heads, keys, values)), 0
    for layer in range(spec.num_layers):
        elements = spec.state_elements_of(layer)
        if matrix.size and elements:
            assert matrix.is_matrix, "the models of the table have such heads"
            total += 4 * heads * keys * WIRE.words(values)
            elements -= matrix.size
        total += 2 * elements
    return total


def decided(cases: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    script = (
        f'import {{ decidePrefill }} from "{(WEB / "dist/prefill.js").as_uri()}";'
        'import { readFileSync } from "node:fs";'
        "const cases = JSON.parse(readFileSync(0, 'utf8'));"
        "const rules = { min_tokens: 1, usd_per_second: 0 };"
        "console.log(JSON.stringify(cases.map((facts) => decidePrefill(facts, rules, null))));"
    )
    command = ("node", "--input-type=module", "-e", script)
    done = subprocess.run(command, input=json.dumps(cases), capture_output=True, text=True, check=True)
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def table(title: str, rows: Sequence[dict[str, Any]]) -> Table:
    shown = Table(title=title)
    for name in rows[0]:
        shown.add_column(name)
    for row in rows:
        shown.add_row(*map(str, row.values()))
    return shown


if __name__ == "__main__":
    main()
