"""tests/conformance/agent.json, which the page's functions give too, and its schemas beside jsonschema_rs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from nearfar.compiler.shared.script import SharedScript

VECTORS = json.loads((Path(__file__).parents[2] / "conformance/agent.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("case", VECTORS["cases"], ids=lambda case: case["name"])
def test_decisions_match_the_conformance_cases(case: dict[str, Any]) -> None:
    assert SharedScript.of_thread().call(case["function"], *map(json.dumps, case["arguments"])) == case["result"]


@pytest.mark.parametrize("case", VECTORS["schemas"], ids=lambda case: json.dumps(case["schema"])[:60])
def test_arguments_are_refused_as_jsonschema_does(case: dict[str, Any]) -> None:
    script, schema = SharedScript.of_thread(), case["schema"]
    inner = schema.get("$defs", {}) if isinstance(schema, dict) else {}
    tool = {"listed": "t", "schema": {"type": "object", "properties": {"v": schema}, "$defs": inner}}
    state, validator = script.ask("agentOpen", {}), jsonschema_rs.Draft202012Validator(schema)
    for value, fault in zip(case["values"], case["faults"], strict=True):
        verdict = script.ask("agentJudge", state, [tool], {"name": "t", "arguments": json.dumps({"v": value})})
        assert (None if verdict["verdict"] == "run" else verdict["text"]) == fault
        assert (fault is None) == validator.is_valid(value)
