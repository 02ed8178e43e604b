"""The ops with a state for each sequence: their definitions as loops in float64, and batches of any shape."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tolerances import F32, relative_error

from nearfar.compiler.ir.ops import OPS, Array
from nearfar.compiler.runtime.batch import Chunk, make_batch
from nearfar.compiler.runtime.errors import RequestError
from nearfar.compiler.runtime.inputs import require_states

LENGTH = 23
# Op -> the rows' inputs with their columns, the parameters with their sizes, the state of a sequence.
SIZES: dict[str, tuple[dict[str, int], dict[str, int], tuple[int, ...]]] = {
    "causal_conv": ({"x": 5}, {"weight": 15, "bias": 5}, (2, 5)),
    "gated_delta": ({"qkv": 2 * 2 * 3 + 4 * 5, "abz": 28}, {"vectors": 13}, (4, 3, 5)),
    "ssm_scan": ({"xbc": 4 * 3 + 2 * 2 * 5, "dt": 16}, {"vectors": 12}, (4, 3, 5)),
}


def case(op: str, seed: int = 0) -> tuple[dict[str, Array], dict[str, Array]]:
    """The inputs of a sequence's rows, and the parameters."""
    rng = np.random.default_rng(seed)
    rows, parameters, _ = SIZES[op]
    return (
        {role: rng.normal(size=(LENGTH, columns)).astype(np.float32) for role, columns in rows.items()},
        {role: rng.normal(size=size).astype(np.float32) for role, size in parameters.items()},
    )


def run(op: str, state: Array, parts: Sequence[tuple[int, int, int, int]], *, seeds: Sequence[int] = ()) -> list[Array]:
    """A batch of parts of sequences, each (start, stop, slot to read, slot to write). Returns the parts' results."""
    cases = [case(op, seed)[0] for seed in (seeds or [0] * len(parts))]
    chunks = [Chunk([0] * (stop - start), start, [0] * stop, state=(read, write)) for start, stop, read, write in parts]
    arrays = make_batch(chunks, 1).arrays(("state_slots",))
    rows = {
        role: np.concatenate([own[role][start:stop] for own, (start, stop, *_) in zip(cases, parts, strict=True)])
        for role in SIZES[op][0]
    }
    known = {role: arrays[role] for role in ("state_slots", "seq_starts", "positions")}
    attrs: dict[str, dict[str, float]] = {
        "causal_conv": {},
        "gated_delta": {"a_start": 0, "b_start": 4, "z_start": 8, "eps": 1e-5},
        "ssm_scan": {"z_start": 4},
    }
    y = OPS[op].run({**rows, **case(op)[1], **known, "state": state}, attrs[op])
    assert y is not None
    return np.split(y, arrays["seq_starts"][1:-1])


def slots(op: str, count: int) -> Array:
    return np.full((count, *SIZES[op][2]), np.nan, np.float32)


