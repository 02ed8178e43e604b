// The detector on synthetic signals: noise, tones, clicks and pauses.

import * as fc from "fast-check";
import { describe, expect, test } from "vitest";

import type { ActivityChange, ActivityOptions } from "../../src/voice/voice_activity.js";
import { VoiceActivity } from "../../src/voice/voice_activity.js";

const RATE = 16_000;

/** Noise of a level in decibels of full scale, with the same numbers in each run. */
function noise(seconds: number, level: number): Float32Array {
  let state = 1;
  const draw = (): number => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    return state / 2 ** 31 - 1;
  };
  // Numbers from -1 to 1 have a mean square of a third.
  return Float32Array.from({ length: Math.round(seconds * RATE) }, () => draw() * Math.sqrt(3) * 10 ** (level / 20));
}

/** A voice: a tone of 150 Hz with overtones, whose syllables come four times a second. */
function voice(seconds: number, level: number): Float32Array {
  return Float32Array.from({ length: Math.round(seconds * RATE) }, (_, index) => {
    const time = index / RATE;
    const tone = [1, 2, 3].reduce((sum, order) => sum + Math.sin(2 * Math.PI * 150 * order * time) / order, 0);
    return tone * (0.6 + 0.4 * Math.sin(2 * Math.PI * 4 * time)) * 10 ** (level / 20);
  });
}

function joined(...parts: readonly Float32Array[]): Float32Array {
  return Float32Array.from(parts.flatMap((part) => [...part]));
}

const mixed = (one: Float32Array, other: Float32Array): Float32Array =>
  one.map((sample, index) => sample + Number(other[index]));

function changesOf(samples: Float32Array, options: ActivityOptions = {}, block = 341): readonly ActivityChange[] {
  const activity = new VoiceActivity(options);
  const found: ActivityChange[] = [];
  for (let at = 0; at < samples.length; at += block) found.push(...activity.push(samples.subarray(at, at + block)));
  return found;
}

const seconds = (changes: readonly ActivityChange[]): readonly (readonly [string, number])[] =>
  changes.map(({ type, sample }) => [type, sample / RATE]);

describe("VoiceActivity", () => {
  test.each([
    ["a quiet room", -70],
    ["an office", -50],
    ["a street", -35],
  ])("a voice in %s begins and ends where it does", (_, level) => {
    const parts = [noise(1, level), mixed(voice(1.5, -15), noise(1.5, level)), noise(1.5, level)];
    const found = seconds(changesOf(joined(...parts)));
    expect(found.map(([type]) => type)).toEqual(["begin", "end"]);
    expect(found[0]?.[1]).toBeCloseTo(1, 1);
    expect(Math.abs(Number(found[1]?.[1]) - 2.5)).toBeLessThan(0.1);
  });

  test("a pause between words does not end it, and a longer one does", () => {
    const speech = (pause: number): Float32Array =>
      joined(noise(0.5, -60), voice(0.6, -20), noise(pause, -60), voice(0.6, -20), noise(1, -60));
    expect(changesOf(speech(0.5))).toHaveLength(2);
    expect(changesOf(speech(0.9))).toHaveLength(4);
    expect(changesOf(speech(0.5), { silenceMs: 300 })).toHaveLength(4);
  });

  test("clicks, silence and steady noise are no speech", () => {
    const click = joined(noise(1, -60), voice(0.04, -5), noise(1, -60), voice(0.06, -5), noise(1, -60));
    expect(changesOf(click)).toEqual([]);
    expect(changesOf(new Float32Array(3 * RATE))).toEqual([]);
    expect(changesOf(noise(10, -30))).toEqual([]);
    // Below the least level, even if the rest is digital silence.
    expect(changesOf(joined(new Float32Array(RATE), voice(1, -75), new Float32Array(RATE)))).toEqual([]);
  });

  test("a fan that is switched on becomes the floor, above which a voice is heard", () => {
    const fan = noise(14, -40);
    const found = seconds(changesOf(joined(noise(1, -65), fan, mixed(voice(1, -12), noise(1, -40)), noise(1, -40))));
    expect(found.map(([type]) => type)).toEqual(["begin", "end", "begin", "end"]);
    expect(found[1]?.[1]).toBeLessThan(7);
    expect(found[2]?.[1]).toBeCloseTo(15, 1);
  });

  test("a longer onset ignores what is short", () => {
    const sound = joined(noise(1, -60), voice(0.2, -15), noise(1, -60));
    expect(changesOf(sound)).toHaveLength(2);
    expect(changesOf(sound, { onsetMs: 260 })).toEqual([]);
  });

  test("the sizes of blocks do not matter", () => {
    const sound = joined(noise(0.4, -60), voice(0.5, -20), noise(1, -60), voice(0.3, -25), noise(0.9, -55));
    const expected = changesOf(sound, {}, 320);
    expect(expected).toHaveLength(4);
    fc.assert(
      fc.property(fc.integer({ min: 1, max: 5000 }), (block) => {
        expect(changesOf(sound, {}, block)).toEqual(expected);
      }),
      { numRuns: 20 },
    );
  });
});
