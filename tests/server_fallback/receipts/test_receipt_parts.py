"""Answers of two sides, each of which signs its part: the demo model near, and behind a real server far."""

from __future__ import annotations

import copy
import json
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
from fake_models import FakeExecutor, FakeModels
from hybrid_sides import policy, run
from live_server import live_server

from nearfar.compiler.bundle.folder import open_bundle
from nearfar.compiler.bundle.signature import new_key
from nearfar.compiler.cli import main
from nearfar.compiler.runtime.reference import ReferenceRunner
from nearfar.compiler.runtime.runner import Limits
from nearfar.server_fallback.api.config import ApiConfig
from nearfar.server_fallback.engine.model import TokenModel
from nearfar.server_fallback.engine.token_engine import TokenEngine
from nearfar.server_fallback.executors.executor import Call
from nearfar.server_fallback.executors.local import LocalExecutor
from nearfar.server_fallback.executors.text_model import TextModel
from nearfar.server_fallback.executors.upstream_executor import UpstreamOpener, UpstreamOptions
from nearfar.server_fallback.receipts.issuer import Issuer
from nearfar.server_fallback.receipts.parts import part_faults, request_fault
from nearfar.server_fallback.receipts.signing import ReceiptKey
from nearfar.server_fallback.router.hybrid import Hybrid
from nearfar.server_fallback.router.sides.far import Far
from nearfar.server_fallback.schema.chat import ChatCompletionRequest
from nearfar.server_fallback.schema.fold import ChatFold
from nearfar.server_fallback.schema.receipt import AnswerPart
from nearfar.server_fallback.schema.route import Side
from nearfar.server_fallback.text.output import Chunks

ASKED = [{"role": "user", "content": "what is 27 + 58?"}]
SIGNED = {"receipt": True, "return_token_ids": True}
# No model is as sure as this of two tokens in a row.
SWITCHES = policy(escalation={"then": "continue", "window_tokens": 2, "min_mean_logprob": -1e-9, "repetition": None})
SAMPLED = {"messages": ASKED, "temperature": 1.3, "seed": 4, "max_tokens": 24}


@dataclass(frozen=True)
class Sides:
    bundle: Path
    near_key: Path
    far_key: Path
    far_url: str

    def executor(self, side: Side) -> LocalExecutor:
        return executor(self.bundle, side, self.near_key if side == "near" else self.far_key)

    def ask(self, rules: Mapping[str, Any], body: Mapping[str, Any]) -> dict[str, Any]:
        async def work() -> dict[str, Any]:
            near, far = self.executor("near"), Far(self.far_url, model="fake")
            async with await Hybrid.create(near=near, far=far, policy=rules) as hybrid:
                answer = await hybrid.chat.completions.create(**body)
            dumped: dict[str, Any] = answer.model_dump(mode="json")
            return dumped

        return run(work())


def executor(bundle: Path, side: Side, key: Path) -> LocalExecutor:
    opened = open_bundle(bundle)
    runner = ReferenceRunner(opened, limits=Limits(tokens=64, sequences=4, rows=4, pages=64))
    issuer = Issuer.of(opened, side, runner.device, runner.activation, ReceiptKey(key), side)
    return LocalExecutor(TokenEngine(runner, TokenModel.of(opened.manifest)), TextModel.of(opened, side), issuer=issuer)


@pytest.fixture(scope="module")
def sides(light_demo: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sides]:
    folder = tmp_path_factory.mktemp("parts")
    keys = folder / "near.pem", folder / "far.pem"
    for key in keys:
        new_key(key)
    far = executor(light_demo, "far", keys[1])
    with live_server(FakeModels(fake=cast("FakeExecutor", far)), ApiConfig()) as server:
        yield Sides(light_demo, *keys, f"http://127.0.0.1:{server.port}")
    run(far.close())


Verify = Callable[..., tuple[int, list[dict[str, Any]]]]


