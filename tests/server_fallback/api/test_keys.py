"""Keys are read from a file and the environment, and never shown."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from nearfar.compiler.runtime.errors import RequestError
from nearfar.server_fallback.api.errors import ApiError
from nearfar.server_fallback.api.keys import read_keys
from nearfar.server_fallback.api.route import authorize

FILE = """
[[keys]]
name = "web"
key = "sk-web-12345678"
requests_per_minute = 30
max_concurrent = 2
priority = 5

[[keys]]
name = "ops"
sha256 = "{digest}"
admin = true
""".format(digest=hashlib.sha256(b"sk-ops-12345678").hexdigest())


def test_keys_come_from_a_file_and_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    file.write_text(FILE)
    keys = read_keys(file, {"NEARFAR_API_KEYS": "ci=sk-ci-1=2345678, admin=sk-admin-123456,"})
    assert [key.name for key in keys.keys] == ["web", "ops", "ci", "admin"]
    web = keys.find("sk-web-12345678")
    assert web is not None
    assert (web.requests_per_minute, web.max_concurrent, web.priority, web.admin) == (30, 2, 5, False)
    assert [keys.find(text).name for text in ("sk-ops-12345678", "sk-ci-1=2345678") if keys.find(text)] == ["ops", "ci"]  # type: ignore[union-attr]
    assert [key.admin for key in keys.keys] == [False, True, False, True]
    assert keys.find("sk-web-1234567") is None
    assert keys.find("") is None
    assert keys.find("\udcff") is None


def test_only_the_key_that_is_called_admin_is_the_admins() -> None:
    keys = read_keys(None, {"NEARFAR_API_KEYS": "admin=sk-admin-123456,admin2=sk-two-123456,not-admin=sk-not-123456"})
    assert [key.name for key in keys.keys if key.admin] == ["admin"]


def test_a_key_is_nowhere_to_be_read(tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    file.write_text(FILE)
    assert "12345678" not in repr(read_keys(file, {}))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("keys = 1", "keys"),
        ("", "keys"),
        ("[[keys]]\nname = 'a'\nkey = secret-123", "not TOML (at line 3"),
        ("[[keys]]\nname = 'a'", "exactly one of 'key' and 'sha256'"),
        ("[[keys]]\nname = 'a'\nkey = 'secret-123'\nsha256 = '" + "0" * 64 + "'", "exactly one of 'key' and 'sha256'"),
        ("[[keys]]\nname = 'a'\nkey = 'short'", "keys.0.key"),
        ("[[keys]]\nname = 'a'\nkey = 'secret-123'\nrate = 1", "keys.0.rate"),
        ("[[keys]]\nname = 'a'\nkey = 'secret-123'\nrequests_per_minute = 0", "keys.0.requests_per_minute"),
        ("[[keys]]\nname = 'a'\nkey = 'secret-123'\n[[keys]]\nname = 'a'\nkey = 'secret-456'", "the same name"),
        ("[[keys]]\nname = 'a'\nkey = 'secret-123'\n[[keys]]\nname = 'b'\nkey = 'secret-123'", "the same text"),
    ],
)
def test_a_wrong_file_is_an_error_without_its_keys(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "keys.toml"
    file.write_text(text)
    with pytest.raises(RequestError) as refused:
        read_keys(file, {})
    assert says in refused.value.message
    assert "secret" not in refused.value.message


def test_a_missing_file_and_a_wrong_environment_are_errors(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="No such file"):
        read_keys(tmp_path / "none.toml", {})
    with pytest.raises(RequestError, match="entry 2 is not name=key") as refused:
        read_keys(None, {"NEARFAR_API_KEYS": "a=sk-12345678,sk-secret-123"})
    assert "secret" not in refused.value.message


def test_authorization_is_bearer_and_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    file.write_text(FILE)
    keys = read_keys(file, {})
    for header in ("Bearer sk-web-12345678", "bearer  sk-web-12345678 "):
        key = authorize(keys, header)
        assert key is not None
        assert key.name == "web"
    for header in ("", "Bearer", "Bearer ", "sk-web-12345678", "Basic sk-web-12345678", "Bearer sk-web-1234567"):
        with pytest.raises(ApiError) as refused:
            authorize(keys, header)
        assert refused.value.status == 401
        assert "sk-web" not in refused.value.message
    with pytest.raises(ApiError) as refused:
        authorize(keys, "Bearer sk-web-12345678", admin=True)
    assert refused.value.status == 403
    assert authorize(keys, "Bearer sk-ops-12345678", admin=True) is not None


def test_without_keys_everyone_may_send_requests_and_no_one_is_admin() -> None:
    keys = read_keys(None, {})
    assert authorize(keys, "") is None
    assert authorize(keys, "Bearer whatever") is None
    with pytest.raises(ApiError) as refused:
        authorize(keys, "", admin=True)
    assert refused.value.status == 403
