"""`nearfar simulate`: scenarios, traces, costs, and what the command prints, writes and draws."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import h200_costs
import numpy as np
import pytest

from nearfar.compiler.cli import main
from nearfar.compiler.runtime.errors import RequestError
from nearfar.server_fallback.simulate.chart import Line, chart, ticks
from nearfar.server_fallback.simulate.costs import Shape, StepCosts
from nearfar.server_fallback.simulate.fitting import Measured, fit_costs
from nearfar.server_fallback.simulate.lengths import LogNormal
from nearfar.server_fallback.simulate.presets import DEVICES, LENGTHS
from nearfar.server_fallback.simulate.scenario import read_scenario
from nearfar.server_fallback.simulate.trace import read_trace

SCENARIO = """
seed = 3
study = "run"
[device]
preset = "opt-13b-a100"
[workload]
lengths = "sharegpt"
requests = 60
arrivals = { kind = "poisson", rate = 2.0 }
[cluster]
whole = 1
[bounds]
first_token_ms = 400.0
token_ms = 100.0
"""


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    path = tmp_path / "scenario.toml"
    path.write_text(SCENARIO)
    return path


def changed(path: Path, *pairs: tuple[str, str]) -> Path:
    text = path.read_text()
    for old, new in pairs:
        assert old in text, old
        text = text.replace(old, new)
    path.write_text(text)
    return path


def printed_json(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out)


def test_a_run_is_printed_as_a_table_and_as_json(scenario: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", str(scenario)]) == 0
    assert "first token, ms" in capsys.readouterr().out
    assert main(["simulate", str(scenario), "--json", "--whole", "2", "--rate", "4", "--requests", "50"]) == 0
    found = printed_json(capsys)
    assert found["scenario"]["workload"]["arrivals"] == {"kind": "poisson", "rate": 4.0}
    assert found["scenario"]["cluster"]["whole"] == 2
    assert (found["result"]["requests"], found["result"]["gpus"]) == (50, 2)
    assert main(["simulate", str(scenario), "--json", "--whole", "2", "--rate", "4", "--requests", "50"]) == 0
    assert printed_json(capsys) == found, "the same seed"


def test_the_split_of_gpus_is_searched_and_drawn(
    scenario: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changed(
        scenario,
        ('"run"', '"split"'),
        ("whole = 1", "gpus = 2\nlink = { gigabytes_per_second = 300.0 }\nfirst_token = 'prefill'"),
    )
    drawn = tmp_path / "split.svg"
    assert main(["simulate", str(scenario), "--json", "--plot", str(drawn), "--requests", "24"]) == 0
    found = printed_json(capsys)
    one, two = found["result"]
    assert one["apart"] is None, "one GPU cannot be split"
    assert two["whole"] > 1.5 * one["whole"] > 0
    assert (two["prefill"], two["decode"]) == (1, 1)
    assert found["break_even_gpus"] == (2 if two["apart"] >= two["whole"] else None)
    ElementTree.fromstring(drawn.read_text())
    assert main(["simulate", str(scenario), "--plot", str(drawn)]) == 2, "the file exists"


def test_stores_and_devices_are_compared(scenario: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cache = changed(
        scenario,
        ('"run"', '"cache"'),
        ("whole = 1", "whole = 2\nstore = { tokens = 40000, gigabytes_per_second = 20.0 }"),
        ("requests = 60", "requests = 60\nconversations = { more = 0.6, pause_seconds = 30.0 }"),
    )
    assert main(["simulate", str(cache), "--json"]) == 0
    found = printed_json(capsys)["result"]
    cached = [found[name]["cached_tokens"] for name in ("no store", "a store for each worker", "one shared store")]
    assert cached[0] <= cached[1] <= cached[2]
    near = changed(
        scenario,
        ('"cache"', '"near"'),
        ("whole = 2\nstore = { tokens = 40000, gigabytes_per_second = 20.0 }", "gpus = 2"),
    )
    near.write_text(
        near.read_text()
        + "[near]\ndevices = 20\nprefill_tokens_per_second = 300.0\ndecode_tokens_per_second = 25.0\nsigma = 0.5\n"
        "context = 4096\nround_trip_ms = 50.0\npolicy = { version = 1, mode = 'auto', costs = "
        "{ max_first_token_seconds = 2.0 } }\n"
    )
    assert main(["simulate", str(near), "--json"]) == 0
    found = printed_json(capsys)["result"]
    assert [each["gpus"] for each in found] == [1, 2]
    assert all(0 < each["near_share"] < 1 for each in found)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("[bounds]", "[bound]", "bound: unknown key"),
        ("token_ms = 100.0", "token_ms = 100.0\nshares = 0.9", "bounds.shares: unknown key"),
        ('"poisson"', '"poison"', "workload.arrivals: Input tag 'poison'"),
        ("rate = 2.0", "rate = -2.0", "workload.arrivals.poisson.rate: Input should be greater than 0"),
        ('"opt-13b-a100"', '"opt-13b-a10"', "unknown 'opt-13b-a10'; did you mean 'opt-13b-a100'?"),
        ('"sharegpt"', '"shareGPT"', "unknown lengths 'shareGPT'"),
        ('"run"', '"split"', "the study 'split' needs cluster.gpus, cluster.link"),
        ("seed = 3", "seed = 3 4", "is not TOML"),
        ("whole = 1", "whole = 1\nprefill = 1", "give whole workers, or both prefill and decode"),
    ],
)
def test_wrong_scenarios_are_refused_by_name(
    scenario: Path, capsys: pytest.CaptureFixture[str], old: str, new: str, message: str
) -> None:
    assert main(["simulate", str(changed(scenario, (old, new)))]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_options_that_do_not_go_together_are_refused(scenario: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, message in (
        ([], "give a SCENARIO to simulate, or --measure MODEL"),
        ([str(scenario), "--plot", "x.svg"], "the study 'run' has no chart"),
        ([str(scenario), "--prefill", "1"], "or both prefill and decode"),
        (["--measure", "demo"], "--measure needs -o FILE"),
    ):
        assert main(["simulate", *arguments]) == 2
        assert message in " ".join(capsys.readouterr().err.split())


def test_a_measured_model_is_a_device_of_a_scenario(
    scenario: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from nearfar.server_fallback.simulate import measure

    # What is tested is the way of the costs into a scenario, not their precision.
    monkeypatch.setattr(measure, "AT_ONCE", (1, 2, 4))
    monkeypatch.setattr(measure, "PROMPTS", (4, 40, 150))
    file = tmp_path / "demo.json"
    assert main(["simulate", "--measure", "demo", "--target", "cpu", "-o", str(file)]) == 0
    device = json.loads(file.read_text())
    assert device["context"] == 512
    assert device["costs"]["knots"][0][1] > 0
    capsys.readouterr()
    changed(scenario, ('preset = "opt-13b-a100"', 'file = "demo.json"'))
    assert main(["simulate", str(scenario), "--json", "--requests", "20"]) == 0
    found = printed_json(capsys)["result"]
    # Prompts of ShareGPT that fill its context.
    assert 0 < sum(found["refused"].values()) < 20


def test_costs_are_found_again_in_times_that_other_work_stretched() -> None:
    costs = StepCosts(((1.0, 0.004), (16.0, 0.006), (256.0, 0.05)), row=2e-4, read=3e-7, pair=2e-8)
    chance = np.random.default_rng(1)
    measured = []
    for _ in range(300):
        rows = int(chance.integers(1, 17))
        prompt = int(chance.integers(0, 240)) * int(chance.random() < 0.5)
        start = int(chance.integers(0, 900))
        shape = Shape(rows + prompt, rows, rows * int(chance.integers(1, 1000)), prompt * start + prompt**2 // 2)
        stretched = 1 + chance.exponential(0.5) * (chance.random() < 0.3)
        measured.append(Measured((shape,), costs.seconds(shape) * stretched * chance.normal(1, 0.01)))
    found = fit_costs(measured, [1.0, 16.0, 256.0])
    for shape in (Shape(1, 1, 10, 0), Shape(8, 8, 4000, 0), Shape(200, 1, 0, 90_000), Shape(256, 16, 9000, 30_000)):
        assert found.seconds(shape) == pytest.approx(costs.seconds(shape), rel=0.05)
    with pytest.raises(RequestError, match="do not determine"):
        fit_costs(measured[:4], [1.0, 16.0, 256.0])


def test_costs_of_consecutive_decoding_steps_are_those_of_each() -> None:
    costs = StepCosts(((1.0, 0.004), (16.0, 0.006)), row=2e-4, read=3e-7)
    each = [costs.seconds(Shape(5, 5, 700 + 5 * step, 0)) for step in range(20)]
    assert costs.decode_seconds(5, 700, 20).tolist() == each
    for knots in ((), ((4.0, 1.0), (2.0, 2.0)), ((1.0, 2.0), (2.0, 1.0)), ((1.0, 0.0),)):
        with pytest.raises(RequestError, match="costs:"):
            StepCosts(knots)


def test_traces_are_read_in_their_three_forms(tmp_path: Path) -> None:
    azure, mooncake, own = tmp_path / "azure.csv", tmp_path / "mooncake.jsonl", tmp_path / "own.jsonl"
    azure.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n"
        "2023-11-16 18:15:50.9951690,396,0\n2023-11-16 18:15:51.2224670,879,55\n"
    )
    found = read_trace(azure)
    assert [(row.prompt_tokens, row.output_tokens) for row in found] == [(374, 44), (879, 55)]
    assert found[1].arrival == pytest.approx(4.541877)
    mooncake.write_text(
        '{"timestamp": 1000, "input_length": 700, "output_length": 5, "hash_ids": [46, 47]}\n'
        '{"timestamp": 1500, "input_length": 512, "output_length": 9, "hash_ids": [46]}\n'
    )
    assert [(row.arrival, row.blocks) for row in read_trace(mooncake)] == [(0.0, (46, 47)), (0.5, (46,))]
    own.write_text('{"arrival_seconds": 2, "prompt_tokens": 8, "output_tokens": 3}\n')
    assert read_trace(own)[0][:3] == (0, 8, 3)
    for text, message in (
        ("a,b\n1,2\n", "is not a trace"),
        ('{"timestamp": 1}\n', r"own.jsonl:1: .*the keys must be"),
        ('{"timestamp": 0, "input_length": 700, "output_length": 5, "hash_ids": [46]}', "700 tokens need 2 hash_ids"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,1,2\n", r"own.jsonl:2: "),
    ):
        own.write_text(text)
        with pytest.raises(RequestError, match=message):
            read_trace(own)


def test_a_trace_shares_the_blocks_of_prompts(scenario: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [
        {"timestamp": 4000 * index, "input_length": 1100, "output_length": 4, "hash_ids": [1, 2, 10 + index]}
        for index in range(5)
    ]
    (scenario.parent / "trace.jsonl").write_text("\n".join(map(json.dumps, lines)))
    changed(
        scenario,
        ('lengths = "sharegpt"\n', ""),
        ('{ kind = "poisson", rate = 2.0 }', '{ kind = "trace", file = "trace.jsonl", speed = 2.0 }'),
    )
    assert main(["simulate", str(scenario), "--json"]) == 0
    found = printed_json(capsys)["result"]
    assert (found["requests"], found["cached_tokens"]) == (5, 4 * 1024)


def test_lengths_have_the_moments_of_their_source() -> None:
    prompts = LENGTHS["azure-conversation"][0]
    assert isinstance(prompts, LogNormal)
    drawn = prompts.draw(np.random.default_rng(0), 100_000)
    assert drawn.mean() == pytest.approx(1155, rel=0.05)
    assert (drawn.min() >= 2, drawn.max() <= 14_050) == (True, True)
    shared = LENGTHS["sharegpt"][1].draw(np.random.default_rng(0), 100_000)
    assert np.median(shared) == pytest.approx(58, abs=3)


def test_presets_repeat_the_times_that_were_published() -> None:
    """In milliseconds: DistServe's fit of a prompt, and of a step of 32 sequences; Splitwise's medians."""
    device = DEVICES["opt-13b-a100"]
    prompt = device.costs.seconds(Shape(512, 1, 0, 512 * 513 // 2))
    assert 1000 * prompt == pytest.approx(16.456860 + 0.0926475 * 512 + 6.474786e-6 * 512**2, rel=0.01)
    step = device.costs.seconds(Shape(32, 32, 32 * 700, 0))
    assert 1000 * step == pytest.approx(19.934703 + 6.269357e-4 * 32 * 700 + 0.0385070 * 32, rel=0.01)
    large = DEVICES["llama2-70b-8h100"].costs
    assert 1000 * large.seconds(Shape(16, 16, 16 * 576, 0)) == pytest.approx(34.2, rel=0.02)
    assert 1000 * large.seconds(Shape(2048, 1, 0, 0)) == pytest.approx(136.8, rel=0.02)


def test_presets_of_the_h200_are_fitted_to_its_measurements() -> None:
    for model, costs in h200_costs.fitted().items():
        preset = DEVICES[f"{model.lower()}-h200"].costs
        for shape in (Shape(1, 1, 500, 0), Shape(100, 100, 80_000, 0), Shape(2048, 1, 0, 2_000_000)):
            assert preset.seconds(shape) == pytest.approx(costs.seconds(shape), rel=1e-4)


def test_a_scenario_is_read_with_the_paths_beside_it(scenario: Path) -> None:
    assert read_scenario(scenario).bounds is not None
    with pytest.raises(RequestError, match="cannot be read"):
        read_scenario(scenario.parent / "other.toml")


def test_charts_are_drawn_with_round_ticks_and_escaped_names() -> None:
    assert ticks(7.3) == [0, 2, 4, 6, 8]
    assert ticks(0) == [0, 1]
    lines = [
        Line("<one>", [(1, 2), (2, 4)]), Line("two", [(1, 1)], dashed=True), Line("again", [(1, 3)], like="<one>"),
        Line("three", [(1, 2)]),
    ]  # fmt: skip
    drawn = ElementTree.fromstring(chart("a < b\nmore", "x", "y", lines))
    space = "{http://www.w3.org/2000/svg}"
    texts = {each.text: float(each.get("y", 0)) for each in drawn.iter(f"{space}text")}
    assert {"a < b", "more", "<one>", "two"} <= set(texts)
    assert texts["more"] > texts["a < b"]
    colours = [each.get("stroke") for each in drawn.iter(f"{space}polyline")]
    assert colours[2] == colours[0]
    assert len(set(colours)) == 3
    with pytest.raises(ValueError, match="points"):
        chart("", "", "", [])
