"""The texts that the finder learns from and is measured with: frames of `frames.txt`, into which names, addresses,
numbers and other words are written.

Every fifth word of each list of `words.txt` and the frames of the sections "held out" are left out of training.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType

from demo_encoder.repository_text import markdown_passages

HERE = Path(__file__).parent
# Those of OpenAI's privacy filter, so that a policy is good for both.
KINDS = (
    "private_person", "private_address", "private_email", "private_phone", "private_date", "account_number", "secret",
)  # fmt: skip
KIND_OF_PLACE: Mapping[str, str] = MappingProxyType(
    {
        "person": "private_person", "given": "private_person", "family": "private_person", "spelled": "private_person",
        "address": "private_address", "email": "private_email", "phone": "private_phone", "birth": "private_date",
        "account": "account_number", "secret": "secret",
    }
)  # fmt: skip
MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)  # fmt: skip
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
# Parts of invented names and words, so that a name is also found by its surroundings.
ONSETS = [
    "b",
    "br",
    "c",
    "ch",
    "d",
    "dr",
    "f",
    "g",
    "gr",
    "h",
    "j",
    "k",
    "kl",
    "l",
    "m",
    "n",
    "p",
    "pr",
    "r",
    "s",
    "sh",
    "st",
    "t",
    "th",
    "tr",
    "v",
    "w",
    "y",
    "z",
]
VOWELS = ["a", "a", "e", "e", "i", "o", "u", "ai", "ou", "ee", "ia"]
CODAS = ["", "", "", "n", "r", "l", "s", "m", "t", "nd", "ck", "rt"]
LETTERS = "abcdefghijklmnopqrstuvwxyz"
# What is known by itself, wherever it is.
ANYWHERE = ("person", "given", "family", "address", "email", "phone")
ALONE = ("city", "company", "thing", "topic", "noun", "Noun", "word", "Word", "number", "day", "month", "time", "date")
PLACE = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True, slots=True)
class Example:
    """A text, and its private parts: from a character to before another one, and their kind."""

    text: str
    spans: tuple[tuple[int, int, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Writer:
    """Writes words into places: those of training, or the held-out ones."""

    held_out: bool

    def text(self, frame: str, rng: random.Random) -> Example:
        """A frame with words."""
        text, spans, at = "", [], 0
        for place in PLACE.finditer(frame):
            text += frame[at : place.start()]
            word = self.word(place[1], rng)
            kind = KIND_OF_PLACE.get(place[1])
            if kind is not None:
                spans.append((len(text), len(text) + len(word), kind))
            text, at = text + word, place.end()
        return Example(text + frame[at:], tuple(spans))

    def word(self, place: str, rng: random.Random) -> str:
        made: Callable[[random.Random], str] | None = {
            "person": self._person, "spelled": self._spelled, "address": self._address, "email": self._email,
            "family": lambda rng: self._name("family", rng), "given": lambda rng: self._name("given", rng),
            "phone": _phone, "account": _account, "secret": _secret, "birth": lambda rng: _date(rng, 1930, 2010),
            "date": lambda rng: _date(rng, 2015, 2030), "number": _number, "age": lambda rng: str(rng.randint(1, 99)),
            "day": lambda rng: rng.choice(DAYS), "month": lambda rng: rng.choice(MONTHS), "time": _time,
            "year": lambda rng: str(rng.randint(1900, 2030)), "hash": lambda rng: f"{rng.getrandbits(256):064x}",
            "uuid": _uuid, "word": _identifier, "Word": lambda rng: _capital(_identifier(rng)),
            "Verb": lambda rng: self._of("verb", rng).capitalize(),
            "Noun": lambda rng: self._of("noun", rng).capitalize(),
        }.get(place)  # fmt: skip
        return self._of(place, rng) if made is None else made(rng)

    def _of(self, section: str, rng: random.Random) -> str:
        return rng.choice(words(section, held_out=self.held_out))

    def _name(self, section: str, rng: random.Random) -> str:
        """Held-out names are all of people; a third of those of training are invented."""
        name = self._of(section, rng)
        if not self.held_out and rng.random() < 0.35:
            name = invented(rng).capitalize()
        if section == "family" and rng.random() < 0.05:
            name += f"-{self._of(section, rng)}"
        return name

    def _person(self, rng: random.Random) -> str:
        if rng.random() < 0.12:
            return self._of("named in other scripts", rng)
        given, family = self._name("given", rng), self._name("family", rng)
        return rng.choices(
            (
                f"{given} {family}", f"{given} {rng.choice(LETTERS).upper()}. {family}", f"{family}, {given}",
                f"{given[0]}. {family}", f"{given} {self._name('given', rng)} {family}", given,
                f"{given} {family}".lower(), f"{given} {family}".upper(), f"{given[0]}.{family}",
            ),
            (60, 5, 5, 5, 5, 8, 6, 4, 2),
        )[0]  # fmt: skip

    def _spelled(self, rng: random.Random) -> str:
        name = rng.choice((self._name("given", rng), self._name("family", rng)))
        name = rng.choice((name, name.upper(), name.lower())).replace(" ", "")
        return rng.choice((" ", "-", " - ", ". ", ".")).join(name)

    def _address(self, rng: random.Random) -> str:
        street, city, number = self._of("street", rng), self._of("city", rng), rng.randint(1, 250)
        code = f"{rng.randrange(100_000):05}"
        kind = rng.choice(("Street", "Road", "Avenue", "Lane", "St.", "Rd", "Ave", "Drive", "Way", "Court", "Blvd"))
        line = rng.choice((f"{number} {street} {kind}", f"{number}{rng.choice('abc')} {street} {kind}"))
        german = f"{street}{rng.choice(('straße', 'weg', 'gasse', 'str.', 'allee', ' Straße'))} {number}"
        other = f"{rng.choice(('rue de', 'via', 'calle', 'ul.', 'rua', 'avenue de'))} {street} {number}"
        state = "".join(rng.sample(LETTERS.upper(), 2))
        address = rng.choice(
            (
                line, f"{line}, {city}", f"{line}, {city}, {state} {code}", f"{line}, apt {rng.randint(1, 40)}, {city}",
                german, f"{german}, {code} {city}", f"{german} in {code} {city}", other, f"{other}, {code} {city}",
                f"{line}\n{city} {code}", f"Flat {rng.randint(1, 40)}, {line}",
            )
        )  # fmt: skip
        return address.lower() if rng.random() < 0.08 else address

    def _email(self, rng: random.Random) -> str:
        given, family = (_ascii(self._name(each, rng)) for each in ("given", "family"))
        user = rng.choice(
            (f"{given}.{family}", given, f"{given[0]}{family}", f"{given}_{family}", f"{family}{rng.randint(1, 99)}")
        )
        domain = rng.choice(
            ("example.org", "mail.example.com", f"{invented(rng)}.net", f"{invented(rng)}.co.uk", "gmail.com")
        )
        return f"{user}@{domain}".lower()


def draw(rng: random.Random, *, held_out: bool = False, private: bool | None = None) -> Example:
    """A text of one to three frames. ``private``: whether it has something private; None for both."""
    if private is None:
        private = rng.random() < 0.6
    writer = Writer(held_out)
    parts = [_first(writer, rng, private=private)]
    while len(parts) < 3 and rng.random() < 0.35:
        more = "private" if private and rng.random() < 0.4 else "harmless"
        parts.insert(rng.randint(0, 1), writer.text(rng.choice(frames(more, held_out=held_out)), rng))
    return _case(joined(parts, rng.choice((" ", " ", "\n", "\n\n"))), rng)


def _first(writer: Writer, rng: random.Random, *, private: bool) -> Example:
    """Held-out texts are frames. Of the others, a third is of this repository's, and a third of those with something
    private has it in any place of any text, so that surroundings alone decide little.
    """
    frame = rng.choice(frames("private" if private else "harmless", held_out=writer.held_out))
    if not writer.held_out and rng.random() < 0.1:
        # A string of JSON has no surroundings.
        return writer.text(f"{{{rng.choice(ANYWHERE if private else ALONE)}}}", rng)
    if writer.held_out or rng.random() > 0.35:
        return writer.text(frame if writer.held_out else _with_other_words(frame, rng), rng)
    if not private:
        return Example(_part(rng.choice(passages()), rng))
    harmless = rng.choice((frame, rng.choice(frames("harmless", held_out=False)), _part(rng.choice(passages()), rng)))
    words_of_it = list(re.finditer(r"(?<![\w{])[a-z]+(?![\w}])", harmless))
    places = sorted(
        rng.sample(words_of_it, min(len(words_of_it), rng.choice((1, 1, 2)))), key=lambda word: word.start()
    )
    text, at = "", 0
    for place in places:
        kind = rng.choices(ANYWHERE, (6, 6, 1, 1, 1, 1))[0]
        text, at = f"{text}{harmless[at : place.start()]}{{{kind}}}", rng.choice((place.end(), place.start()))
        text += "" if at == place.end() else " "
    return writer.text(text + harmless[at:], rng)


def _with_other_words(frame: str, rng: random.Random) -> str:
    """A frame, in half of the cases with some of its words replaced."""
    share = rng.choice((0.0, 0.3))
    return re.sub(
        r"(?<![\w{])[a-z]+(?![\w}])", lambda word: rng.choice(vocabulary()) if rng.random() < share else word[0], frame
    )


def joined(parts: Sequence[Example], separator: str) -> Example:
    text, spans = "", []
    for index, part in enumerate(parts):
        text += separator if index else ""
        spans += [(start + len(text), end + len(text), kind) for start, end, kind in part.spans]
        text += part.text
    return Example(text, tuple(spans))


@cache
def frames(section: str, *, held_out: bool) -> tuple[str, ...]:
    """ "private" or "harmless"."""
    return tuple(
        line.replace(r"\n", "\n") for line in _sections("frames.txt")[f"{section}, held out" if held_out else section]
    )


@cache
def words(section: str, *, held_out: bool) -> tuple[str, ...]:
    every = [word.strip() for word in " ".join(_sections("words.txt")[section]).split(",")]
    every = list(dict.fromkeys(word for word in every if word))
    return tuple(word for index, word in enumerate(every) if (index % 5 == 0) == held_out)


@cache
def passages() -> tuple[str, ...]:
    """Of this repository's documents, without those that name people or have braces, which would be places."""
    names = {*words("given", held_out=False), *words("given", held_out=True)}
    return tuple(
        passage.text
        for passage in markdown_passages()
        if not re.search(r" et al|\{", passage.text) and not names & set(re.findall(r"\w+", passage.text))
    )