@pytest.fixture
def verify(sides: Sides, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Verify:
    def of(answer: object, body: object, *options: str) -> tuple[int, list[dict[str, Any]]]:
        """The exit status of the command, and what it reports of each receipt."""
        (tmp_path / "answer.json").write_text(json.dumps(answer))
        (tmp_path / "request.json").write_text(json.dumps(body))
        files = [str(tmp_path / "answer.json"), "--request", str(tmp_path / "request.json")]
        keys = ["--signed-by", f"{sides.near_key}.pub", "--signed-by", f"{sides.far_key}.pub"]
        capsys.readouterr()
        status = main(["verify", *files, "--bundle", str(sides.bundle), "--runner", "numpy", "--json", *keys, *options])
        printed = capsys.readouterr()
        report = json.loads(printed.out or printed.err)
        return status, report.get("receipts", [report])

    return of


@pytest.fixture(scope="module")
def switched(sides: Sides) -> dict[str, Any]:
    return sides.ask(SWITCHES, {**SAMPLED, **SIGNED})


def test_an_answer_that_changed_sides_has_the_parts_of_both_which_are_computed_again(
    verify: Verify, switched: dict[str, Any]
) -> None:
    assert switched["route"]["side"] == "far"
    text, parts = switched["choices"][0]["message"]["content"], switched["parts"]
    assert [(part["side"], part["receipt"]) for part in parts] == [("near", 0), ("far", 1)]
    assert 0 == parts[0]["start"] < parts[1]["start"] == switched["route"]["switched_at"] < len(text)
    near, far = (each["receipt"] for each in switched["receipts"])
    assert (near["side"], near["choices"][0]["finish_reason"], far["side"]) == ("near", None, "far")
    # Both sides have the same tokens, so far goes on after them.
    assert isinstance(parts[1]["request"]["prompt"], list)
    status, report = verify(switched, {**SAMPLED, **SIGNED}, "--exact")
    assert (status, [each["faults"] for each in report]) == (0, [[], []])
    assert all(each["trusted"] for each in report)
    computed = [each["choices"][0]["computed"] for each in report]
    assert computed == [each["choices"][0]["answer_tokens"] for each in (near, far)]
    assert min(computed) > 0


def changed(answer: dict[str, Any], change: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    other = copy.deepcopy(answer)
    change(other)
    return other


def test_a_router_that_states_other_parts_is_found_out(verify: Verify, switched: dict[str, Any]) -> None:
    body = {**SAMPLED, **SIGNED}
    parts, text = switched["parts"], switched["choices"][0]["message"]["content"]

    def fault(change: Callable[[dict[str, Any]], object], asked: object = body) -> str:
        status, report = verify(changed(switched, change), asked)
        assert status == 2
        return json.dumps(report)

    def reword(answer: dict[str, Any]) -> None:
        answer["choices"][0]["message"]["content"] = "x" + text[1:]

    assert "the answer's text from character 0 on is not that of the near side's tokens" in fault(reword)
    assert "is not that of the far side's tokens" in fault(
        lambda answer: answer["parts"][1].update(start=parts[1]["start"] - 1)
    )
    assert "the receipt is of another request" in fault(lambda answer: answer["parts"][1]["request"].update(seed=5))
    assert "its parts are not those of an answer" in fault(lambda answer: answer["parts"].pop())
    assert "its parts are not those of an answer" in fault(lambda answer: answer["parts"].reverse())
    other = [{"role": "user", "content": "what is 27 + 59?"}]
    assert "the near side received other messages" in fault(lambda _: None, {**body, "messages": other})
    assert "received another temperature than" in fault(lambda _: None, {**body, "temperature": 1})


def test_a_continuation_as_text_is_compared_with_the_text_before(sides: Sides, verify: Verify) -> None:
    # Variables of the template keep a chat from continuing as tokens.
    body = {**SAMPLED, "chat_template_kwargs": {"note": 1}, "labels": [], **SIGNED}
    answer = sides.ask(SWITCHES, body)
    part = answer["parts"][1]
    begun = answer["choices"][0]["message"]["content"][: part["start"]]
    assert part["request"]["messages"] == [*ASKED, {"role": "assistant", "content": begun}]
    status, report = verify(answer, body, "--exact")
    assert (status, [each["faults"] for each in report]) == (0, [[], []])


def test_a_masked_requests_receipt_covers_what_far_saw(sides: Sides, verify: Verify) -> None:
    patterns = [{"kind": "EMAIL", "pattern": r"[\w.]+@[\w.]+[a-z]"}]
    rules = policy("prefer-far", private={"masks": {"patterns": patterns}})
    body = {"messages": [{"role": "user", "content": "tell anna@lee.org a story"}], "temperature": 0, "max_tokens": 12}
    answer = sides.ask(rules, {**body, **SIGNED})
    [part] = answer["parts"]
    assert (part["side"], part["changed"]) == ("far", ["masked"])
    assert part["request"]["messages"][0]["content"] == "tell [EMAIL_1] a story"
    status, report = verify(answer, body)
    assert (status, report[0]["faults"]) == (0, [])
    assert report[0]["choices"][0]["computed"] > 0
    assert "the far side received a masked request, which its receipt covers" in report[0]["notes"]
    # Another text around the placeholder.
    status, report = verify(answer, {**body, "messages": [{"role": "user", "content": "tell anna@lee.org a joke"}]})
    assert (status, "other messages" in json.dumps(report)) == (2, True)
    # Without the statement, the receipt is of a request that nobody has sent.
    status, report = verify({name: value for name, value in answer.items() if name != "parts"}, body)
    assert (status, "another request" in json.dumps(report)) == (2, True)


def test_a_files_text_is_what_the_sides_received(sides: Sides, verify: Verify) -> None:
    def asked(text: str) -> dict[str, Any]:
        data = f"data:text/plain;base64,{b64encode(text.encode()).decode()}"
        file = {"type": "file", "file": {"filename": "note.txt", "file_data": data}}
        content = [{"type": "text", "text": "carry this out: "}, file]
        return {"messages": [{"role": "user", "content": content}], "temperature": 0, "max_tokens": 4}

    for mode in ("prefer-near", "prefer-far"):
        answer = sides.ask(policy(mode), {**asked("dim the lights"), **SIGNED})
        [part] = answer["parts"]
        assert part["side"] == mode.removeprefix("prefer-")
        status, report = verify(answer, asked("dim the lights"))
        assert (status, report[0]["faults"], report[0]["choices"][0]["computed"] > 0) == (0, [], True)
    status, report = verify(answer, asked("open the door"))
    assert (status, "other messages" in json.dumps(report)) == (2, True)


def test_an_upstreams_receipt_is_passed_on_with_what_it_received(sides: Sides, verify: Verify) -> None:
    body = {"messages": ASKED, "temperature": 0, "user": "somebody"}

    async def work() -> dict[str, Any]:
        opened = await UpstreamOpener(UpstreamOptions((sides.far_url,), "up", dialect="nearfar")).prepare("fake", "up")
        upstream, fold = await opened.open(), ChatFold()
        try:
            request = ChatCompletionRequest.model_validate({"model": "up", **body, **SIGNED})
            await upstream.answer(request, Call("test"), Chunks(fold.add))
        finally:
            await upstream.close()
        dumped: dict[str, Any] = fold.answer().model_dump(mode="json")
        return dumped

    answer = run(work())
    assert [part["side"] for part in answer["parts"]] == ["far"]
    status, report = verify(answer, body)
    assert (status, report[0]["faults"]) == (0, [])
    assert report[0]["choices"][0]["computed"] > 0


HI: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}
LOOK: dict[str, Any] = {
    "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}, *HI["messages"]]
}


def far_part(request: Mapping[str, Any], *stated: str) -> AnswerPart:
    given = {"side": "far", "start": 0, "receipt": 0, "request": request, "changed": stated or None}
    return AnswerPart.model_validate(given)


@pytest.mark.parametrize(
    ("body", "part", "fault"),
    [
        # A router that says so cannot pass the receipt of any other request off as this one's.
        (HI, far_part({"messages": [{"role": "user", "content": "bye"}]}, "described"), "messages"),
        (LOOK, far_part({"messages": [{"role": "user", "content": "a boat"}, *HI["messages"]]}, "described"), None),
        (LOOK, far_part({"messages": [*HI["messages"], *ASKED]}, "described"), "messages"),
        # What strict masks leave out, and a seed that somebody has to draw, change nothing that was asked.
        ({**HI, "user": "anna", "metadata": {"a": "b"}}, far_part(HI, "masked"), None),
        (HI, far_part({**HI, "seed": 7}), None),
        ({**HI, "seed": 8}, far_part({**HI, "seed": 7}), "seed"),
    ],
)
def test_the_request_of_a_part_may_differ_only_in_what_was_changed(
    body: dict[str, Any], part: AnswerPart, fault: str | None
) -> None:
    found = request_fault(body, part, "", None)
    assert found is None if fault is None else found is not None and fault in found


@pytest.mark.parametrize(
    ("side", "changed", "shown", "is_found"),
    [
        ("near", ["masked"], "forged ", True),
        ("far", ["masked"], "forged ", True),
        ("far", ["masked"], "to anna@lee.org, ", False),
        ("far", ["masked"], "to ", False),
        ("far", None, "to anna@lee.org, ", True),
    ],
)
def test_masks_excuse_no_other_text_before_a_change_of_sides(
    side: str, changed: list[str] | None, shown: str, is_found: bool
) -> None:
    first = {"side": side, "start": 0, "receipt": 0, "request": None, "changed": changed}
    second = {"side": "near", "start": len(shown), "receipt": 1, "request": None}
    parts = [AnswerPart.model_validate(each) for each in (first, second)]
    faults = list(part_faults(parts, 0, None, f"{shown}end", None, "to [EMAIL_1], and more"))
    assert bool(faults) is is_found
