"""Layers that mix tokens by a state of each sequence, instead of attention or beside it; `ModelSpec.mixers` says which.

The modules of a mixer have the names of transformers. `ir/ops/states.py` defines the states.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..ir.graph import Parameter, Source, Value
from ..ir.pages import STATE_SLOTS, STATES
from ..ir.spec import StateSpec
from .decoder import BATCH_INPUTS, Layer, vector


class HybridLayer(Layer):
    """``mamba``: the module of Mamba-2 in a layer."""

    mamba = "mamba"

    def _mixed(self, x: str, page_size: int) -> str:
        mixer = self._spec.mixer(self._layer)
        if mixer == "short_conv":
            return self._short_conv(x)
        if mixer == "gated_delta":
            return self._gated_delta(x)
        if mixer == "mamba2":
            return self._mamba2(x)
        attended = super()._mixed(x, page_size)
        if mixer == "attention":
            return attended
        return self._graph.add("add", {"a": self._mamba2(x), "b": attended}, name=f"{self._here}.both_mixed")

    def _attended(self, x: str, page_size: int) -> str:
        attended, gate = super()._attended(x, page_size), self._attention_gate(x)
        if gate is None:
            return attended
        inputs = {"gate": gate, "up": attended}
        return self._graph.add("gate", inputs, name=f"{self._here}.attended_gated", activation="sigmoid")

    def _attention_gate(self, x: str) -> str | None:  # noqa: ARG002
        """(S, H * D): the sigmoids of these are what the attention's result is multiplied by; None for no gate."""
        return None

    @property
    def _sizes(self) -> StateSpec:
        assert self._spec.states is not None
        return self._spec.states

    def _short_conv(self, x: str) -> str:
        """out(c * conv(b * u)) for the thirds b, c and u of one projection. Liquid AI 2025 (LFM2)."""
        width, bias = self._spec.hidden_size, self._sizes.bias
        self._rows["conv.in_proj"] = 3 * width
        bcu = self._linear("conv.in_proj", x, width, bias=bias)
        return self._output("conv.out_proj", self._causal_conv("conv.conv", bcu, width, gated=True), width, bias=bias)

    def _gated_delta(self, x: str) -> str:
        """A convolution, the gated delta rule, and a norm of each head that is gated. Yang et al. 2024."""
        graph, spec, sizes, module = self._graph, self._spec, self._sizes, "linear_attn"
        keys, values = sizes.groups * sizes.key_dim, sizes.heads * sizes.value_dim
        width = self._rows[f"{module}.in_proj_qkv"] = 2 * keys + values
        qkv = self._linear(f"{module}.in_proj_qkv", x, spec.hidden_size, bias=False)
        rows = {
            f"{module}.in_proj_a": sizes.heads,
            f"{module}.in_proj_b": sizes.heads,
            f"{module}.in_proj_z": values,
        }
        vectors = {
            f"{module}.A_log": sizes.heads,
            f"{module}.dt_bias": sizes.heads,
            f"{module}.norm.weight": sizes.value_dim,
        }
        inputs = {
            "qkv": self._causal_conv(f"{module}.conv1d", qkv, width, activation="silu"),
            "abz": self._stacked(f"{module}.in_proj_abz", rows, x),
            "vectors": self._vectors(f"{module}.vectors", vectors),
            **self._state("matrix", (sizes.heads, sizes.key_dim, sizes.value_dim)),
        }
        attrs = {"a_start": 0, "b_start": sizes.heads, "z_start": 2 * sizes.heads, "eps": spec.rms_norm_eps}
        mixed = graph.add("gated_delta", inputs, name=f"{self._here}.mixed", **attrs)
        return self._output(f"{module}.out_proj", mixed, values, bias=False)

    def _mamba2(self, x: str) -> str:
        """A convolution, the scan of the states, and a gate, with a norm in front of it or behind it. Dao & Gu 2024."""
        graph, sizes, module = self._graph, self._sizes, self.mamba
        width, states = sizes.heads * sizes.value_dim, sizes.groups * sizes.key_dim
        ends = [0, width, 2 * width, 2 * width + states, 2 * width + 2 * states]
        ranges = list(zip(ends, [*ends[1:], ends[-1] + sizes.heads], strict=True))
        # The op gates its result, unless a norm is between them.
        names = {"z": ranges[:1], "dt": ranges[4:]} if sizes.norm == "before" else {"zdt": [ranges[0], ranges[4]]}
        projected = {
            name: self._rows_of(f"{module}.{name}_proj", f"{module}.in_proj", own, x, bias=sizes.bias)
            for name, own in {"xbc": ranges[1:4], **names}.items()
        }
        inputs = {
            "xbc": self._causal_conv(f"{module}.conv1d", projected["xbc"], width + 2 * states, activation="silu"),
            "dt": projected["dt" if sizes.norm == "before" else "zdt"],
            "vectors": self._vectors(
                f"{module}.vectors", {f"{module}.{name}": sizes.heads for name in ("A_log", "D", "dt_bias")}
            ),
            **self._state("matrix", (sizes.heads, sizes.value_dim, sizes.key_dim)),
        }
        starts = {} if sizes.norm == "before" else {"z_start": 0, "dt_start": width}
        mixed = graph.add("ssm_scan", inputs, name=f"{self._here}.mixed", **starts)
        if sizes.norm != "none":
            mixed = self._group_norm(f"{module}.norm", mixed, width)
        if sizes.norm == "before":
            gate = {"gate": projected["z"], "up": mixed}
            mixed = graph.add("gate", gate, name=f"{self._here}.mixed_gated", activation="silu")
        return self._output(f"{module}.out_proj", mixed, width, bias=sizes.bias)

    def _group_norm(self, module: str, x: str, width: int) -> str:
        inputs = {"x": x, "weight": self._vector(f"{module}.weight", width)}
        attrs = {"eps": self._spec.rms_norm_eps, "dtype": "float32", "groups": self._sizes.norm_groups}
        return self._graph.add("rms_norm", inputs, name=f"{self._module}.{module}.out", **attrs)

    def _causal_conv(self, module: str, x: str, columns: int, **attrs: object) -> str:
        sizes = self._sizes
        inputs = {"x": x, "weight": self._vector(f"{module}.weight", columns * sizes.taps)}
        if sizes.conv_bias:
            inputs["bias"] = self._vector(f"{module}.bias", columns)
        inputs |= self._state("conv", (sizes.taps - 1, columns))
        return self._graph.add("causal_conv", inputs, name=f"{self._module}.{module}.out", **attrs)

    def _state(self, name: str, shape: tuple[int, ...]) -> dict[str, str]:
        """Add a state of the layer. Returns the inputs of its op that find a sequence's rows and its state."""
        graph, state = self._graph, f"{self._here}.{name}"
        graph.states[state] = Value(state, (STATES, *shape), "float32")
        graph.inputs[STATE_SLOTS] = Value(STATE_SLOTS, ("B", 2), "int32")
        rows = {role: role for role in ("seq_starts", "positions")}
        assert rows.keys() <= BATCH_INPUTS.keys()
        return {"state": state, STATE_SLOTS: STATE_SLOTS, **rows}

    def _stacked(self, name: str, modules: Mapping[str, int], x: str) -> str:
        """One projection by the weights of modules with these numbers of rows."""
        parameter, columns = f"{self._module}.{name}.weight", self._spec.hidden_size
        sources = tuple(Source(f"{self._module}.{module}.weight", 0, rows) for module, rows in modules.items())
        self._graph.parameters[parameter] = Parameter(parameter, sources, columns)
        inputs = {"x": x, "weight": parameter}
        return self._graph.add("linear", inputs, name=f"{self._module}.{name}.out", dtype="float32")

    def _vectors(self, name: str, tensors: Mapping[str, int]) -> str:
        """One vector of tensors of these sizes."""
        parameter = f"{self._module}.{name}"
        sources = tuple(Source(f"{self._module}.{tensor}", 0, size) for tensor, size in tensors.items())
        self._graph.parameters[parameter] = Parameter(parameter, sources, None)
        return parameter

    def _output(self, module: str, x: str, columns: int, *, bias: bool) -> str:
        self._rows[module] = self._spec.hidden_size
        return self._linear(module, x, columns, bias=bias, factor=self._spec.residual_scale)

    def _vector(self, name: str, size: int) -> str:
        return vector(self._graph, f"{self._module}.{name}", size)