@cache
def vocabulary() -> tuple[str, ...]:
    """The words of those passages and of the frames of training, each as often as it occurs."""
    texts = (*passages(), *frames("private", held_out=False), *frames("harmless", held_out=False))
    return tuple(word for text in texts for word in re.findall(r"(?<![\w{])[a-z]{2,}(?![\w}])", text))


@cache
def _sections(file: str) -> Mapping[str, tuple[str, ...]]:
    sections: dict[str, list[str]] = {}
    for line in (HERE / file).read_text("utf-8").splitlines():
        if re.fullmatch(r"\[[a-z, ]+\]", line):
            sections[line[1:-1]] = []
        elif line and sections:
            next(reversed(sections.values())).append(line)
    return {name: tuple(lines) for name, lines in sections.items()}


def invented(rng: random.Random) -> str:
    """A word of two or three syllables that may be a name."""
    syllables = rng.choice((1, 2, 2, 2, 3))
    return "".join(rng.choice(ONSETS) + rng.choice(VOWELS) + rng.choice(CODAS) for _ in range(syllables))


def _part(text: str, rng: random.Random, most: int = 140) -> str:
    start = rng.randrange(max(1, len(text) - most))
    return text[start : start + most]


def _case(example: Example, rng: random.Random) -> Example:
    """A tenth of the texts is in lower case, and a few in capitals."""
    chosen = rng.random()
    text = example.text.lower() if chosen < 0.1 else example.text.upper() if chosen < 0.13 else example.text
    return example if len(text) != len(example.text) else Example(text, example.spans)


