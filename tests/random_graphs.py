"""Random graphs from the op set: blocks that resemble those of decoders, with attributes, and with parts that differ or
are shared.

They are what passes must leave alone or rewrite rightly: q and k normed with different eps or only one of them, rotated
by different tables or not at all, attention with a window, scale or soft-cap, pages that two attentions read, gates
whose halves read different inputs, additions in either order, weights used twice, values that are outputs as well.
"""

from __future__ import annotations

from random import Random

from hypothesis import strategies as st
from run_plan import CONTEXT, PAGE_SIZE

from nearfar.compiler.arch.decoder import BATCH_INPUTS
from nearfar.compiler.ir.graph import Constant, Graph, Parameter, Source, Value
from nearfar.compiler.ir.ops.op import ACTIVATIONS

VOCAB_SIZE = 23
EPS = (1e-5, 1e-2)
PAGES = ("positions", "seq_starts", "page_indptr", "page_ids")


def graphs() -> st.SearchStrategy[Graph]:
    return st.integers(0, 1 << 30).map(lambda seed: RandomGraph(Random(seed)).build())


class RandomGraph:
    """Builds one graph. Inputs of nodes are drawn from the values of S rows that it already has."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.graph = Graph()
        for name, (shape, dtype) in BATCH_INPUTS.items():
            self.graph.inputs[name] = Value(name, shape, dtype)
        self.graph.states["sampled"] = Value("sampled", ("N",), "int32")
        self.head_dim = random.choice([4, 6, 8])
        self.kv_heads = random.choice([1, 2])
        self.heads = self.kv_heads * random.choice([1, 2])
        self.hidden = random.choice([self.head_dim, 12])
        for name, half in (("table", self.head_dim // 2), ("other_table", self.head_dim // 2), ("narrow_table", 1)):
            frequencies = [random.choice([1.0, 0.5]) / (1 + i) for i in range(half)]
            attrs = {"inverse_frequencies": frequencies, "scale": random.choice([1.0, 1.25])}
            self.graph.constants[name] = Constant(name, "rope", (CONTEXT, half, 2), attrs)
        self.count = 0

    def build(self) -> Graph:
        table = self.matrix("embed", VOCAB_SIZE, self.hidden)
        inputs = {"table": table, "token_ids": "token_ids", "sampled": "sampled"}
        x = self.graph.add("embed", inputs, name="embedded", scale=self.random.choice([1.0, 2.0]))
        for layer in range(self.random.randint(1, 2)):
            for block in self.random.sample([self.attention, self.gated, self.plain], k=self.random.randint(1, 3)):
                x = block(x, layer)
        self.graph.outputs = {"y": x}
        for name in self.random.sample(sorted(self.graph.values), k=self.random.choice([0, 0, 1])):
            self.graph.outputs["also"] = name
        return self.graph

    # --- blocks: x (S, E) float32 -> (S, E) float32 ---

    def attention(self, x: str, layer: int) -> str:
        random, graph, module = self.random, self.graph, f"model.layers.{layer}.self_attn"
        kv = self.name("kv")
        graph.states[kv] = Value(kv, ("P", 2, self.kv_heads, PAGE_SIZE, self.head_dim), "activation")
        normed = self.maybe_norm(x, f"model.layers.{layer}.input_layernorm")
        other = self.maybe_norm(x, f"model.layers.{layer}.other_layernorm") if random.random() < 0.15 else normed
        biased = random.random() < 0.3
        widths = {
            "q": self.heads * self.head_dim,
            "k": self.kv_heads * self.head_dim,
            "v": self.kv_heads * self.head_dim,
        }
        order = list(widths) if random.random() < 0.8 else random.sample(list(widths), k=3)
        parts = {
            role: self.linear(
                f"{module}.{role}_proj", other if role == "v" else normed, widths[role], "activation", bias=biased
            )
            for role in order
        }
        with_norm, same = random.choice([set("qk"), set("qk"), set("q"), set()]), random.random() < 0.7
        eps, wide = random.choice(EPS), random.random() < 0.3
        rotated = random.choice([set("qk"), set("qk"), set("qk"), set("k"), set()])
        table = random.choice(["table", "narrow_table"])
        for step in random.choice(["norm rope", "norm rope", "rope norm"]).split():
            for role in "qk":
                if step == "norm" and role in with_norm:
                    parts[role] = self.norm(
                        f"{module}.{role}_norm",
                        parts[role],
                        widths[role] if wide and (role == "q" or random.random() < 0.8) else self.head_dim,
                        eps if same or role == "q" else EPS[0],
                        "activation",
                    )
                if step == "rope" and role in rotated:
                    own = table if role == "q" or random.random() < 0.8 else "other_table"
                    where = {"x": parts[role], "positions": "positions", "table": own}
                    parts[role] = graph.add(
                        "rope", where, name=self.name("rotated"), head_dim=self.head_dim, dtype="activation"
                    )
        graph.add("append_kv", {"k": parts["k"], "v": parts["v"], "kv": kv, "slots": "slots"})
        y = self.attend(parts["q"], kv)
        if random.random() < 0.15:
            # Pages that a later layer shares.
            second = self.linear(f"{module}.second_proj", normed, widths["q"], "activation", bias=False)
            z = self.attend(second, kv)
            first = self.linear(f"{module}.first_o_proj", z, self.hidden, "float32", bias=False)
            x = self.sum(first, x)
        return self.residual(self.linear(f"{module}.o_proj", y, self.hidden, "float32", bias=biased), x, layer)

    def attend(self, q: str, kv: str) -> str:
        random = self.random
        inputs = {"q": q, "kv": kv, **{name: name for name in PAGES}}
        if random.random() < 0.15:
            name = self.name("sinks")
            self.graph.parameters[name] = Parameter(name, (Source(name, 0, self.heads),), None)
            inputs["sinks"] = name
        return self.graph.add(
            "attention",
            inputs,
            name=self.name("attended"),
            scale=random.choice([None, None, 0.3]),
            window=random.choice([None, None, 1, 3]),
            softcap=random.choice([None, None, 2.0]),
            causal=random.choice([True, True, True, False]),
        )

    def gated(self, x: str, layer: int) -> str:
        random, module, width = self.random, f"model.layers.{layer}.mlp", 7
        normed = self.maybe_norm(x, f"model.layers.{layer}.post_attention_layernorm")
        other = self.maybe_norm(x, f"model.layers.{layer}.up_layernorm") if random.random() < 0.2 else normed
        biased = random.random() < 0.3
        gate = self.linear(f"{module}.gate_proj", normed, width, "float32", bias=biased)
        up = self.linear(f"{module}.up_proj", other, width, "float32", bias=biased and random.random() < 0.8)
        if random.random() < 0.15:
            gate, up = random.choice([(up, gate), (gate, gate)])
        y = self.graph.add(
            "gate", {"gate": gate, "up": up}, name=self.name("gated"), activation=random.choice(ACTIVATIONS)
        )
        return self.residual(self.linear(f"{module}.down_proj", y, self.hidden, "float32", bias=biased), x, layer)

    def plain(self, x: str, layer: int) -> str:
        """A projection that may read an activation, or share its weight with another."""
        random, module = self.random, f"model.layers.{layer}.plain"
        y = self.linear(
            f"{module}.a_proj",
            self.maybe_norm(x, f"{module}.norm"),
            self.hidden,
            random.choice(["float32", "activation"]),
            bias=False,
        )
        z = self.linear(f"{module}.{random.choice('ab')}_proj", y, self.hidden, "float32", bias=False)
        return self.residual(z, x, layer)

    def residual(self, y: str, x: str, layer: int) -> str:
        if self.random.random() < 0.3:
            y = self.norm(f"model.layers.{layer}.behind", y, self.hidden, self.random.choice(EPS), "float32")
        return self.sum(*self.random.sample([y, x], k=2)) if self.random.random() < 0.9 else self.sum(y, y)

    # --- ops ---

    def maybe_norm(self, x: str, module: str) -> str:
        dtype = self.random.choice(["float32", "float32", "float32", "activation"])
        return self.norm(module, x, self.hidden, self.random.choice(EPS), dtype) if self.random.random() < 0.8 else x

    def norm(self, module: str, x: str, width: int, eps: float, dtype: str) -> str:
        name = self.name(f"{module}.weight")
        source = Source(name, 0, width, *self.random.choice([(0.0, 1.0), (1.0, 1.0), (0.0, 0.5)]))
        self.graph.parameters[name] = Parameter(name, (source,), None)
        inputs, centered = {"x": x, "weight": name}, self.random.random() < 0.2
        if centered and self.random.random() < 0.5:
            inputs["bias"] = self.vector(f"{module}.bias", width)
        return self.graph.add("rms_norm", inputs, name=self.name("normed"), eps=eps, dtype=dtype, centered=centered)

    def linear(self, module: str, x: str, rows: int, dtype: str, *, bias: bool) -> str:
        columns = self.graph.shape_of(x)[1]
        assert isinstance(columns, int)
        inputs = {"x": x, "weight": self.matrix(module, rows, columns)}
        if bias:
            inputs["bias"] = self.vector(f"{module}.bias", rows)
        return self.graph.add("linear", inputs, name=self.name(f"{module}.out"), dtype=dtype)

    def vector(self, base: str, size: int) -> str:
        name = self.name(base)
        self.graph.parameters[name] = Parameter(name, (Source(name, 0, size),), None)
        return name

    def sum(self, a: str, b: str) -> str:
        return self.graph.add("add", {"a": a, "b": b}, name=self.name("sum"))

    def matrix(self, module: str, rows: int, columns: int) -> str:
        """The weight of a module; a module of the same name and shape shares it."""
        name = f"{module}.weight"
        known = self.graph.parameters.get(name)
        if known is None or known.shape != (rows, columns):
            name = self.name(name) if known is not None else name
            self.graph.parameters[name] = Parameter(name, (Source(name, 0, rows),), columns)
        return name

    def name(self, base: str) -> str:
        """A name that is not taken."""
        self.count += 1
        return f"{base}.{self.count}"
