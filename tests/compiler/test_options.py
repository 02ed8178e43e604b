"""Options: from the fields of a dataclass to a command line and back, and the same checks from both."""

from __future__ import annotations

from dataclasses import field
from pathlib import Path
from typing import Annotated, Literal

import pytest

from nearfar.compiler import quant
from nearfar.compiler.cli.parser import Parser, add_options, make
from nearfar.compiler.names import QUANTIZATIONS
from nearfar.compiler.options import Count, Flag, Group, Option, Trust, declared, options
from nearfar.compiler.pipeline.options import CompileOptions
from nearfar.compiler.runtime.errors import RequestError
from nearfar.server_fallback.cli.options import Serve


@options
class Oven:
    degrees: int = 180
    """how hot"""
    secret: int = 7


@options
class Bake:
    """example: bake bread"""

    what: Annotated[str, Flag(metavar="WHAT", place=True)]
    """what to bake"""
    also: Annotated[tuple[str, ...], Flag(metavar="ALSO", place=True)] = ()
    """what else"""
    loaves: Annotated[Count, Flag(("-n", "--loaves"))]
    """how many (default: none, so that
    it is required)"""
    seeds: tuple[Literal["rye", "flax"], ...] = ()
    """on top; may be repeated"""
    spices: Annotated[tuple[str, ...], Flag(several=True)] = ("salt", "caraway")
    """inside"""
    size: tuple[int, int] | None = None
    """in centimetres"""
    crust: bool = True
    """leave out the crust"""
    slice: bool = False
    """slice it"""
    tin: Path | None = None
    """100% steel"""
    trust: Trust = ()
    oven: Oven = field(default_factory=Oven)
    """the oven"""


def baked(*arguments: str) -> Bake:
    parser = Parser(prog="bake")
    add_options(parser, Bake)
    return make(Bake, vars(parser.parse_args(arguments)))


def test_what_is_not_given_has_the_default_of_its_field() -> None:
    assert baked("bread", "-n", "2") == Bake(what="bread", loaves=2)


def test_every_kind_of_option_is_read() -> None:
    given = (
        "bread rolls buns --loaves=3 --seeds rye --seeds flax --spices anise fennel --size 20 30 --no-crust --slice "
        "--tin t --trust a.pub --trust b.pub --degrees 200"
    )
    assert baked(*given.split()) == Bake(
        what="bread",
        also=("rolls", "buns"),
        loaves=3,
        seeds=("rye", "flax"),
        spices=("anise", "fennel"),
        size=(20, 30),
        crust=False,
        slice=True,
        tin=Path("t"),
        trust=(Path("a.pub"), Path("b.pub")),
        oven=Oven(degrees=200),
    )


def test_an_option_may_be_shortened_as_long_as_it_is_the_only_one() -> None:
    assert baked("bread", "--loav", "2").loaves == 2


def test_the_help_holds_the_text_below_each_field_and_its_default() -> None:
    parser = Parser(prog="bake")
    add_options(parser, Bake)
    text = " ".join(parser.format_help().split())
    for words in (
        "WHAT what to bake",
        "-n N, --loaves N how many (default: none, so that it is required)",
        "--spices SPICES [SPICES ...] inside (default: salt caraway)",
        "--no-crust leave out the crust",
        "--tin TIN 100% steel",
        "--trust KEY load only bundles that this public key has signed",
        "the oven: --degrees N how hot (default: 180)",
    ):
        assert words in text
    assert "secret" not in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("bread", "the following arguments are required: -n/--loaves"),
        ("bread -n 0", "argument -n/--loaves: 0 is less than 1"),
        ("bread -n two", "argument -n/--loaves: 'two' is not a number"),
        ("bread -n 1 --seeds rey", "unknown seeds 'rey'; did you mean 'rye'? (known: rye, flax)"),
        ("bread -n 1 --sedes rye", "unknown option --sedes; did you mean --seeds?"),
        ("bread -n 1 --secret 3", "unknown option --secret"),
    ],
)
def test_a_wrong_command_line_is_refused(arguments: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        baked(*arguments.split())
    assert exit_info.value.code == 2
    assert message in capsys.readouterr().err


def test_python_is_refused_what_the_command_line_is() -> None:
    with pytest.raises(RequestError, match="--loaves: 0 is less than 1"):
        Bake(what="bread", loaves=0)
    with pytest.raises(RequestError, match="--seeds: unknown seeds 'rey'; did you mean 'rye'"):
        Bake(what="bread", loaves=1, seeds=("rey",))  # type: ignore[arg-type]


@pytest.mark.parametrize("owner", [CompileOptions, Serve])
def test_options_have_names_of_their_own(owner: type) -> None:
    def names(owner: type) -> list[str]:
        return [
            name for each in declared(owner) for name in (names(each.type) if isinstance(each, Group) else each.names)
        ]

    assert len(names(owner)) == len(set(names(owner)))


def test_the_weight_formats_are_those_of_the_compiler() -> None:
    assert {quant.by_name(name).name for name in QUANTIZATIONS} == set(QUANTIZATIONS)
    (option,) = (each for each in declared(CompileOptions) if each.field == "quantization")
    assert isinstance(option, Option)
    assert f"default: {quant.DEFAULT}, and {quant.ENCODER_DEFAULT} of encoders" in option.text
