"""Modelfiles are read as Ollama reads them, whose documentation and parser are the source of the cases."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nearfar.compiler.runtime.errors import RequestError
from nearfar.compiler.store.model import Changes, Demo, StoredMessage, StoredModel
from nearfar.compiler.store.modelfile import MAX_BYTES, read_modelfile, read_modelfile_file, write_modelfile
from nearfar.compiler.store.parameters import Parameters


def read(text: str | bytes, folder: Path | None = None) -> Changes:
    return read_modelfile(text, folder).changes


def test_all_commands_in_any_case_and_order(tmp_path: Path) -> None:
    (tmp_path / "lora").mkdir()
    found = read_modelfile(
        """
# A cook.
parameter temperature 0.2
PARAMETER num_ctx 4096
System   You are a cook.
FROM    demo
adapter ./lora
Parameter stop <|end|>
PARAMETER stop "Guest: "
MESSAGE user What is for dinner?
MESSAGE assistant \"\"\"Soup.
With bread.\"\"\"
LICENSE MIT
LICENSE \"\"\"
And another.
\"\"\"
TEMPLATE {{ .Prompt }}
""",
        tmp_path,
    )
    assert found.base == "demo"
    assert found.changes == Changes(
        system="You are a cook.",
        template="{{ .Prompt }}",
        parameters=Parameters(temperature=0.2, num_ctx=4096, stop=["<|end|>", "Guest: "]),
        messages=(
            StoredMessage(role="user", content="What is for dinner?"),
            StoredMessage(role="assistant", content="Soup.\nWith bread."),
        ),
        adapter=tmp_path / "lora",
        license=("MIT", "\nAnd another.\n"),
    )


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("a b", "a b"),
        ("  a  ", "a"),
        ('"  a  "', "  a  "),
        ('"a"', "a"),
        ('""', ""),
        ('""""""', ""),
        ('"""a"""', "a"),
        ('"""a"""   ', "a"),
        ('"""\na\n"""', "\na\n"),
        ('"""a\n\n  b"""', "a\n\n  b"),
        ('"""with "quotes" inside"""', 'with "quotes" inside'),
        ('"a\nb"', "a\nb"),
        ('"""a\n# no comment\nFROM b"""', "a\n# no comment\nFROM b"),
        ("it's # all", "it's # all"),
        ("'a'", "'a'"),
        ('a "b"', 'a "b"'),
        ('"""a\r\nb"""', "a\r\nb"),
        ("日本\u3000語 👩\u200d🍳", "日本\u3000語 👩\u200d🍳"),
    ],
)
def test_values(value: str, expected: str) -> None:
    assert read(f"FROM demo\nSYSTEM {value}").system == expected
    assert read(f"FROM demo\nSYSTEM {value}\nPARAMETER seed 1").system == expected


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_encodings(encoding: str) -> None:
    assert read("FROM demo\r\nSYSTEM Grüße\r\n".encode(encoding)).system == "Grüße"


def test_the_last_of_several_values_counts() -> None:
    found = read("FROM demo\nSYSTEM a\nPARAMETER top_k 3\nSYSTEM b\nPARAMETER top_k 4")
    assert (found.system, found.parameters.top_k) == ("b", 4)


@pytest.mark.parametrize("path", ["model.gguf", "./model.gguf", "folder"])
def test_from_is_a_path_if_there_is_one(path: str, tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    (tmp_path / "folder").mkdir()
    assert read_modelfile(f"FROM {path}", tmp_path).base == str(tmp_path / path)
    absolute = str(tmp_path / path)
    assert read_modelfile(f"FROM {absolute}", Path("elsewhere")).base == absolute


@pytest.mark.parametrize("name", ["demo", "qwen3:4b", "hf.co/Qwen/Qwen3-0.6B-GGUF:Q8_0", "Qwen/Qwen3-0.6B"])
def test_other_names_are_not_changed(name: str, tmp_path: Path) -> None:
    assert read_modelfile(f"FROM {name}", tmp_path).base == name
    assert read_modelfile(f"FROM {name}", None).base == name


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no FROM"),
        ("SYSTEM x", "has no FROM"),
        ("FROM", "line 1: FROM has no value"),
        ("FROM \nSYSTEM x", "line 1: FROM has no value"),
        ("FROM demo\n\nSYSTM x", "line 3: unknown command 'SYSTM'; did you mean 'SYSTEM'"),
        ("FROM demo\nFROM other", "line 2: a second FROM"),
        ("FROM demo\nPARAMETER stop", "line 2: PARAMETER needs a name and a value"),
        ("FROM demo\nPARAMETER", "line 2: PARAMETER has no value"),
        ("FROM demo\nPARAMETER colour 3", "line 2: PARAMETER colour is not a parameter"),
        ("FROM demo\nPARAMETER top_k many", "line 2: PARAMETER top_k"),
        ("FROM demo\nPARAMETER temperature -1", "line 2: PARAMETER temperature"),
        ("FROM demo\nPARAMETER repeat_penalty 1.1\nPARAMETER repeat_last_n 64", "PARAMETER repeat_last_n"),
        ("FROM demo\nMESSAGE cook hello", "line 2: the role of a MESSAGE is system or user or assistant, not 'cook'"),
        ("FROM demo\nMESSAGE user", "line 2: MESSAGE needs a role and a text"),
        ('FROM demo\nSYSTEM """a\n\n""', 'line 2: the value that begins with """ does not end'),
        ('FROM demo\nSYSTEM "', 'line 2: the value that begins with " does not end'),
        ("FROM demo\nRENDERER qwen3", "line 2: RENDERER is not supported: it names code of Ollama"),
        ("FROM demo\nPARSER qwen3", "line 2: PARSER is not supported"),
        ("FROM demo\nREQUIRES 0.14.0", "line 2: REQUIRES is not supported"),
        ('FROM demo\nTEMPLATE """\n{{ .Nothing }}"""', "TEMPLATE: line 3, column 4: .Nothing is not a field"),
        ("FROM demo\nTEMPLATE {% if %}", "template: line 1"),
        ("FROM demo\nTEMPLATE {% if x %}" + "{{ (" * 9_000, "template: "),
        ('FROM demo\nTEMPLATE ""', "line 2: TEMPLATE is empty"),
        ("FROM demo\nSYSTEM a\x00b", "line 2: has the control character '\\\\x00'"),
        (b"FROM demo\nSYSTEM \xff", "is not UTF-8"),
        ("FROM ./missing.gguf", "line 1: FROM: .*missing.gguf does not exist"),
        ("FROM demo\nADAPTER missing", "line 2: ADAPTER: .*missing does not exist"),
        ("FROM demo\nADAPTER Modelfile", "line 2: ADAPTER: .*Modelfile is a file; name the folder of a LoRA adapter"),
        ("#" * (MAX_BYTES + 1), "is larger than 1 MiB"),
        ("FROM demo\n" + "SYSTEM x\n" * 10_000, "line 10001: has more than 10,000 commands"),
    ],
)
def test_what_is_no_modelfile_is_refused_with_its_line(text: str | bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "Modelfile").write_text("FROM demo")
    with pytest.raises(RequestError, match=message):
        read_modelfile(text, tmp_path)


