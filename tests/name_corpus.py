"""Names and addresses of people in many forms, which patterns do not find, and what the demo finder finds of them.

No word of a name is in the demo finder's recipe, and no sentence is a frame of it.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from demo_finder.checkpoint import CONTEXT
from demo_finder.opened import opened
from mask_corpus import HARMLESS, PATTERNS, Case, Measured, called, results, user
from plain_target import compile_plain

from nearfar.compiler.bundle.folder import Bundle
from nearfar.server_fallback.router.decision.policy import Policy
from nearfar.server_fallback.router.sides.finder import Finder

NAMES = (
    "Rosalind Fairweather", "Thaddeus Okonkwo", "Marguerite Villeneuve", "Anselm Krautwurst", "Saoirse Gallagher",
    "Bartholomew Higgins", "Ignatius Pemberton", "Ludmila Hrdlička", "Kaito Fujimoto", "Esperanza Zamora",
)  # fmt: skip
OTHER_SCRIPTS = ("Людмила Захарова", "Аркадий Белов", "欧阳明慧", "渡辺陽介", "خالد الزهراني", "Σπύρος Αλεξίου")
ADDRESSES = (
    "48 Larkspur Crescent, Nottingham", "7 Hawthorn Close", "Kastanienallee 82, 10435 Leipzig",
    "1093 Cypress Hollow Rd",
)  # fmt: skip
SENTENCES = (
    "I had an argument with {} about the rent.", "Yours faithfully,\n{}", "Would {} like a book about trains?",
    "The witness, {}, left before noon.",
)  # fmt: skip
# Texts of the kind that people ask about, with capitals, places and things.
PLAIN = (
    "What is the capital of Slovenia?", "Write a haiku about autumn leaves.", "Explain Bernoulli's principle.",
    "Why is my Raspberry Pi so hot?", "Translate 'good evening' into Portuguese.", "Sort [5, 3, 9] in Rust.",
    "How do I cook risotto?", "What is the difference between TCP and UDP?", "Is Pluto a planet?",
    "Which bus goes to the airport on Sunday?", "Fix this: SELEC * FROM orders;", "Suggest a title for my thesis.",
    "How many litres are in a gallon?", "Summarise the French Revolution in three sentences.",
    "Who won the World Cup in 2014?", "My laptop does not start.", "Give me five synonyms of happy.",
    "What does HTTP 418 mean?", "Plan a weekend in Lisbon.", "Turn off the lights in the hall.",
)  # fmt: skip
PATTERNS_ALONE: dict[str, Any] = {
    "version": 1,
    "mode": "auto",
    "private": {"masks": {"patterns": [{"kind": kind, "pattern": pattern} for kind, pattern in PATTERNS.items()]}},
}
ENTITIES = [{"label": kind, "kind": kind} for kind in ("PERSON", "ADDRESS")]
POLICY = {**PATTERNS_ALONE, "private": {"masks": {**PATTERNS_ALONE["private"]["masks"], "entities": ENTITIES}}}


def named() -> Iterator[Case]:
    for index, name in enumerate(NAMES):
        for sentence in SENTENCES:
            yield Case("a name in a sentence", user(sentence.replace("{}", name)), (name,))
        sentence = SENTENCES[index % len(SENTENCES)].replace("{}", name)
        yield Case("in lower case", user(sentence.lower()), (name.lower(),))
        yield Case("in code", user(f'owner = "{name}"\nrun(owner)'), (name,))
        yield Case("in JSON", user(json.dumps({"guest": name, "nights": 2})), (name,))
        yield Case("in a tool's call", called(json.dumps({"guest": name})), (name,))
        yield Case(
            "letter by letter", user(f"It is spelled {' '.join(name.split()[1])}."), (" ".join(name.split()[1]),)
        )
    for name in OTHER_SCRIPTS:
        yield Case("in another script", user(f"I am writing to {name} about the rent."), (name,))
    for address in ADDRESSES:
        yield Case("an address", user(f"Please deliver the sofa to {address} tomorrow."), (address,))


def measured(checkpoint: Path) -> dict[str, Any]:
    """``forms``: of each, the requests whose private text does not leave with the finder and with patterns alone, and
    all. ``alarms``: the harmless texts that are masked or kept near with the finder, with patterns alone, and all.
    """

    async def work(bundle: Bundle) -> dict[str, Any]:
        harmless = (*HARMLESS, *PLAIN)
        async with opened(bundle) as executor:
            forms, alarms = await results(named(), harmless, Policy.read(POLICY), Finder.of(executor))
        alone, alarms_alone = await results(named(), harmless, Policy.read(PATTERNS_ALONE))
        kept = {form: [_kept(each), _kept(alone[form]), _kept(each) + each.leaks] for form, each in forms.items()}
        return {"forms": kept, "alarms": [alarms, alarms_alone, len(harmless)]}

    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(work(compile_plain(checkpoint, Path(folder) / "finder", "q8f16", CONTEXT)))


def _kept(measured: Measured) -> int:
    return measured.masked + measured.near
