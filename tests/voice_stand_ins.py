"""What pages hear and speak with in tests: a microphone and the browser's voices."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Page

# A microphone that hears a voice of four syllables a second while `talk(true)`, and voices of the browser that speak
# until `finish`.
STAND_INS = """
window.spoken = [];
window.cancelled = 0;
navigator.mediaDevices.getUserMedia = async () => {
    const context = new AudioContext();
    await context.resume();
    const tone = new OscillatorNode(context, { type: "sawtooth", frequency: 150 });
    const syllables = new OscillatorNode(context, { frequency: 4 });
    const depth = new GainNode(context, { gain: 0.1 });
    const level = new GainNode(context, { gain: 0.15 });
    const gate = new GainNode(context, { gain: 0 });
    const into = context.createMediaStreamDestination();
    window.soundSeconds = () => context.currentTime;
    tone.connect(level).connect(gate).connect(into);
    syllables.connect(depth).connect(level.gain);
    tone.start();
    syllables.start();
    window.talk = (on) => { gate.gain.value = on ? 1 : 0; };
    return into.stream;
};
let current = null;
Object.defineProperty(window, "speechSynthesis", { value: {
    getVoices: () => [],
    speak: (utterance) => {
        window.spoken.push(utterance.text);
        current = utterance;
        utterance.dispatchEvent(new Event("start"));
    },
    cancel: () => { window.cancelled++; },
} });
window.finish = () => { current.dispatchEvent(new Event("end")); };
"""


def let_sound(page: Page, seconds: float) -> None:
    """Wait until the microphone has made this many more seconds of sound; a busy machine takes longer."""
    end = page.evaluate("(seconds) => soundSeconds() + seconds", seconds)
    page.wait_for_function("(end) => soundSeconds() >= end", arg=end)
