"""Options from a TOML file, checked as those of the command line are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from command_line import parsed

from nearfar.compiler.cli import main
from nearfar.compiler.options import Group, Option, OptionFile, changed, declared
from nearfar.compiler.runtime.errors import RequestError
from nearfar.server_fallback.cli.options import Gateway, Serve
from nearfar.server_fallback.kv_tiers.options import KvTierOptions

FILE = """
models = ["demo", "./local"]
port = 0
lenient = true
client_share = 0.25
kv_memory = "1.5GiB"
kv_host_memory = "8GB"
kv_disk = "100GB"
kv_folder = "pages"
kv_key_file = "keys/kv"
body_memory = 1000
batch_delay_ms = 2
batch_sizes = [8, 16]
trust = ["keys/a.pub"]
max_sequences = 3
access_log = false
trusted_proxy = ["10.0.0.7", "10.1.0.0/16"]

[aliases]
gpt = "demo"
"org/other" = "./local"

[[keys]]
name = "web"
key = "sk-web-12345678"
tokens_per_minute = 100
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "nearfar.toml"
    (tmp_path / "local").mkdir()
    path.write_text(FILE)
    return path


def test_a_file_has_every_option_and_the_command_line_precedes_it(file: Path) -> None:
    options = parsed("serve", "--config", str(file), "--max-sequences", "5", "--lenient")
    local = str(file.parent / "local")
    assert options.models == ("demo", local)
    assert options.alias == ("gpt=demo", f"org/other={local}")
    assert (options.port, options.local.max_sequences, options.local.max_waiting) == (0, 5, 256)
    assert (options.local.kv_memory_bytes, options.access.body_memory_bytes) == (3 << 29, 1000)
    assert (options.local.batching.max_delay_seconds, options.local.batching.preferred_sizes) == (0.002, (8, 16))
    assert options.local.kv_tiers == KvTierOptions(
        host_memory_bytes=8 * 10**9,
        disk_bytes=10**11,
        folder=file.parent / "pages",
        key_file=file.parent / "keys/kv",
    )
    assert options.local.trust == (file.parent / "keys/a.pub",)
    assert (options.access.lenient, options.access.access_log, options.access.client_share) == (True, False, 0.25)
    assert options.access.trusted_proxies == ("10.0.0.7/32", "10.1.0.0/16")
    assert [(key.name, key.tokens_per_minute) for key in options.keys] == [("web", 100)]
    assert parsed("serve", "other", "--config", str(file)).models == ("other",)


def test_no_two_options_have_the_same_key_and_each_is_that_of_the_command_line() -> None:
    def keys(owner: type) -> list[str]:
        found = list[str]()
        for each in declared(owner):
            if isinstance(each, Group):
                found += keys(each.type)
            elif isinstance(each, Option) and each.type is not OptionFile:
                found.append(each.key)
        return found

    for owner in (Serve, Gateway):
        names = keys(owner)
        assert len(set(names)) == len(names) > 20
        assert all(re.fullmatch(r"[a-z][a-z0-9_]*", name) for name in names)
    assert {"models", "aliases", "keys", "max_body", "tls_cert", "executor", "dialect"} <= set(keys(Serve))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("max_sequence = 1", ":1: max_sequence: unknown key; did you mean 'max_sequences'?"),
        ("\nmax-sequences = 1", ":2: max-sequences: unknown key; did you mean 'max_sequences'?; keys have underscores"),
        ("config = 'other.toml'", "config: unknown key"),
        ("alias = ['a=b']", "alias: unknown key; did you mean 'aliases'?"),
        ("max_sequences = '4'", ":1: max_sequences: must be an integer, not a string"),
        ("max_sequences = true", "must be an integer, not a boolean"),
        ("max_sequences = 0", ":1: max_sequences: 0 is less than 1"),
        ("lenient = 1", "lenient: must be true or false, not an integer"),
        ("client_share = 2.0", "client_share: 2.0 is not a share"),
        ("kv_memory = '4 bananas'", "kv_memory: '4 bananas' is not a size"),
        ("kv_memory = {}", "kv_memory: must be a string or a number, not a table"),
        ("executor = 'vlm'", "executor: unknown executor 'vlm'; did you mean 'vllm'?"),
        ("models = 'demo'", "models: must be a list, not a string"),
        ("models = [1]", "models: must be a string, not an integer"),
        ("[aliases]\na = 1", ":1: aliases: must be a table of models by their other names"),
        ("[[keys]]\nname = 'a'\nkey = 'sk-secret-1'\nrate = 1", ":1: keys: keys.0.rate: unknown key"),
        ("[[keys]]\nname = 'a'\nkey = 'sk-secret-1'\nmax_concurrant = 1", "did you mean 'max_concurrent'?"),
        ("[[keys]]\nname = 'a'", "needs exactly one of 'key' and 'sha256'"),
        ("x = sk-secret-1", "is not TOML (at line 1"),
    ],
)
def test_a_mistake_is_named_with_its_place(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "nearfar.toml"
    file.write_text(text)
    with pytest.raises(RequestError) as refused:
        parsed("serve", "demo", "--config", str(file))
    assert says in refused.value.message
    assert str(file) in refused.value.message
    assert "secret" not in refused.value.message


def test_a_missing_file_and_a_missing_option_are_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--config", str(tmp_path / "none.toml")]) == 2
    assert "none.toml: cannot be read: No such file" in " ".join(capsys.readouterr().err.split())
    file = tmp_path / "gateway.toml"
    file.write_text("near = 'demo'\nfar = 'http://127.0.0.1:9'")
    with pytest.raises(RequestError, match="--policy is required; give it here, or as 'policy'"):
        parsed("gateway", "--config", str(file))
    options = parsed("gateway", "--config", str(file), "--policy", "p.json")
    assert (options.near, options.far, options.policy) == ("demo", "http://127.0.0.1:9", Path("p.json"))


def test_a_file_is_read_again_behind_the_same_command_line(file: Path) -> None:
    before = parsed("serve", "--config", str(file), "--max-sequences", "5")
    assert changed(before, before.config.again()) == []
    file.write_text(FILE.replace("max_sequences = 3", "max_sequences = 4").replace("lenient = true", ""))
    after = before.config.again()
    assert [(option.key, option.flag.reloads) for option in changed(before, after)] == [("lenient", True)]
    file.write_text(FILE.replace("port = 0", "port = 1"))
    assert [(option.key, option.flag.reloads) for option in changed(before, before.config.again())] == [("port", False)]