def test_paths_do_not_leave_the_folder_of_the_modelfile(tmp_path: Path) -> None:
    folder, other = tmp_path / "own", tmp_path / "other"
    (folder / "weights").mkdir(parents=True)
    other.mkdir()
    (other / "secret.gguf").write_bytes(b"GGUF")
    (folder / "link.gguf").symlink_to(other / "secret.gguf")
    (folder / "weights/model.safetensors").symlink_to(other / "secret.gguf")
    (folder / "inside.gguf").symlink_to(folder / "weights")
    (folder / "part-00001-of-00002.gguf").write_bytes(b"GGUF")
    (folder / "part-00002-of-00002.gguf").symlink_to(other / "secret.gguf")
    wrong = ("../other/secret.gguf", "link.gguf", "weights", "./weights/../../other/secret.gguf")
    for path in (*wrong, "part-00001-of-00002.gguf"):
        with pytest.raises(RequestError, match="leads out of the Modelfile's folder"):
            read_modelfile(f"FROM {path}", folder)
    with pytest.raises(RequestError, match=r"ADAPTER: .* leads out of the Modelfile's folder"):
        read_modelfile("FROM demo\nADAPTER ../other", folder)
    (folder / "weights/model.safetensors").unlink()
    assert read_modelfile("FROM inside.gguf", folder).base == str(folder / "inside.gguf")


@pytest.mark.parametrize("line", ["FROM /etc/passwd", "FROM ~/x", "FROM ./x", "FROM x.gguf", "ADAPTER ./x"])
def test_a_text_from_elsewhere_names_no_paths(line: str) -> None:
    with pytest.raises(RequestError, match="a path, which only a Modelfile on this machine may"):
        read_modelfile(f"{line}\nFROM demo", None)


def test_a_template_is_read_without_running_what_it_computes() -> None:
    """Jinja's compiler computes constants: here one of 100 GB, and one that takes for ever."""
    bomb = "{% if true %}{{ 'x' * 10**11 }}{{ 9**9**9 }}{% endif %}"
    assert read(f"FROM demo\nTEMPLATE {bomb}").template == bomb


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="is not a file"):
        read_modelfile_file(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(RequestError, match="is not a file"):
        read_modelfile_file(tmp_path / "pipe")
    (tmp_path / "Modelfile").write_text("FROM demo\nnothing")
    with pytest.raises(RequestError, match=f"{tmp_path}/Modelfile: line 2: unknown command"):
        read_modelfile_file(tmp_path / "Modelfile")


def test_a_long_value_of_empty_lines_is_read_at_once() -> None:
    for line in ("\n", '"\n', '"" \n'):
        value = line * 100_000
        assert read(f'FROM demo\nSYSTEM """\n{value}"""').system == f"\n{value}"


@pytest.mark.parametrize("system", ["plain", "", " spaces ", "lines\nand lines\n", '"quoted"', 'ends with """', "é\t."])
def test_what_is_written_reads_back(system: str) -> None:
    changes = Changes(
        system=system,
        template='{{ .Prompt }}\n"""{{ .Response }}',
        parameters=Parameters(temperature=0.5, stop=["a\nb", "</s>"], use_mmap=True, seed=3),
        messages=(StoredMessage(role="user", content="hi\n"), StoredMessage(role="assistant", content="ho")),
        license=("MIT", "two\nlines"),
    )
    given = {each: getattr(changes, each) for each in ("system", "template", "parameters", "messages", "license")}
    source = Demo(name="demo", size_bytes=1)
    model = StoredModel.model_construct(name="chef", source=source, **given)
    found = read_modelfile(write_modelfile(model), None)
    assert found.base == "demo"
    assert found.changes == changes


def test_a_value_that_no_modelfile_has_becomes_a_comment() -> None:
    source = Demo(name="demo", size_bytes=1)
    model = StoredModel.model_construct(name="a", source=source, system='a"""\nFROM b')
    written = write_modelfile(model)
    assert "# SYSTEM: a Modelfile cannot have this value" in written
    assert read_modelfile(written, None).base == "demo"
