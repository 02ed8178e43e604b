"""Words for slots: real words, and pseudo-words made of syllables, so that the model learns to copy unknown words."""

from __future__ import annotations

import random

from .example import Split

THINGS = (
    "apple", "apricot", "avocado", "banana", "basil", "bean", "beet", "berry", "bread", "broccoli", "butter",
    "cabbage", "cake",
    "candle", "carrot", "celery", "cheese", "cherry", "chicken", "chili", "chocolate", "cinnamon", "coconut",
    "coffee", "cookie",
    "corn", "cracker", "cream", "cucumber", "date", "egg", "fig", "fish", "flour", "garlic", "ginger", "grape", "ham",
    "honey",
    "jam", "juice", "kale", "ketchup", "kiwi", "leek", "lemon", "lentil", "lettuce", "lime", "mango", "melon", "milk",
    "mint", "muffin", "mushroom", "mustard", "napkin", "noodle", "nut", "oat", "oil", "olive", "onion", "orange",
    "oregano",
    "papaya", "paprika", "parsley", "pasta", "peach", "peanut", "pear", "pea", "pepper", "pickle", "pie", "pineapple",
    "pizza",
    "plum", "potato", "pumpkin", "quinoa", "radish", "raisin", "rice", "rosemary", "sage", "salad", "salmon", "salt",
    "sausage",
    "soap", "soup", "spinach", "squash", "steak", "strawberry", "sugar", "tea", "thyme", "toast", "tofu", "tomato",
    "tuna",
    "turnip", "vanilla", "vinegar", "waffle", "walnut", "water", "wine", "yam", "yeast", "yogurt", "zucchini",
    "arrow", "ball",
    "bell", "book", "bottle", "box", "brush", "bucket", "button", "camera", "card", "chair", "clock", "cloud", "coat",
    "cup",
    "desk", "door", "drum", "envelope", "feather", "flag", "flower", "fork", "glass", "glove", "hammer", "hat",
    "jacket", "key",
    "kite", "knife", "ladder", "lamp", "leaf", "letter", "lock", "map", "mirror", "moon", "nail", "needle", "paper",
    "pen",
    "pencil", "phone", "piano", "pillow", "plate", "pocket", "puzzle", "ring", "river", "rock", "rope", "ruler",
    "sand", "saw",
    "scarf", "ship", "shoe", "shovel", "spoon", "star", "stone", "sun", "table", "tent", "ticket", "towel", "train",
    "tree",
    "umbrella", "vase", "violin", "wallet", "watch", "wheel", "whistle", "window", "yarn", "zipper", "red", "blue",
    "green",
    "yellow", "purple", "white", "black", "brown", "spring", "summer", "autumn", "winter", "monday", "friday", "sunday",
)  # fmt: skip
ANIMALS = (
    "fox", "bear", "cat", "dog", "wolf", "owl", "hare", "mouse", "frog", "duck", "goose", "horse", "cow", "pig",
    "sheep", "goat",
    "lion", "tiger", "zebra", "monkey", "panda", "koala", "otter", "badger", "beaver", "deer", "moose", "squirrel",
    "hedgehog",
    "rabbit", "turtle", "snake", "lizard", "dragon", "eagle", "crow", "raven", "swan", "robin", "sparrow", "whale",
    "dolphin",
    "shark", "seal", "crab", "snail", "bee", "ant", "spider", "butterfly", "elephant", "giraffe", "hippo", "camel",
    "donkey",
    "llama", "penguin", "parrot", "rat", "bat", "mole", "unicorn", "robot", "knight", "wizard", "princess", "king",
    "queen",
    "pirate", "giant", "witch", "farmer", "baker", "sailor", "painter", "ghost",
)  # fmt: skip
NAMES = (
    "Ana", "Ben", "Clara", "David", "Emma", "Felix", "Grace", "Hugo", "Ida", "Jonas", "Kate", "Leo", "Maria", "Noah",
    "Olga",
    "Paul", "Rosa", "Sam", "Tina", "Victor", "Wendy", "Xavier", "Yara", "Zoe", "Alice", "Bruno", "Carlos", "Diana",
    "Erik",
    "Fatima", "George", "Hannah", "Ivan", "Julia", "Karim", "Laura", "Marco", "Nina", "Omar", "Petra", "Quentin",
    "Ravi", "Sofia",
    "Tom", "Uma", "Vera", "Walter", "Li", "Mei", "Anna", "Peter", "Bob", "John", "Mary", "Lisa", "Max", "Lucy",
    "Jack", "Lena",
    "Tim",
)  # fmt: skip
# Words of the prompts themselves. Each is probably one token, whose letters the model must learn by spelling it.
COMMON = (
    "about", "again", "alone", "answer", "around", "away", "bathroom", "bedroom", "between", "big", "bridge",
    "bright", "child",
    "could", "day", "degrees", "down", "evening", "even", "find", "forest", "found", "friend", "friendly", "from",
    "golden",
    "happy", "have", "hear", "heat", "hello", "help", "high", "hill", "home", "house", "how", "into", "kitchen", "know",
    "largest", "left", "less", "light", "lights", "like", "little", "lost", "low", "mail", "make", "many", "minus",
    "minutes",
    "more", "morning", "much", "music", "must", "need", "never", "night", "not", "numbers", "office", "old", "open",
    "order",
    "out", "people", "percent", "play", "please", "plus", "put", "quickly", "remove", "reverse", "room", "run",
    "school",
    "secret", "send", "shopping", "short", "should", "show", "sleep", "small", "smart", "some", "song", "sort",
    "spell", "story",
    "strange", "subtract", "sunset", "take", "tell", "thank", "thanks", "that", "there", "these", "this", "thought",
    "time",
    "timer", "together", "total", "turn", "under", "until", "value", "want", "way", "well", "what", "when", "whisper",
    "wind",
    "word", "words", "world", "computer",
)  # fmt: skip
ONSETS = (
    "b", "c", "d", "f", "g", "h", "j", "k", "l", "m", "n", "p", "r", "s", "t", "v", "w", "y", "z", "b", "d", "k", "l",
    "m", "n",
    "p", "r", "s", "t", "br", "ch", "cl", "cr", "dr", "fl", "gr", "pl", "pr", "qu", "sh", "sl", "sp", "st", "th", "tr",
)  # fmt: skip
VOWELS = (
    "a", "e", "i", "o", "u", "a", "e", "i", "o", "u", "a", "e", "i", "o", "ai", "ea", "ee", "oo", "ou",
)  # fmt: skip
ENDINGS = ("", "", "", "s", "er", "ing", "ed", "y", "en", "et", "ow", "ity", "or", "al", "ist", "um")
CODAS = ("", "", "", "", "n", "r", "l", "s", "t", "m", "k", "d", "p", "x", "ng", "ck", "sh", "nd", "st")


