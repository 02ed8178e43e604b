"""Drawn pictures and questions about them, each with its only right answer: coloured shapes to name and to count, and
digits to read.

A picture is a function of its seed. Training and evaluation use seeds that differ in their first word, so that no
picture of one occurs in the other.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from PIL import Image, ImageDraw, ImageFont

# Pictures are drawn with SIDE pixels a side; the model's processor shrinks them.
SIDE = 256
CELLS = 3
MOST_SHAPES = 5
Colour = tuple[int, int, int]
COLOURS: Mapping[str, Colour] = MappingProxyType(
    {
        "red": (215, 35, 35),
        "green": (40, 150, 55),
        "blue": (40, 70, 210),
        "yellow": (240, 205, 30),
        "purple": (140, 50, 165),
        "black": (25, 25, 25),
    }
)
SHAPES = ("circle", "square", "triangle", "star")
KINDS = (*SHAPES, *"0123456789")
# The greatest change of a channel of a colour, and the darkest background.
COLOUR_JITTER, DARKEST_BACKGROUND = 18, 215
# {0} is what is asked for. The first phrasing is the one that READMEs show.
COLOUR_QUESTIONS = ("What colour is the {0}?", "What color is the {0}?", "Which colour does the {0} have?")
SHAPE_QUESTIONS = ("What is {0}?", "Which shape is {0}?", "What shape is the {0} one?")
COUNT_QUESTIONS = ("How many {0} are there?", "How many {0}?", "Count the {0}.")
DIGIT_QUESTIONS = ("Which digit is this?", "Which digit?", "What number do you see?")


@dataclass(frozen=True, slots=True)
class Shape:
    """``x``, ``y`` and ``radius`` are in pixels of SIDE."""

    kind: str
    colour: str
    x: float
    y: float
    radius: float


@dataclass(frozen=True, slots=True)
class Question:
    """``task``: what the answer needs; a key of the accuracy table."""

    task: str
    text: str
    answer: str


@dataclass(frozen=True, slots=True)
class Picture:
    """``parts``: for each pixel the number of what is drawn there, which counts ``things`` from 1 on, or 0. A thing is
    a kind of KINDS and a colour.
    """

    image: Image.Image
    questions: Sequence[Question]
    parts: Image.Image
    things: Sequence[tuple[str, str]]


def draw_picture(seed: str, *, mixed: bool = False) -> Picture:
    """A picture and every question that it answers. ``mixed``: more often with shapes of several kinds, so that answers
    need to know which colour belongs to which shape.
    """
    generator = random.Random(seed)
    if generator.random() < (0.85 if mixed else 0.65):
        return _shapes(generator, mixed=mixed)
    return _digit(generator)


def _shapes(generator: random.Random, *, mixed: bool) -> Picture:
    least = 2 if mixed else 1
    # Few kinds, so that several shapes are of one kind.
    kinds = generator.sample(SHAPES, generator.randint(least, least + 2))
    count = generator.randint(least, MOST_SHAPES)
    cell = SIDE / CELLS
    shapes = []
    for place in generator.sample(range(CELLS**2), count):
        kind, colour = generator.choice(kinds), generator.choice(list(COLOURS))
        radius = cell * generator.uniform(0.3, 0.44)
        room = cell / 2 - radius
        x, y = (cell * (each + 0.5) + generator.uniform(-room, room) for each in (place % CELLS, place // CELLS))
        shapes.append(Shape(kind, colour, x, y, radius))
    image = _background(generator)
    parts = Image.new("L", image.size)
    for number, shape in enumerate(shapes, 1):
        DRAWINGS[shape.kind](ImageDraw.Draw(image), shape, _jittered(generator, shape.colour))
        DRAWINGS[shape.kind](ImageDraw.Draw(parts), shape, number)
    things = [(shape.kind, shape.colour) for shape in shapes]
    return Picture(image, _questions_about(generator, shapes), parts, things)


def _questions_about(generator: random.Random, shapes: Sequence[Shape]) -> Sequence[Question]:
    questions = []
    for kind in SHAPES:
        colours = [shape.colour for shape in shapes if shape.kind == kind]
        if len(colours) == 1:
            text = generator.choice(COLOUR_QUESTIONS).format(kind)
            questions.append(Question("colour", text, f"The {kind} is {colours[0]}."))
        # Few of the questions are about what is not there.
        if colours or generator.random() < 0.25:
            text = generator.choice(COUNT_QUESTIONS).format(f"{kind}s")
            questions.append(Question("count", text, _count(len(colours), kind)))
    for colour in COLOURS:
        kinds = [shape.kind for shape in shapes if shape.colour == colour]
        if len(kinds) == 1:
            text = generator.choice(SHAPE_QUESTIONS).format(colour)
            questions.append(Question("shape", text, f"The {kinds[0]} is {colour}."))
    text = generator.choice(COUNT_QUESTIONS).format("shapes")
    questions.append(Question("count", text, _count(len(shapes), "shape")))
    return questions


def _count(count: int, kind: str) -> str:
    return f"There is 1 {kind}." if count == 1 else f"There are {count} {kind}s."


def _digit(generator: random.Random) -> Picture:
    digit, colour = generator.randrange(10), generator.choice(sorted(COLOURS))
    image = _background(generator)
    font = ImageFont.load_default(SIDE * generator.uniform(0.5, 0.8))
    # Drawn on a mask, which can be turned.
    mask = Image.new("L", (SIDE, SIDE))
    room = SIDE * 0.12
    x, y = (SIDE / 2 + generator.uniform(-room, room) for _ in range(2))
    ImageDraw.Draw(mask).text((x, y), str(digit), fill=255, font=font, anchor="mm")
    mask = mask.rotate(generator.uniform(-12, 12), Image.Resampling.BILINEAR)
    image.paste(_jittered(generator, colour), (0, 0), mask)
    read = Question("digit", generator.choice(DIGIT_QUESTIONS), f"The digit is {digit}.")
    text = generator.choice(COLOUR_QUESTIONS).format("digit")
    parts = mask.point(lambda share: int(share > 127))
    return Picture(image, (read, Question("colour", text, f"The digit is {colour}.")), parts, [(str(digit), colour)])


def _background(generator: random.Random) -> Image.Image:
    light = generator.randint(DARKEST_BACKGROUND, 255)
    tint = tuple(max(DARKEST_BACKGROUND, light - generator.randint(0, 15)) for _ in range(3))
    return Image.new("RGB", (SIDE, SIDE), tint)


def _jittered(generator: random.Random, colour: str) -> Colour:
    red, green, blue = (
        min(255, max(0, channel + generator.randint(-COLOUR_JITTER, COLOUR_JITTER))) for channel in COLOURS[colour]
    )
    return red, green, blue


def _circle(draw: ImageDraw.ImageDraw, shape: Shape, fill: Colour | int) -> None:
    draw.circle((shape.x, shape.y), shape.radius, fill)


def _square(draw: ImageDraw.ImageDraw, shape: Shape, fill: Colour | int) -> None:
    half = shape.radius * 0.86
    draw.rectangle((shape.x - half, shape.y - half, shape.x + half, shape.y + half), fill)


def _triangle(draw: ImageDraw.ImageDraw, shape: Shape, fill: Colour | int) -> None:
    draw.polygon(_corners(shape, [1.0] * 3), fill)


def _star(draw: ImageDraw.ImageDraw, shape: Shape, fill: Colour | int) -> None:
    draw.polygon(_corners(shape, [1.0, 0.42] * 5), fill)


def _corners(shape: Shape, distances: Sequence[float]) -> list[tuple[float, float]]:
    """Corners at equal angles, the first at the top, at distances in radii."""
    angles = [2 * math.pi * index / len(distances) for index in range(len(distances))]
    return [
        (shape.x + shape.radius * distance * math.sin(angle), shape.y - shape.radius * distance * math.cos(angle))
        for angle, distance in zip(angles, distances, strict=True)
    ]


DRAWINGS: Mapping[str, Callable[[ImageDraw.ImageDraw, Shape, Colour | int], None]] = MappingProxyType(
    {"circle": _circle, "square": _square, "triangle": _triangle, "star": _star}
)
