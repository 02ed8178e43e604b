"""The messages between the processes of a server: each is a frame, which is a length and a pickle. A call gets a result
or an error.

Pickle is safe here, because both sides run our own code with the same rights, and nobody else can reach the socket or
the pipe.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import IO, Any, Concatenate, Generic, ParamSpec, TypeVar, overload

HEADER_BYTES = 8
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Call:
    """``number`` is the caller's. `Returned` answers it. ``cancels``: the work on it is for the caller alone, so it
    ends when that is gone.
    """

    number: int
    message: object
    cancels: bool = False


@dataclass(frozen=True, slots=True)
class Ask(Generic[Result]):
    """A message that is a call of a method: that of an object's class, for the object that the other side has. Returns
    what the method returns. `ask` makes one with the arguments of its method.
    """

    method: Callable[..., Any]
    arguments: tuple[Any, ...]

    def of(self, owner: object) -> Any:
        return self.method(owner, *self.arguments)


@overload
def ask(
    method: Callable[Concatenate[Any, Arguments], Coroutine[Any, Any, Result]],
    *given: Arguments.args,
    **named: Arguments.kwargs,
) -> Ask[Result]: ...


@overload
def ask(
    method: Callable[Concatenate[Any, Arguments], Result], *given: Arguments.args, **named: Arguments.kwargs
) -> Ask[Result]: ...


def ask(method: Callable[..., Any], *given: Any, **named: Any) -> Ask[Any]:
    assert not named, "arguments are sent without names"
    return Ask(method, given)


@dataclass(frozen=True, slots=True)
class Cancel:
    """Nobody awaits the result of a call any more."""

    number: int


@dataclass(frozen=True, slots=True)
class Returned:
    """The result of a call, or its error. ``ends``: the process ends after it, because it holds more memory than it
    may.
    """

    number: int
    value: object
    error: Exception | None = None
    ends: bool = False


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the result of a call, before it is `Returned`."""

    number: int
    value: object


@dataclass(frozen=True, slots=True)
class Beat:
    """The event loop works, and the device's current step has taken ``step_seconds``, 0 without one."""

    step_seconds: float = 0.0


def frame(message: object) -> bytes:
    data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    return len(data).to_bytes(HEADER_BYTES, "little") + data


def size_of(header: bytes | bytearray) -> int:
    """The size of the pickle after a header."""
    return int.from_bytes(header, "little")


def write_frame(stream: IO[bytes], message: object) -> None:
    stream.write(frame(message))
    stream.flush()


def read_frame(stream: IO[bytes]) -> Any:
    """Raises EOFError if the other side has ended."""
    header = stream.read(HEADER_BYTES)
    data = stream.read(size_of(header)) if len(header) == HEADER_BYTES else b""
    if not data:
        raise EOFError("the other process has ended")
    return pickle.loads(data)
