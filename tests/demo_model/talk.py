"""Stories, small talk, and the answers to requests that the model cannot fulfil."""

from __future__ import annotations

import random
import re
from dataclasses import replace

from .example import Example, Split
from .phrasing import Phrasings, expand, phrase
from .words import ANIMALS, NAMES, THINGS, real_word, with_article, word

ASK_STORY = Phrasings(
    training=(
        "(tell|write|give|read) me (a|a short|another|one) (story|tale) (about|of|with) {subject}",
        "(write|make up|invent) a( short|) (story|tale) (about|of|with) {subject}",
        "~(a|a short|one) (story|tale) (about|of|with) {subject}",
        "~i want (to hear |)a( short|) story (about|with) {subject}",
        "~story( about|:) {subject}",
        "~do you know a story about {subject}",
        "tell a( short|) (story|tale) about {subject}",
        "~let me hear a story about {subject}",
    ),
    held_out=(
        "come up with a story about {subject}",
        "~once upon a time with {subject}",
        "~have you got a story about {subject}",
        "~my child wants a story about {subject}",
    ),
)
STORY = (
    "(Once upon a time there was|Long ago there lived|Once there was) {introduced}. "
    "(One morning|One evening|One day|In the night) {it} (found|saw|lost) (a golden key|a small boat|an old map|a red "
    "lantern) "
    "(by the river|in the forest|on the hill|under the bridge). "
    '"(What a day|How strange|I must be brave|Who will help me)," (said|thought|whispered) {it}. '
    "(A friendly cloud|An old turtle|The wind|A little star) (showed the way|sang a song|came to help|told a secret), "
    "and {it} (slept well|was never alone again|went home happy|laughed until sunset). The end."
)
UNKNOWN = Phrasings(
    training=(
        "~(what|where|when|who) (is|was|are) (the |)(capital|king|president|population|weather) (of|in|for) {name}",
        "~(what|where|when|who) (is|was|are) (the |)(history|color|price|meaning|owner) (of|in|for) {thing}",
        "~who (invented|wrote|made|found) the {thing}",
        "~(when|where) (was|is) {name}( born| from|)",
        "~how (tall|old|big|far|heavy) is (the |){thing}",
        "~why (is|do|does|are) (the |){thing}( so|) (big|small|old|red|work|happen)",
        "translate {thing} (to|into) (french|german|spanish|{other})",
        "~what (does|do) {thing} mean",
        "~explain (the |){thing}",
        "write (a poem|code|an essay|a song|a letter) (about|for) {thing}",
        "~what (time|day|date) is it",
        "~(do you|can you) (like|know|love|see|eat) (the |){thing}",
        "~is (the |){thing} (good|bad|healthy|alive)",
        "~tell me about {thing}",
        "~who is {name}",
        "~what is (a |an |the |){thing}",
        "~(what is|what's) the (weather|news) (today|tomorrow|in {name})",
        "~how (do|can) (i|you) (make|cook|build|fix) (a |){thing}",
        "~{thing}",
        "~{thing} {other}",
    ),
    held_out=(
        "~what do you think about {thing}",
        "~which {thing} is the best",
        "~where can i buy {thing}s",
        "~what happened to {name}",
        "~is {name} your friend",
        "~what is the best {thing} in {name}",
    ),
)
UNKNOWN_ANSWER = "I do not know that. I can run home commands, add, subtract, sort, spell and tell stories."
TOO_HARD = Phrasings(
    training=(
        "~{a} (*|x|times|/|divided by|:) {b}",
        "~(what is|what's|how much is|calculate|compute|work out) {a} (*|x|times|/|divided by|multiplied by) {b}",
        "(multiply|divide) {a} (by|and|with) {b}",
        "~{c} (+|-) {b}",
        "~(what is|what's|calculate|how much is) {c} (+|-|plus|minus) {b}",
        "~{a} (+|-) {c}",
        "~(what is|what's) {a} (+|-|plus|minus) {c}",
        "~{c}(+|-){b}",
        "~(what is |)the square root of {a}",
        "~{a}(*|/){b}",
        "~(what is |){a} percent of {b}",
    ),
    held_out=(
        "~what does {a} times {b} equal",
        "find {a} * {b}",
        "~{a} multiplied by {b} is what",
        "~what is half of {a}",
        "~what does {c} plus {b} equal",
    ),
)
TOO_HARD_ANSWER = "I can only add and subtract whole numbers up to 999."
FAR_TOO_HARD_ANSWER = "I can only add whole numbers up to 99999 and subtract up to 999."
INTENTS = (
    (
        "Hello! Give me a home command, a sum, a list to sort, or ask for a story.",
        Phrasings(
            training=(
                "~(hello|hi|hey|hi there|hey there|hello there|greetings|hallo|yo)( computer| model| friend| bot|)",
                "~good (morning|evening|day)( computer| model| friend| bot|)",
                "~(hello|hi|hey)",
            ),
            held_out=("~hello to you", "~good afternoon", "~hello again"),
        ),
    ),
    (
        "I am fine, thank you. What can I do for you?",
        Phrasings(
            training=(
                "~(hello, |hi, |hey, |)how are you( today| doing|)",
                "~how (is it going|do you do|do you feel)",
                "~are you (ok|okay|well|fine)",
                "~how are things",
            ),
            held_out=("~how are you feeling today", "~is all well with you"),
        ),
    ),
    (
        "You are welcome!",
        Phrasings(
            training=(
                "~(thanks|thank you|thx|many thanks|great, thanks|thank you so much|thanks a lot|cool, thanks|perfect, "
                "thank you)",
                "~that (was|is) (great|nice|good|helpful)",
                "~(well done|good job|nice work|nice|great|cool|perfect)",
            ),
            held_out=("~ok, thank you very much", "~thanks for the help"),
        ),
    ),
    (
        "Goodbye!",
        Phrasings(
            training=(
                "~(bye|goodbye|good bye|see you|see you later|good night|bye bye|ciao|talk to you later|i have to go)",
            ),
            held_out=("~bye for now", "~see you tomorrow"),
        ),
    ),
    (
        "I am a small demo model, about one million numbers trained from nothing.",
        Phrasings(
            training=(
                "~(who|what) are you",
                "~what is your name",
                "~are you (a robot|human|real|an ai|a model|a person|chatgpt)",
                "~tell me about (you|yourself)",
                "~who (made|built|trained) you",
                "~how (big|large|old) are you",
                "~what model are you",
                "~introduce yourself",
            ),
            held_out=("~what should i call you", "~who am i talking to", "~what kind of model are you"),
        ),
    ),
    (
        "I can run home commands, add and subtract, sort, spell, reverse words, find numbers and e-mails, and tell "
        "stories.",
        Phrasings(
            training=(
                "~what can you do( for me|)",
                "~(help|help me)",
                "~what (do you know|are you able to do|are you good at|can i ask you|can i say)",
                "~how can you help( me|)",
                "~what (commands|tasks|things) (do you know|can you do)",
                "~show me what you can do",
            ),
            held_out=("~how do you work for me", "~what is it that you can do", "~tell me what you can do"),
        ),
    ),
)

