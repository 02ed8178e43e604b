"""The policy as a file: what is generated from its classes, the examples of the README, and unreadable files."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from router_cases import VECTORS

from nearfar.compiler.runtime.errors import RequestError
from nearfar.server_fallback.router.decision.policy import Policy
from nearfar.server_fallback.router.decision.privacy import PrivateCheck
from nearfar.server_fallback.router.decision.schema import json_schema, typescript

ROOT = Path(__file__).parents[3]
ROUTER = ROOT / "server_fallback/router"
EXAMPLES = re.findall(r"```json\n(.*?)```", (ROUTER / "README.md").read_text(encoding="utf-8"), re.DOTALL)


def test_the_files_generated_from_the_policy_are_committed() -> None:
    assert (ROUTER / "decision/policy.schema.json").read_text(encoding="utf-8") == json_schema()
    assert (ROOT / "web/src/shared/decision/policy_schema.ts").read_text(encoding="utf-8") == typescript()


def test_every_accepted_policy_is_valid_in_its_schema() -> None:
    validator = jsonschema_rs.Draft202012Validator(json.loads(json_schema()))
    policies = [case["policy"] for case in VECTORS["cases"] if "decision" in case]
    assert [policy for policy in policies if not validator.is_valid(policy)] == []
    assert not validator.is_valid({"version": 1, "mode": "auto", "retries": 11})


def test_reading_a_policy_again_changes_nothing() -> None:
    for case in VECTORS["cases"]:
        if "decision" in case:
            policy = Policy.read(case["policy"])
            assert Policy.read(policy.model_dump()) == policy


@pytest.mark.parametrize("example", EXAMPLES, ids=range(len(EXAMPLES)))
def test_examples_of_the_readme_are_policies(example: str) -> None:
    assert Policy.read(json.loads(example)).version == 1


def test_the_readme_has_the_defaults() -> None:
    text = (ROUTER / "README.md").read_text(encoding="utf-8")
    schema = json.loads(json_schema())
    for name, part in schema["properties"].items():
        keys = schema["$defs"][part["$ref"].removeprefix("#/$defs/")]["properties"] if "$ref" in part else {}
        assert f"`{name}`" in text, name
        assert [key for key in keys if f"`{key}`" not in text] == []


def test_a_policy_is_read_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "policy.json"
    file.write_text('{"version": 1, "mode": "prefer-near", "private": {"patterns": ["ü"]}}', encoding="utf-8")
    assert Policy.read(file) == Policy.read(str(file)) == Policy.read(json.loads(file.read_text(encoding="utf-8")))
    file.write_text('{"version": 1, "mode": "near-only", "retries": 20}')
    with pytest.raises(RequestError, match=r"policy\.json: retries: "):
        Policy.read(file)


@pytest.mark.parametrize("content", [b"", b"[1]", b"{", b"\xff\xfe", b'{"version": NaN, "mode": "auto"}', b'"auto"'])
def test_a_file_without_a_policy_is_a_bad_policy(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "policy.json"
    file.write_bytes(content)
    with pytest.raises(RequestError, match=r"policy\.json") as caught:
        Policy.read(file)
    assert caught.value.details["code"] == "bad_policy"


NOT_IN_JSON: list[Any] = [{"mode": {1, 2}}, {"mode": "auto", "version": object()}]


@pytest.mark.parametrize(
    "source", ["no/such/file.json", "\0", *NOT_IN_JSON], ids=["no file", "no path", "a set", "an object"]
)
def test_a_missing_file_or_invalid_json_is_a_bad_policy(source: Any) -> None:
    with pytest.raises(RequestError) as caught:
        Policy.read(source)
    assert caught.value.details["code"] == "bad_policy"


def test_a_long_text_is_searched_completely() -> None:
    check = PrivateCheck.of((), (r"\b[0-9]{3}-[0-9]{2}-[0-9]{4}\b",), ignore_case=True)
    assert check.matches("x" * 100_000 + " 123-45-6789")
    assert not check.matches("\\u00e9 \\" * 50_000)


def test_the_error_names_a_mistyped_key_and_what_to_do() -> None:
    with pytest.raises(
        RequestError, match=r"^the policy: private\.lables: unknown key; the keys are labels, patterns, "
    ):
        Policy.read({"version": 1, "mode": "auto", "private": {"lables": ["health"]}})
