"""Receipts of answers over HTTP, and their verification by the command."""

from __future__ import annotations

import copy
import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from asgi import ask_app, events, run
from fake_models import FakeExecutor, FakeModels

from nearfar.compiler.bundle.folder import open_bundle
from nearfar.compiler.bundle.signature import new_key
from nearfar.compiler.cli import main
from nearfar.compiler.cli.model import CACHE
from nearfar.compiler.demo import CHECKPOINT
from nearfar.compiler.runtime.errors import RequestError
from nearfar.compiler.runtime.reference import ReferenceRunner
from nearfar.compiler.runtime.runner import Limits
from nearfar.compiler.runtime.text.tool_formats import FORMATS
from nearfar.compiler.shared.script import SharedScript
from nearfar.server_fallback.api.app import create_app
from nearfar.server_fallback.api.config import ApiConfig
from nearfar.server_fallback.engine.model import TokenModel
from nearfar.server_fallback.engine.token_engine import TokenEngine
from nearfar.server_fallback.executors import text_model
from nearfar.server_fallback.executors.local import LocalExecutor
from nearfar.server_fallback.executors.text_model import TextModel
from nearfar.server_fallback.receipts.issuer import Issuer, request_hash, tokens_hash
from nearfar.server_fallback.receipts.signing import ReceiptKey

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
ASKED = [{"role": "user", "content": "what is 27 + 58?"}]
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 99}}, "required": ["n"]}
FORMAT = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}
WITH_TOKENS = {"receipt": True, "return_token_ids": True}
CASES: dict[str, dict[str, Any]] = {
    "greedy": {"messages": ASKED, "temperature": 0},
    "sampled": {"messages": ASKED, "max_tokens": 24, "temperature": 1.5, "top_p": 0.95, "n": 2},
    "top_k": {"messages": ASKED, "max_tokens": 12, "temperature": 2, "top_k": 9, "min_p": 0.001, "seed": 7},
    "penalties": {
        "messages": ASKED, "max_tokens": 16, "repetition_penalty": 1.3, "frequency_penalty": 0.7,
        "presence_penalty": -0.4, "logit_bias": {"40": 5, "41": -100}, "min_tokens": 6, "seed": (1 << 40) + 5,
    },
    "format": {"messages": ASKED, "response_format": FORMAT, "seed": 2, "max_tokens": 12},
    "tools": {"messages": ASKED, "tools": [TOOL], "tool_choice": "required", "seed": 1, "max_tokens": 60},
    "stop": {"prompt": ["near and far", "what is 1 + 1?"], "n": 2, "stop": ["e", "o"], "seed": 3, "max_tokens": 32},
    "ends": {"prompt": "near", "max_tokens": 9, "stop_token_ids": [101], "ignore_eos": True, "temperature": 1.2},
    "nothing": {"prompt": "near", "max_tokens": 0, "echo": True},
}  # fmt: skip

# They wait for another process of grammars.
SLOW = ("tools", "sampled", "stop")


class Served:
    """The demo model, whose answers come over HTTP. ``key`` signs them."""

    def __init__(self, bundle: Path, folder: Path) -> None:
        self.path, self.key = bundle, folder / "key.pem"
        new_key(self.key)

    def ask(self, body: dict[str, Any], *, signs: bool = True, status: int = 200, path: str | None = None) -> Any:
        return run(self._ask(body, signs, status, path or (CHAT if "messages" in body else TEXT)))

    async def _ask(self, body: dict[str, Any], signs: bool, status: int, path: str) -> Any:
        bundle = open_bundle(self.path)
        runner = ReferenceRunner(bundle, limits=Limits(tokens=64, sequences=4, rows=4, pages=64))
        issuer = Issuer.of(bundle, "fake", runner.device, runner.activation, ReceiptKey(self.key)) if signs else None
        local = LocalExecutor(
            TokenEngine(runner, TokenModel.of(bundle.manifest)), TextModel.of(bundle, "fake"), issuer=issuer
        )
        try:
            app = create_app(FakeModels(fake=cast("FakeExecutor", local)), ApiConfig())
            response = await ask_app(app, "POST", path, {"model": "fake", **body})
            assert response.status_code == status, response.text
            return events(response) if body.get("stream") else response.json()
        finally:
            await local.close()


