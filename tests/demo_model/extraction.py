"""Finding numbers and e-mail addresses in a sentence. Instruction and sentence vary independently and are held out
together.
"""

from __future__ import annotations

import random

from .example import Example, Split
from .phrasing import Phrasings, expand, phrase
from .words import COMMON, NAMES, THINGS, pseudo_word, word

IN = "( in| from| in this text| from this text| in this sentence| in the following|)"
FIND_NUMBERS = Phrasings(
    training=(
        f"(find|extract|list|get|show|pick out|give me) (the|all|all the) numbers{IN}: {{text}}",
        "~which numbers are in( this|): {text}",
        "~(numbers|numbers in): {text}",
        "~what numbers (are|do you see) in( this| this sentence|): {text}",
        '(find|extract) the numbers (in|from) "{text}"',
    ),
    held_out=(
        "~which numbers does this text contain: {text}",
        "pull the numbers out of: {text}",
        "read the numbers in this: {text}",
        '~what are the numbers in "{text}"',
    ),
)
FIND_EMAIL = Phrasings(
    training=(
        f"(find|extract|get|show|pick out|give me) the (email|e-mail|email address|mail address|address){IN}: {{text}}",
        "~(which|what) (email|e-mail|address) is in( this|): {text}",
        "~(email|email in|e-mail): {text}",
        "~what (email|email address) do you see in( this|): {text}",
        '(find|extract) the (email|e-mail) (in|from) "{text}"',
        "~what is the (email|email address)( here| in this|): {text}",
    ),
    held_out=(
        "~which email address does this text contain: {text}",
        "pull the email out of: {text}",
        "read the email address in this: {text}",
        '~what is the email in "{text}"',
    ),
)
NUMBER_SENTENCES = Phrasings(
    training=(
        "{name} (bought|has|sold|found|ate|needs) {n} {thing}s and {m} {other}s",
        "(the|a) {thing} costs {n} (dollars|euros|coins)",
        "{name} is {n} years old",
        "we (need|have|saw) {n} {thing}s, {m} {other}s and {k} {name}s",
        "(bus|train|room|page|flight) {n} (leaves|starts|opens) at {m}",
        "{n} {thing}s for {name}",
        "i (have|bought|saw|need) {n} {thing}s and {m} {other}s",
        "i (paid|got|sent) {n} for {m} {thing}s",
        "call {name} at {n} or {m}",
        "{name} ran {n} (miles|km|meters) in {m} minutes",
    ),
    held_out=(
        "between {n} and {m} {thing}s were lost by {name}",
        "{name} lives at {n} {thing} street",
        "take {n} {thing}s, then {m} {other}s, then {k} more",
        "in {n} {name} had {m} {thing}s",
    ),
)
EMAIL_SENTENCES = Phrasings(
    training=(
        "(write|send it|talk|reply) to {email}( today| now| please| soon|)",
        "my (email|address|mail) is {email}",
        "(contact|ask|reach) {name} at {email}( today| by friday|)",
        "{name} uses {email} for {thing}s",
        "please send the {thing} to {email}( and call {name}|)",
        "{email} is the address of {name}",
        "(hi|hello) {name}, my new address is {email}, thanks",
        "for {thing}s mail {email}",
        "{name} <{email}> sent {n} {thing}s",
        "{email}",
        "from {email} about the {thing}",
    ),
    held_out=(
        "you can get {name} under {email} until {n}",
        "the {thing} was ordered by {email} at {n}",
        "ask for {name}, or use {email}",
        "if the {thing} is late, {email} will know",
    ),
)
JUMBLED_SHARE = 0.4
ENDINGS = ("com", "com", "com", "org", "net", "io", "de", "co.uk", "fr", "edu", "es", "dev")
DOMAINS = ("example", "example", "mail", "post", "company", "school", "gmail", "home", "shop", "test")


def numbers(rng: random.Random, split: Split) -> Example:
    """One to three numbers of one to four digits, in the order of the text."""
    while True:
        n, m, k = (str(rng.randint(0, 10 ** rng.randint(1, 4) - 1)) for _ in range(3))
        if split.allows(f"{n} {m}"):
            break
    template = rng.choice(NUMBER_SENTENCES.of(split))
    text = _sentence(rng, template, split, n=n, m=m, k=k)
    found = [value for key, value in (("{n}", n), ("{m}", m), ("{k}", k)) if key in template]
    if not split.phrasing_is_held_out and rng.random() < JUMBLED_SHARE:
        found = [n, m, k][: rng.randint(1, 3)]
        text = _jumble(rng, split, found)
    prompt, instruction = phrase(rng, FIND_NUMBERS, split, text=text)
    return Example("numbers", prompt, ", ".join(found), instruction)


def email(rng: random.Random, split: Split) -> Example:
    address = _address(rng, split)
    text = _sentence(rng, rng.choice(EMAIL_SENTENCES.of(split)), split, email=address, n=rng.randint(1, 99))
    if not split.phrasing_is_held_out and rng.random() < JUMBLED_SHARE:
        text = _jumble(rng, split, [address])
    prompt, instruction = phrase(rng, FIND_EMAIL, split, text=text)
    return Example("email", prompt, address, instruction)


def _jumble(rng: random.Random, split: Split, found: list[str]) -> str:
    """Unrelated words around the values to be found, because extraction must not depend on the sentence."""
    pieces = [word(rng, rng.choice((COMMON, THINGS, NAMES)), split, pseudo_share=0.3) for _ in range(rng.randint(1, 7))]
    places = sorted(rng.randint(0, len(pieces)) for _ in found)
    for index, (piece, place) in enumerate(zip(found, places, strict=True)):
        pieces.insert(place + index, piece + rng.choice(("", "", "", ",")))
    return " ".join(pieces)


def _sentence(rng: random.Random, template: str, split: Split, **slots: object) -> str:
    name = word(rng, NAMES, split, pseudo_share=0.3)
    things = {"thing": word(rng, THINGS, split), "other": word(rng, THINGS, split)}
    return expand(rng, template).format(name=name.capitalize(), **things, **slots)


def _address(rng: random.Random, split: Split) -> str:
    while True:
        user = rng.choice(("{a}", "{a}", "{a}.{b}", "{a}_{b}", "{a}{n}", "{c}.{a}", "{a}-{b}", "{a}.{n}")).format(
            a=word(rng, NAMES, split, pseudo_share=0.4).lower(),
            b=word(rng, NAMES, split, pseudo_share=0.4).lower(),
            c=rng.choice("abcdefghijklmnoprstw"),
            n=rng.randint(1, 99),
        )
        domain = rng.choice(DOMAINS) if rng.random() < 0.4 else pseudo_word(rng, split)
        address = f"{user}@{domain}.{rng.choice(ENDINGS)}"
        if split.allows(address):
            return address