# The far model's answers about itself.
FAR_ANSWERS = {
    "I am a small demo model, about one million numbers trained from nothing.": (
        "I am the larger demo model, more than one million numbers."
    ),
    "I can run home commands, add and subtract, sort, spell, reverse words, find numbers and e-mails, and tell "
    "stories.": (
        "I can run home commands, calculate, sort, spell, reverse words, find numbers and e-mails, read a short text, "
        "and tell stories."
    ),
}


def story(rng: random.Random, split: Split) -> Example:
    """A story about an animal or a person. Its parts are drawn freely, so every story of the grammar counts as
    correct.
    """
    if rng.random() < 0.25:
        name = word(rng, NAMES, split, pseudo_share=0.3).capitalize()
        subject, introduced, it = name, f"a child called {name}", name
    else:
        animal = real_word(rng, ANIMALS, split) if rng.random() < 0.6 else word(rng, THINGS, split, pseudo_share=0.7)
        subject, introduced, it = with_article(animal), with_article(animal), f"the {animal}"
    prompt, template = phrase(rng, ASK_STORY, split, subject=subject)
    answer = expand(rng, STORY).format(introduced=introduced, it=it)
    return Example("story", prompt, answer, template, accepted=_all_stories(introduced, it))


def small_talk(rng: random.Random, split: Split) -> Example:
    answer, phrasings = rng.choice(INTENTS)
    prompt, template = phrase(rng, phrasings, split)
    return Example("small_talk", prompt, answer, template)


def far_small_talk(rng: random.Random, split: Split) -> Example:
    example = small_talk(rng, split)
    return replace(example, answer=FAR_ANSWERS.get(example.answer, example.answer))


def refusal(rng: random.Random, split: Split) -> Example:
    """Questions about the world, and arithmetic beyond the trained tasks."""
    return _refusal(rng, split, 4, TOO_HARD_ANSWER)


def far_refusal(rng: random.Random, split: Split) -> Example:
    return _refusal(rng, split, 6, FAR_TOO_HARD_ANSWER)


def _refusal(rng: random.Random, split: Split, fewest_digits: int, too_hard_answer: str) -> Example:
    """``fewest_digits`` is the least number of digits of a number that is too long to add."""
    if rng.random() < 0.6:
        name = word(rng, NAMES, split).capitalize()
        prompt, template = phrase(
            rng, UNKNOWN, split, thing=word(rng, THINGS, split), other=word(rng, THINGS, split), name=name
        )
        return Example("refusal", prompt, UNKNOWN_ANSWER, template)
    top = 10 ** rng.randint(1, 3) - 1
    while True:
        a, b = rng.randint(0, top), rng.randint(0, top)
        if split.allows(f"{a}*{b}"):
            break
    if rng.random() < 0.7:
        beyond: float = rng.randint(10 ** (fewest_digits - 1), 10 ** rng.randint(fewest_digits, fewest_digits + 3))
    else:
        beyond = rng.randint(0, 999) / 10
    prompt, template = phrase(rng, TOO_HARD, split, a=a, b=b, c=beyond)
    return Example("refusal", prompt, too_hard_answer, template)


def _all_stories(introduced: str, it: str) -> str:
    """The grammar as a regular expression: its choices are written in the same way."""
    literal = re.sub(r"([.?])", r"\\\1", STORY).replace("(", "(?:")
    return literal.format(introduced=re.escape(introduced), it=re.escape(it))