@pytest.fixture(scope="module")
def served(light_demo: Path, tmp_path_factory: pytest.TempPathFactory) -> Served:
    return Served(light_demo, tmp_path_factory.mktemp("receipts"))


Verify = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def verify(served: Served, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Verify:
    def of(answer: object, body: object, *options: str) -> tuple[int, dict[str, Any]]:
        """The exit status of the command, and its report."""
        (tmp_path / "answer.json").write_text(json.dumps(answer))
        given = [str(tmp_path / "answer.json"), "--runner", "numpy", "--json", *options]
        if "--bundle" not in options:
            given += ["--bundle", str(served.path)]
        if body is not None:
            (tmp_path / "request.json").write_text(json.dumps(body))
            given += ["--request", str(tmp_path / "request.json")]
        capsys.readouterr()
        status = main(["verify", *given])
        printed = capsys.readouterr()
        return status, json.loads(printed.out or printed.err)

    return of


@pytest.fixture(scope="module")
def greedy(served: Served) -> dict[str, Any]:
    """The answer of the first case with its tokens."""
    answer: dict[str, Any] = served.ask({**CASES["greedy"], **WITH_TOKENS})
    return answer


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.exhaustive) if name in SLOW else name for name in CASES]
)
def test_an_answer_is_computed_again(
    served: Served, verify: Verify, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The demo's own template has no tools.
    monkeypatch.setattr(text_model, "tool_format", lambda _: FORMATS["hermes"])
    body = {**CASES[name], **WITH_TOKENS}
    answer = served.ask(body)
    status, report = verify(answer, body, "--exact", "--signed-by", f"{served.key}.pub")
    assert (status, report.get("verified")) == (0, True), json.dumps(report)
    [receipt] = report["receipts"]
    assert receipt["trusted"]
    assert [choice["computed"] for choice in receipt["choices"]] == [
        len(choice.get("token_ids") or ()) for choice in answer["choices"]
    ]
    assert sum(choice["differences"] for choice in receipt["choices"]) == 0
    if name != "nothing":
        assert all(choice["tokens"] > 0 for choice in receipt["choices"])


def test_a_receipt_has_hashes_only_unless_the_request_wants_the_tokens(
    served: Served, verify: Verify, greedy: dict[str, Any]
) -> None:
    body = {**CASES["greedy"], "receipt": True}
    answer = served.ask(body)
    assert "token_ids" not in answer["choices"][0]
    assert "prompt_token_ids" not in answer
    [signed] = answer["receipts"]
    assert signed["receipt"]["choices"][0]["token_ids"] is None
    stated = ("prompt", "answer", "answer_tokens", "finish_reason")
    [with_tokens] = greedy["receipts"][0]["receipt"]["choices"]
    assert [signed["receipt"]["choices"][0][name] for name in stated] == [with_tokens[name] for name in stated]
    text = json.dumps(signed)
    assert "27" not in text.replace(json.dumps(signed["signature"]), "").split('"device"')[0].split('"runtime"')[0]
    status, report = verify(answer, body)
    assert status == 0
    assert any("no tokens" in note for note in report["receipts"][0]["notes"])


def test_the_last_chunk_of_a_stream_has_the_receipt_even_without_usage(served: Served, verify: Verify) -> None:
    body = {**CASES["greedy"], "stream": True}
    *chunks, end = served.ask({**body, "receipt": True})
    assert end == "[DONE]"
    deltas = [choice for chunk in chunks for choice in chunk["choices"]]
    assert all("token_ids" not in choice for choice in deltas)
    assert all("prompt_token_ids" not in chunk for chunk in chunks)
    # The text is the same, and there are no chunks but those of a text, the role and the end.
    assert "".join(choice["delta"].get("content", "") for choice in deltas).startswith("27 + 58")
    assert all(choice["delta"].get("content") for choice in deltas[1:-1])
    assert chunks[-1]["choices"] == []
    assert "usage" not in chunks[-1]
    assert verify({"receipts": chunks[-1]["receipts"]}, body)[0] == 0


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in items:
        if isinstance(each, dict | list) and each:
            yield from leaves(each, (*path, key))
        else:
            yield (*path, key)


def changed(value: Any) -> Any:
    """Another value of the same type and form."""
    if isinstance(value, bool | None):
        return "x" if value is None else not value
    if isinstance(value, int | float):
        return value + 1
    if isinstance(value, list):
        return ["x"]
    return {"near": "far", "far": "near", "passed": "untested", "untested": "passed"}.get(value) or (
        ("0" if value[0] != "0" else "1") + value[1:]
    )


def test_a_change_of_each_field_is_found(verify: Verify, greedy: dict[str, Any]) -> None:
    """Of the receipt and of its signature, also if the request is not known."""
    [signed] = greedy["receipts"]
    assert verify(signed, None)[0] == 0
    paths = [path for path in leaves(signed) if "token_ids" not in path or path[-1] == 0]
    assert len(paths) > 25
    for path in paths:
        other = copy.deepcopy(signed)
        part: Any = other
        for key in path[:-1]:
            part = part[key]
        part[path[-1]] = changed(part[path[-1]])
        status, report = verify(other, None)
        assert status == 2, path
        assert not report.get("verified"), path


def signed_again(served: Served, whole: dict[str, Any], **choice: Any) -> dict[str, Any]:
    """The answer with a receipt of the same server that states something else: its server lies."""
    other = copy.deepcopy(whole)
    receipt = other["receipts"][0]["receipt"]
    receipt["choices"][0] |= choice
    other["receipts"][0]["signature"] = ReceiptKey(served.key).sign(receipt).model_dump()
    return other


def test_a_server_that_states_other_tokens_is_found_out(served: Served, verify: Verify, greedy: dict[str, Any]) -> None:
    body = {**CASES["greedy"], **WITH_TOKENS}
    token_ids = greedy["choices"][0]["token_ids"]
    assert len(token_ids) > 2

    def report_of(ids: list[int], **choice: Any) -> str:
        lie = signed_again(served, greedy, token_ids=ids, answer=tokens_hash(ids), answer_tokens=len(ids), **choice)
        lie["choices"][0]["token_ids"] = ids
        status, report = verify(lie, body)
        assert status == 2
        [fault, *_] = report["receipts"][0]["faults"]
        return str(fault)

    # Another token, with both tokens and their probabilities.
    other = [token_ids[0], (token_ids[1] + 1) % 256, *token_ids[2:]]
    assert f"token 1 is {other[1]}, whose probability is" in report_of(other)
    assert "breaks off after 2 tokens" in report_of(token_ids[:2])
    assert "and the receipt has more" in report_of([*token_ids, token_ids[0]])
    assert "the receipt says 'length'" in report_of(token_ids, finish_reason="length")
    assert "of this model are" in json.dumps(
        verify(signed_again(served, greedy, token_ids=[1 << 30], answer=tokens_hash([1 << 30]), answer_tokens=1), body)
    )


def test_an_answer_whose_text_was_changed_is_found(verify: Verify, greedy: dict[str, Any]) -> None:
    body = {**CASES["greedy"], **WITH_TOKENS}
    other = copy.deepcopy(greedy)
    other["choices"][0]["message"]["content"] += "!"
    status, report = verify(other, body)
    assert (status, report["receipts"][0]["faults"]) == (2, ["answer 0: its text is not that of its tokens"])


def test_no_choice_is_shown_that_the_receipt_does_not_cover(verify: Verify, greedy: dict[str, Any]) -> None:
    body = {**CASES["greedy"], **WITH_TOKENS}
    [genuine] = greedy["choices"]
    forged = {**genuine, "message": {**genuine["message"], "content": "27 + 58 = 99"}}

    def report_of(*choices: dict[str, Any]) -> str:
        status, report = verify({**greedy, "choices": choices}, body)
        assert status == 2
        return json.dumps(report)

    for choices in ((forged, genuine), (genuine, forged), ({**forged, "index": 1}, genuine), ()):
        assert "are not those of an answer" in report_of(*choices)
    assert "the answer has 2 choices, and the receipt is of 1" in report_of(genuine, {**forged, "index": 1})
    message = {**genuine["message"], "refusal": "No.", "annotations": [{}]}
    other = {**greedy, "prompt_token_ids": [1], "choices": [{**genuine, "message": message, "text": "99"}]}
    status, report = verify(other, body)
    assert status == 0
    assert "no receipt covers annotations, prompt_token_ids, refusal, text" in json.dumps(report)


@pytest.mark.parametrize(
    "change",
    [
        {"temperature": 0.5},
        {"messages": [{"role": "user", "content": "what is 27 + 59?"}]},
        {"max_tokens": 5},
        {"logit_bias": {"1": 1}},
    ],
)
def test_another_request_is_found(verify: Verify, greedy: dict[str, Any], change: dict[str, Any]) -> None:
    status, report = verify(greedy, {**CASES["greedy"], **change})
    assert (status, report["receipts"][0]["faults"][0]) == (2, "the receipt is of another request")


def test_other_seeds_and_samplings_are_found(served: Served, verify: Verify) -> None:
    body = {**CASES["top_k"], **WITH_TOKENS}
    answer = served.ask(body)
    [signed] = answer["receipts"]
    assert signed["receipt"]["sampling"] == {
        "temperature": 2, "top_k": 9, "top_p": 1, "min_p": 0.001, "repetition_penalty": 1, "frequency_penalty": 0,
        "presence_penalty": 0,
    }  # fmt: skip
    assert "seed" in verify(signed_again(served, answer, seed=8), body)[1]["receipts"][0]["faults"][0]
    lie = copy.deepcopy(answer)
    lie["receipts"][0]["receipt"]["sampling"]["top_k"] = 8
    lie["receipts"][0]["signature"] = ReceiptKey(served.key).sign(lie["receipts"][0]["receipt"]).model_dump()
    assert "sampling" in verify(lie, body)[1]["receipts"][0]["faults"][0]


def test_only_the_keys_that_are_named_may_sign(
    served: Served, verify: Verify, greedy: dict[str, Any], tmp_path: Path
) -> None:
    new_key(tmp_path / "other.pem")
    status, report = verify(greedy, None, "--signed-by", str(tmp_path / "other.pem.pub"))
    assert (status, report["receipts"][0]["trusted"]) == (2, False)
    status, report = verify(greedy, None)
    assert (status, report["receipts"][0]["trusted"]) == (0, None)
    assert verify(greedy, None, "--signed-by", str(served.key))[0] == 2


def test_what_is_not_a_receipt_is_refused_by_name(
    served: Served, verify: Verify, greedy: dict[str, Any], tmp_path: Path
) -> None:
    assert "has no receipts" in json.dumps(verify({"choices": []}, None))
    assert "is not a JSON object" in json.dumps(verify([], None))
    later = copy.deepcopy(greedy)
    later["receipts"][0]["receipt"]["version"] = 2
    assert "not one of this version" in json.dumps(verify(later, None))
    shutil.copytree(served.path, tmp_path / "other")
    manifest = json.loads((tmp_path / "other/manifest.json").read_text())
    (tmp_path / "other/manifest.json").write_text(json.dumps({**manifest, "model": "other"}))
    status, report = verify(greedy, None, "--bundle", str(tmp_path / "other"))
    assert status == 2
    assert "the receipt is of bundle" in report["receipts"][0]["faults"][0]


def test_the_bundle_may_be_a_models_name(
    served: Served, verify: Verify, greedy: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = list[str]()

    def default_bundle(checkpoint: str, *_: object) -> Path:
        compiled.append(checkpoint)
        return served.path

    monkeypatch.setitem(sys.modules, CACHE, SimpleNamespace(default_bundle=default_bundle))
    assert verify(greedy, None, "--bundle", "demo")[0] == 0
    assert compiled == [str(CHECKPOINT)]


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("receipts", 0, "signature", "public_key"), "AAAAA"),
        (("receipts", 0, "receipt", "sampling", "temperature"), float("nan")),
        (("choices", 0, "index"), []),
        (("choices", 0, "message", "tool_calls"), 5),
    ],
)
def test_a_forged_answer_is_an_error_of_its_file(
    verify: Verify, greedy: dict[str, Any], place: tuple[Any, ...], value: Any
) -> None:
    forged = copy.deepcopy(greedy)
    part = forged
    for name in place[:-1]:
        part = part[name]
    part[place[-1]] = value
    status, report = verify(forged, {"model": "fake", **CASES["greedy"]})
    # Calls that are no calls are not those of the answer, and nothing else is wrong with it.
    assert status == (0 if place[-1] == "tool_calls" else 2), report