def _ascii(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter in LETTERS) or "info"


def _capital(word: str) -> str:
    return "".join(part.capitalize() for part in word.split("_"))


def _identifier(rng: random.Random) -> str:
    noun, verb = words("noun", held_out=False), words("verb", held_out=False)
    return rng.choice(
        (
            rng.choice(noun),
            f"{rng.choice(verb)}_{rng.choice(noun)}",
            f"{rng.choice(noun)}_{rng.choice(noun)}",
            invented(rng),
        )
    )


def _number(rng: random.Random) -> str:
    return str(rng.randrange(10 ** rng.randint(1, 5)))


def _time(rng: random.Random) -> str:
    hour, minute = rng.randrange(24), rng.randrange(60)
    return rng.choice((f"{hour}:{minute:02}", f"{hour % 12 + 1} pm", f"{hour % 12 + 1}:{minute:02} am", "noon"))


def _date(rng: random.Random, first: int, last: int) -> str:
    day, month, year = rng.randint(1, 28), rng.randint(1, 12), rng.randint(first, last)
    name = MONTHS[month - 1]
    return rng.choice(
        (
            f"{day} {name} {year}", f"{name} {day}, {year}", f"{year}-{month:02}-{day:02}",
            f"{month:02}/{day:02}/{year}",
            f"{day:02}.{month:02}.{year}", f"{day}. {name} {year}", f"{day} {name[:3]} {year}",
        )
    )  # fmt: skip


