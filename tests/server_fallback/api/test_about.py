"""/v1/nearfar/about: the facts that clients check before they share answers with a server."""

from __future__ import annotations

from dataclasses import dataclass, replace

from asgi import ask
from fake_models import FakeExecutor, FakeModels

from nearfar.server_fallback.api.config import ApiConfig
from nearfar.server_fallback.api.keys import read_keys
from nearfar.server_fallback.executors.executor import Abilities

KEY = "sk-web-12345678"


@dataclass
class OwnExecutor(FakeExecutor):
    def abilities(self) -> Abilities:
        can = Abilities("5ha", 509, tools=False, embeds=False, verify=True, vision=True, video=True)
        return replace(can, model="Own-1B")


def test_our_own_models_report_their_tokens_and_upstreams_the_known_counts() -> None:
    about = ask(
        "GET", "/v1/nearfar/about", models=FakeModels(fake=OwnExecutor(), loaded={"there": FakeExecutor()})
    ).json()
    assert about["api_version"] == 1
    own, _, upstream = about["models"]
    assert own == {
        "id": "fake",
        "model": "Own-1B",
        "context": 256,
        "tokenizer_sha256": "5ha",
        "vocab_size": 509,
        "tools": False,
        "verify": True,
        "prefill": False,
        "vision": True,
        "video": True,
        "sound": False,
        "transcribes": False,
    }
    assert upstream == {
        "id": "there",
        "model": None,
        "context": None,
        "tokenizer_sha256": None,
        "vocab_size": None,
        "tools": True,
        "verify": False,
        "prefill": False,
        "vision": False,
        "video": False,
        "sound": False,
        "transcribes": False,
    }


def test_models_that_chat_hear_if_the_server_has_a_transcriber() -> None:
    @dataclass
    class Speech(FakeExecutor):
        def abilities(self) -> Abilities:
            return Abilities("5ha", 509, tools=False, embeds=False, sound=True)

    @dataclass
    class Encoder(FakeExecutor):
        def abilities(self) -> Abilities:
            return Abilities("5ha", 509, tools=False, embeds=True)

    loaded = {"there": FakeExecutor(), "whisper": Speech(), "e5": Encoder()}
    models = FakeModels(fake=OwnExecutor(), loaded=loaded)
    about = ask("GET", "/v1/nearfar/about", models=models, config=ApiConfig(transcriber="whisper")).json()
    hearing = {model["id"]: model["sound"] for model in about["models"]}
    assert [hearing[name] for name in ("fake", "there", "whisper", "e5")] == [True, True, False, False]
    assert [model["id"] for model in about["models"] if model["transcribes"]] == ["whisper"]


def test_it_needs_a_key_if_the_server_has_keys() -> None:
    config = ApiConfig(keys=read_keys(None, {"NEARFAR_API_KEYS": f"web={KEY}"}))
    assert ask("GET", "/v1/nearfar/about", config=config).status_code == 401
    assert ask("GET", "/v1/nearfar/about", config=config, authorization=f"Bearer {KEY}").status_code == 200