def loops(op: str) -> tuple[Array, Array]:
    """One sequence in float64, element by element: its results, and its state after the last row."""
    (rows, parameters), (heads, *sizes) = case(op), (SIZES[op][2] if op != "causal_conv" else (1, 1, 1))
    x = {role: array.astype(np.float64) for role, array in {**rows, **parameters}.items()}
    if op == "causal_conv":
        padded = np.concatenate([np.zeros((2, 5)), x["x"]])
        weight = x["weight"].reshape(5, 3)
        y = [
            [x["bias"][c] + sum(weight[c, j] * padded[s + j, c] for j in range(3)) for c in range(5)]
            for s in range(LENGTH)
        ]
        return np.array(y), padded[-2:]
    memory, results = np.zeros((heads, *sizes)), []
    for row in range(LENGTH):
        for head in range(heads):
            own = memory[head]
            if op == "gated_delta":
                q, k = (x["qkv"][row, first + head // 2 * 3 :][:3] for first in (0, 6))
                q, k = (each / np.sqrt(each @ each + 1e-6) for each in (q, k))
                own *= np.exp(
                    -np.exp(x["vectors"][head]) * np.log1p(np.exp(x["abz"][row, head] + x["vectors"][4 + head]))
                )
                error = x["qkv"][row, 12 + 5 * head :][:5] - k @ own
                own += np.outer(k, error / (1 + np.exp(-x["abz"][row, 4 + head])))
                result, z = q @ own / np.sqrt(3), x["abz"][row, 8 + 5 * head :][:5]
                result = result / np.sqrt(np.mean(result**2) + 1e-5) * x["vectors"][8:]
                results.append(result * z / (1 + np.exp(-z)))
                continue
            dt = np.log1p(np.exp(x["dt"][row, head] + x["vectors"][8 + head]))
            own_x, b, c = (
                x["xbc"][row, first:][:size]
                for first, size in ((3 * head, 3), (12 + head // 2 * 5, 5), (22 + head // 2 * 5, 5))
            )
            own[:] = own * np.exp(-np.exp(x["vectors"][head]) * dt) + np.outer(dt * own_x, b)
            z = x["dt"][row, 4 + 3 * head :][:3]
            results.append((own @ c + x["vectors"][4 + head] * own_x) * z / (1 + np.exp(-z)))
    return np.array(results).reshape(LENGTH, -1), memory


@pytest.mark.parametrize("op", SIZES)
def test_an_op_is_its_definition(op: str) -> None:
    state = slots(op, 1)
    (y,) = run(op, state, [(0, LENGTH, 0, 0)])
    expected, after = loops(op)
    assert relative_error(y, expected) < F32
    assert relative_error(state[0], after) < F32


@settings(max_examples=25)
@given(st.sampled_from(list(SIZES)), st.data())
def test_any_interleaving_of_sequences_is_each_alone(op: str, data: st.DataObject) -> None:
    alone = [run(op, slots(op, 1), [(0, LENGTH, 0, 0)], seeds=[seed])[0] for seed in range(3)]
    state, done = slots(op, 3), [0, 0, 0]
    while min(done) < LENGTH:
        unfinished = [seed for seed in range(3) if done[seed] < LENGTH]
        chosen = data.draw(st.lists(st.sampled_from(unfinished), unique=True, min_size=1))
        counts = [data.draw(st.integers(1, LENGTH - done[seed])) for seed in chosen]
        parts = [(done[seed], done[seed] + count, seed, seed) for seed, count in zip(chosen, counts, strict=True)]
        for seed, count, y in zip(chosen, counts, run(op, state, parts, seeds=chosen), strict=True):
            assert relative_error(y, alone[seed][done[seed] : done[seed] + count]) < F32
            done[seed] += count


@pytest.mark.parametrize("op", SIZES)
def test_a_state_that_is_written_elsewhere_stays_what_it_was(op: str) -> None:
    (whole,) = run(op, slots(op, 1), [(0, LENGTH, 0, 0)])
    state = slots(op, 3)
    run(op, state, [(0, 9, 0, 0)])
    before = state[0].copy()
    # Two forks in one batch, one of which reads what the other does.
    for y, stop in zip(run(op, state, [(9, LENGTH, 0, 1), (9, 12, 0, 2)]), (LENGTH, 12), strict=True):
        assert relative_error(y, whole[9:stop]) < F32
    assert np.array_equal(state[0], before)


def test_slots_of_states_must_exist_and_not_be_shared_with_a_writer() -> None:
    require_states(np.array([[0, 1], [0, 2]]), 3)
    with pytest.raises(RequestError, match="slots 0 to 3 of states; the runner has 3"):
        require_states(np.array([[0, 3]]), 3)
    for other in ([2, 1], [1, 2]):
        with pytest.raises(RequestError, match="writes slot 1 of states, which another one uses"):
            require_states(np.array([[0, 1], other]), 3)
