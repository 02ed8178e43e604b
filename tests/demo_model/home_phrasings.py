"""How people phrase home commands: the training and the held-out templates of every tool, and nothing else."""

from __future__ import annotations

from .phrasing import Phrasings

# Names of lights, endings of levels, and coverings of windows.
L = "(light|lights|lamp|lights|lighting)"
P = "(%| percent| percent|)"
C = "(blinds|curtains|shades|shutters|blinds)"
LEVEL = Phrasings(
    training=(
        f"(dim|set|lower|turn|bring|put|adjust|change|brighten|raise|turn down|turn up|move) the {{room}} {L} to "
        f"{{level}}{P}",
        f"(dim|set|lower|turn|put|adjust|change|brighten|turn down|turn up) the {L} in the {{room}} to {{level}}{P}",
        f"(dim|set|adjust) {{room}} {L} to {{level}}{P}",
        f"in the {{room}}, (set|dim|turn|put) the {L} to {{level}}{P}",
        f"~{{room}} {L} (to |at |){{level}}(%| percent)",
        f"~{L} in the {{room}} (to|at) {{level}}{P}",
        f"~in the {{room}} {L} {{level}}{P}",
        f"~i (want|need|would like) the {{room}} {L} (at|on) {{level}}(%| percent)",
        "~make it {level}(%| percent) bright in the {room}",
        f"set (the |)(brightness|light level) (of the {{room}} {L}|in the {{room}}) to {{level}}{P}",
        "set {room} brightness to {level}",
        "dim the {room} to {level}(%| percent)",
        f"make the {{room}} {L} {{level}}(%| percent)( bright|)",
        f"~the {{room}} {L} (should|must) be (at|set to) {{level}}(%| percent)",
        "~{level}(%| percent) (light|brightness) in the {room}",
        f"~(can|could) (i|we) have the {{room}} {L} at {{level}}(%| percent)",
        f"~it is too (dark|bright) in the {{room}}, set the {L} to {{level}}{P}",
    ),
    held_out=(
        "give me {level} percent light in the {room}",
        "~i'd like {level}% brightness in the {room}",
        "take the {room} (lamp|lights) (up|down) to {level} percent",
        "~to {level} percent with the {room} lights",
        "~for the {room}, lights at {level}%",
        "turn the brightness of the {room} light to {level} percent",
        "~let the {room} (lamp|light) be at {level}%",
        "have the lights in the {room} dimmed to {level} percent",
    ),
)
ON = Phrasings(
    training=(
        f"(turn|switch|put) on the {{room}} {L}",
        f"(turn|switch|put) the {{room}} {L} on",
        f"(turn|switch) the {L} on in the {{room}}",
        f"~{{room}} {L} on",
        f"~{L} on in the {{room}}",
        f"(turn|switch|put) on the {L} in the {{room}}",
        f"(turn|switch|put) the {L} in the {{room}} on",
        f"turn on {{room}} {L}",
        f"in the {{room}}, (turn|switch) (on the {L}|the {L} on)",
        "~it is (too |very |)dark in the {room}",
        "light up the {room}",
        "~(i|we) need (some |more |)light in the {room}",
        f"~the {{room}} {L} (on|must be on)",
        f"~i want the {{room}} {L} on",
        f"~{L} in the {{room}} on",
        "~on: {room}",
        "~(can|could|may) (i|we) have (the |)light in the {room}",
        f"~i am in the {{room}}, {L} on",
    ),
    held_out=(
        f"have the {{room}} {L} turned on",
        "~the {room} (light|lamp|lights) should be on",
        "let there be light in the {room}",
        "~why is the {room} light off, turn it on",
        f"~we are going to the {{room}}, turn the {L} on",
        f"get the {{room}} {L} on",
    ),
)
OFF = Phrasings(
    training=(
        f"(turn|switch|shut) off the {{room}} {L}",
        f"(turn|switch|shut) the {{room}} {L} off",
        f"(turn|switch) the {L} off in the {{room}}",
        f"~{{room}} {L} (off|out)",
        f"~{L} (off|out) in the {{room}}",
        f"(turn|switch|shut|put) (off|out) the {L} in the {{room}}",
        f"(turn|switch|put) the {L} in the {{room}} (off|out)",
        f"turn off {{room}} {L}",
        f"in the {{room}}, (turn|switch) (off the {L}|the {L} off)",
        f"kill the {L} in the {{room}}",
        f"kill the {{room}} {L}",
        "make the {room} dark",
        "~(i|we) need no (light|lights) in the {room}",
        f"~the {{room}} {L} (off|must be off)",
        f"~i want the {{room}} {L} off",
        f"~{L} in the {{room}} off",
        "~off: {room}",
        f"~i am leaving the {{room}}, {L} off",
    ),
    held_out=(
        f"have the {{room}} {L} turned off",
        "~the {room} (light|lamp|lights) should be off",
        "~no more light in the {room}",
        "~why is the {room} light on, turn it off",
        f"~nobody is in the {{room}}, turn the {L} off",
        f"get the {{room}} {L} off",
    ),
)
DIM = Phrasings(
    training=(
        f"dim the {{room}} {L}",
        f"dim the {L} in the {{room}}",
        "dim the {room}",
        f"dim {{room}} {L}",
        "~(softer|less|dimmer) light in the {room}",
        f"~i want the {{room}} {L} dimmed",
    ),
    held_out=(f"have the {{room}} {L} dimmed", f"~the {{room}} {L} should be dimmed"),
)
ALL_LEVEL = Phrasings(
    training=(
        f"(dim|set|turn|put) (the|all the|all|all of the) lights to {{level}}{P}",
        "~(all |)lights (to|at) {level}(%| percent)",
        "(dim|set) (everything|the whole house|every light) to {level}(%| percent)",
        "~i want (all |)(the |)lights at {level}(%| percent)",
    ),
    held_out=("bring all the lights to {level} percent", "~{level} percent on every light"),
)
ALL_ON = Phrasings(
    training=(
        "(turn|switch) on (the|all the|all|all of the) lights",
        "(turn|switch) (the|all the|all) lights on",
        "~(all |)lights on",
        "(turn|switch) (on every light|every light on)",
        "light up the (house|home)",
        "~(i|we) need( some| more|) light",
    ),
    held_out=("have all the lights turned on", "~every light on"),
)
ALL_OFF = Phrasings(
    training=(
        "(turn|switch|shut) off (the|all the|all|all of the) lights",
        "(turn|switch) (the|all the|all) lights off",
        "~(all |)lights (off|out)",
        "(turn|switch) (off every light|every light off)",
        "make the (house|home) dark",
        "kill (the|all the) lights",
    ),
    held_out=("have all the lights turned off", "~every light off"),
)
DEGREES = "( degrees| degrees|°| degrees celsius| C|)"
THERMOSTAT = Phrasings(
    training=(
        f"(set|turn|change|adjust|put|move) the (thermostat|thermostat|heating|temperature|heat) to "
        f"{{degrees}}{DEGREES}",
        f"(turn|set) the (heating|heat|thermostat) (up|down) to {{degrees}}{DEGREES}",
        "make it {degrees} degrees( in here| in the house|)",
        "~i (want|need) (it |it to be |){degrees} degrees",
        f"~thermostat (to |at |){{degrees}}{DEGREES}",
        f"set (temperature|heating) to {{degrees}}{DEGREES}",
        "(heat|cool|warm) the (house|home|flat) to {degrees} degrees",
        f"~(temperature|heating) (to |at |){{degrees}}{DEGREES}",
        f"~the (thermostat|heating) (should|must) be (at|on|set to) {{degrees}}{DEGREES}",
        "~it is too (cold|warm|hot) here, make it {degrees}",
        "raise the (temperature|heat) to {degrees} degrees",
        "lower the (temperature|heat) to {degrees} degrees",
    ),
    held_out=(
        "let the thermostat go to {degrees}",
        "~{degrees} degrees would be nice",
        "bring the temperature (up|down) to {degrees} degrees",
        "have the heating at {degrees} degrees",
        "~i would be happy with {degrees} degrees",
        "take the thermostat to {degrees} degrees",
    ),
)
ROOM_THERMOSTAT = Phrasings(
    training=(
        f"(set|turn|change|adjust|put) the {{room}} (thermostat|temperature|heating|heat) to {{degrees}}{DEGREES}",
        f"(set|turn|change|adjust|put) the (thermostat|temperature|heating|heat) in the {{room}} to "
        f"{{degrees}}{DEGREES}",
        "(heat|cool|warm) the {room} to {degrees} degrees",
        "make (it {degrees} degrees in the {room}|the {room} {degrees} degrees)( now|)",
        f"~{{room}} (thermostat|temperature|heating) (to |at |){{degrees}}{DEGREES}",
        "~i want {degrees} degrees in the {room}",
        "~in the {room} it (should|must) be {degrees} degrees",
    ),
    held_out=(
        "keep the {room} at {degrees} degrees",
        "~the {room} should be at {degrees} degrees",
        "bring the {room} to {degrees} degrees",
    ),
)
OPEN = Phrasings(
    training=(
        f"(open|raise|pull up|roll up) the {{room}} {C}",
        f"(open|raise|pull up) the {C} in the {{room}}",
        f"~{{room}} {C} (open|up)",
        f"~i want the {{room}} {C} (open|up)",
        f"~{C} (open|up) in the {{room}}",
        f"in the {{room}}, (open|raise) the {C}",
        f"(put|roll|pull) the {{room}} {C} up",
    ),
    held_out=(f"have the {{room}} {C} opened", f"~the {{room}} {C} should be open", f"get the {C} up in the {{room}}"),
)
CLOSE = Phrasings(
    training=(
        f"(close|lower|shut|pull down|roll down) the {{room}} {C}",
        f"(close|lower|shut|pull down) the {C} in the {{room}}",
        f"~{{room}} {C} (closed|shut|down)",
        f"~i want the {{room}} {C} (closed|shut|down)",
        f"~{C} (closed|shut|down) in the {{room}}",
        f"in the {{room}}, (close|lower) the {C}",
        f"(put|roll|pull) the {{room}} {C} down",
    ),
    held_out=(
        f"have the {{room}} {C} closed",
        f"~the {{room}} {C} should be closed",
        f"get the {C} down in the {{room}}",
    ),
)
LOCK = Phrasings(
    training=(
        "(lock|bolt|secure) the {door} door",
        "~{door} door (lock|locked)",
        "~i want the {door} door locked",
        "~is the {door} door locked? lock it",
        "keep the {door} door locked",
        "lock {door} door",
    ),
    held_out=(
        "have the {door} door locked",
        "~the {door} door should be locked",
        "make sure that the {door} door is locked",
    ),
)
UNLOCK = Phrasings(
    training=(
        "(unlock|unbolt) the {door} door",
        "~{door} door (unlock|unlocked)",
        "~i want the {door} door unlocked",
        "~is the {door} door unlocked? unlock it",
        "keep the {door} door unlocked",
        "unlock {door} door",
    ),
    held_out=(
        "have the {door} door unlocked",
        "~the {door} door should be unlocked",
        "make sure that the {door} door is unlocked",
    ),
)
TIMER = Phrasings(
    training=(
        "(set|start|make|create) a timer (for|of) {amount} {unit}",
        "(set|start|make) a {amount} {one} timer",
        "~timer( for|:|) {amount} {unit}",
        "~{amount} {one} timer",
        "(wake|call|remind|tell) me in {amount} {unit}",
        "count down {amount} {unit}",
        "set (the |)timer to {amount} {unit}",
        "~i need a timer for {amount} {unit}",
        "~i need a {amount} {one} timer",
        "(start|do) a countdown of {amount} {unit}",
    ),
    held_out=(
        "let a timer run for {amount} {unit}",
        "~{amount} {unit} on the timer",
        "give me a timer of {amount} {unit}",
        "ring in {amount} {unit}",
    ),
)
PLAY = Phrasings(
    training=(
        "(play|put on|start|turn on) (some |){genre}( music|)",
        "~i (want|would like) (to hear |)(some |){genre} music",
        "~{genre} music",
        "~let us (hear|listen to) (some |){genre}( music|)",
    ),
    held_out=("give me some {genre} music", "~i would love some {genre} music now"),
)
ROOM_PLAY = Phrasings(
    training=(
        "(play|put on|start) (some |){genre}( music|) in the {room}",
        "in the {room}, play (some |){genre}( music|)",
        "~{genre}( music|) in the {room}",
        "~i (want|would like) (to hear |)(some |){genre}( music|) in the {room}",
        "play (some |)music in the {room}, {genre}",
    ),
    held_out=(
        "let the {room} have some {genre} music",
        "~i would love some {genre} in the {room}",
        "fill the {room} with {genre} music",
    ),
)
STOP = Phrasings(
    training=(
        "(stop|pause|end|turn off|switch off|kill) the (music|song)",
        "~music off",
        "~no( more|) music",
        "stop playing( music|)",
        "~(silence|quiet)",
    ),
    held_out=("have the music stopped", "~the music should stop"),
)
LIST = Phrasings(
    training=(
        "(add|put) {item} (to|on) (the|my|our) (shopping |grocery |shopping |)list",
        "(buy|get) (some |){item}",
        "~(i|we) need( to buy| to get|) (some |more |){item}",
        "put (some |){item} on the list",
        "~{item} (on|to) the (shopping |)list",
        "(add|note) {item} for shopping",
        "~shopping list: {item}",
        "~(i|we) ran out of {item}",
        "add {item}",
    ),
    held_out=(
        "have {item} added to the shopping list",
        "~{item} should be on the shopping list",
        "write {item} on the shopping list",
        "~we are out of {item}",
    ),
)