@pytest.mark.parametrize(
    "body",
    [{"messages": 5}, {"messages": [{"content": [{"type": []}]}]}, {"prompt": "a", "n": "x"}, {"prompt": "a", "n": 0}],
)
def test_a_wrong_request_is_refused_by_name_though_the_receipt_has_its_hash(
    served: Served, verify: Verify, greedy: dict[str, Any], body: dict[str, Any]
) -> None:
    signed = copy.deepcopy(greedy["receipts"][0])
    signed["receipt"]["request"] = request_hash(body)
    signed["signature"] = ReceiptKey(served.key).sign(signed["receipt"]).model_dump()
    status, report = verify(signed, body)
    assert (status, report["error"]["code"]) == (2, "request_error"), report


def test_a_forged_receipt_writes_nothing_over_the_terminal(
    served: Served, tmp_path: Path, greedy: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    forged = copy.deepcopy(greedy["receipts"][0])
    forged["receipt"]["device"]["name"] = "x\x1b[2K\n[green]verified[/]"
    (tmp_path / "forged.json").write_text(json.dumps(forged))
    assert main(["verify", str(tmp_path / "forged.json"), "--bundle", str(served.path)]) == 2
    shown = capsys.readouterr().out
    assert "x\ufffd[2K\ufffd[green]verified[/]" in shown


def test_a_part_is_verified_if_the_request_has_images(served: Served, verify: Verify, greedy: dict[str, Any]) -> None:
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    body = {"messages": [{"role": "user", "content": [part]}], "temperature": 0}
    other = copy.deepcopy(greedy)
    receipt = other["receipts"][0]["receipt"]
    receipt["request"] = request_hash(body)
    other["receipts"][0]["signature"] = ReceiptKey(served.key).sign(receipt).model_dump()
    status, report = verify(other, body)
    assert status == 0
    assert any("the request has images" in note for note in report["receipts"][0]["notes"])


def test_a_server_refuses_receipts_that_it_cannot_give(served: Served) -> None:
    body = {**CASES["greedy"], "receipt": True}
    refused = served.ask(body, signs=False, status=400)["error"]
    assert (refused["param"], "--receipt-key" in refused["message"]) == ("receipt", True)
    # JSON's numbers above 2^53 differ from language to language.
    deep = {**FORMAT, "json_schema": {"name": "x", "schema": {"const": 1 << 60}}}
    refused = served.ask({**body, "response_format": deep}, status=400)["error"]
    assert "the request.response_format.json_schema.schema.const" in refused["message"]


def test_a_request_covers_what_decides_an_answer_and_nothing_else() -> None:
    body = {"messages": ASKED, "seed": 1, "user": None}
    more = {"stream": True, "stream_options": {}, "receipt": True, "return_token_ids": True, "model": "x"}
    assert request_hash(body) == request_hash({"seed": 1, "messages": ASKED, **more})
    assert request_hash(body) != request_hash({**body, "user": "me"})


def test_the_texts_are_those_of_the_vectors() -> None:
    cases = json.loads((Path(__file__).parents[2] / "conformance/receipts.json").read_text(encoding="utf-8"))
    script = SharedScript.of_thread()
    for case in cases["canonical"]:
        assert script.ask("canonicalJson", case["value"]) == case["text"]
    for case in cases["requests"]:
        assert (script.ask("requestText", case["request"]), request_hash(case["request"])) == (
            case["text"],
            case["sha256"],
        )
    for case in cases["tokens"]:
        assert tokens_hash(case["token_ids"]) == case["sha256"]
    for value in cases["refused"]:
        with pytest.raises(RequestError, match="a receipt could cover"):
            script.ask("canonicalJson", value)
    from nearfar.server_fallback.receipts.signing import is_signed
    from nearfar.server_fallback.schema.receipt import SignedReceipt

    for case in cases["signed"]:
        signed = SignedReceipt.model_validate(case)
        assert is_signed(case["receipt"], signed.signature)
        assert not is_signed({**case["receipt"], "time": 0}, signed.signature)