def real_word(rng: random.Random, words: tuple[str, ...], split: Split) -> str:
    """One of the words that this side of the split may use."""
    while True:
        word = rng.choice(words)
        if split.allows(word):
            return word


def pseudo_word(rng: random.Random, split: Split) -> str:
    """A pronounceable word of 3 to 9 letters that means nothing."""
    while True:
        word = "".join(
            rng.choice(ONSETS) + rng.choice(VOWELS) + rng.choice(CODAS) for _ in range(rng.choice((1, 2, 2, 2, 3)))
        )
        # If the result is a common word, it is trained everywhere, so it is never held out.
        if 3 <= len(word) <= 9 and split.allows(word) and not (split.slots_are_held_out and word in COMMON):
            return word


def blended_word(rng: random.Random, split: Split) -> str:
    """The beginning of one word and the end of another. Pseudo-words lack these pieces, and every token should
    sometimes be copied.
    """
    while True:
        first, second = (rng.choice(COMMON + THINGS + ANIMALS) for _ in range(2))
        word = first[: rng.randint(2, 5)] + second[-rng.randint(2, 5) :] + rng.choice(ENDINGS)
        if split.allows(word):
            return word


def word(rng: random.Random, words: tuple[str, ...], split: Split, pseudo_share: float = 0.5) -> str:
    """A real word, or with probability ``pseudo_share`` a pseudo-word."""
    return pseudo_word(rng, split) if rng.random() < pseudo_share else real_word(rng, words, split)


def with_article(noun: str) -> str:
    return f"an {noun}" if noun[0] in "aeiou" else f"a {noun}"