def _digits(rng: random.Random, count: int) -> str:
    return "".join(rng.choice("0123456789") for _ in range(count))


def _phone(rng: random.Random) -> str:
    country = rng.choice(("+1", "+49", "+44", "+33", "0049", "+91", "+7", "+81"))
    return rng.choice(
        (
            f"{country} {_digits(rng, 3)} {_digits(rng, 7)}",
            f"({_digits(rng, 3)}) {_digits(rng, 3)}-{_digits(rng, 4)}",
            f"{_digits(rng, 3)}-{_digits(rng, 3)}-{_digits(rng, 4)}", f"0{_digits(rng, 3)} {_digits(rng, 6)}",
            f"{country}-{_digits(rng, 3)}-{_digits(rng, 3)}-{_digits(rng, 4)}", f"0{_digits(rng, 3)}/{_digits(rng, 7)}",
            f"{country}{_digits(rng, 10)}", f"{_digits(rng, 3)}.{_digits(rng, 3)}.{_digits(rng, 4)}",
        )
    )  # fmt: skip


def _account(rng: random.Random) -> str:
    country = "".join(rng.sample(LETTERS.upper(), 2))
    fours = " ".join(_digits(rng, 4) for _ in range(4))
    return rng.choice(
        (
            fours, fours.replace(" ", ""), fours.replace(" ", "-"), f"{country}{_digits(rng, 20)}",
            f"{country}{_digits(rng, 2)} {fours} {_digits(rng, 2)}", _digits(rng, 10),
            f"{_digits(rng, 3)}-{_digits(rng, 2)}-{_digits(rng, 4)}",
            f"{country}-{_digits(rng, 7)}",
        )
    )  # fmt: skip


def _secret(rng: random.Random) -> str:
    alphabet = LETTERS + LETTERS.upper() + "0123456789"
    random_part = "".join(rng.choice(alphabet) for _ in range(rng.randint(8, 32)))
    return rng.choice(
        (
            random_part, f"sk-{random_part}", f"ghp_{random_part}", f"{invented(rng).capitalize()}{_digits(rng, 4)}!",
            f"{invented(rng)}-{invented(rng)}-{invented(rng)}", f"{invented(rng)}{_digits(rng, 3)}", f"{random_part}=="
        )
    )  # fmt: skip


def _uuid(rng: random.Random) -> str:
    digits = f"{rng.getrandbits(128):032x}"
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def examples(seed: str, count: int, *, held_out: bool, private: bool | None = None) -> Iterator[Example]:
    rng = random.Random(seed)
    for _ in range(count):
        yield draw(rng, held_out=held_out, private=private)
