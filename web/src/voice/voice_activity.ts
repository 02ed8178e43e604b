// When somebody speaks: a detector of energy with a noise floor. Speech begins when the level has been above the floor
// for a while, and ends after a silence. It is no neural detector: other sudden sounds count as speech, too, and a steady
// sound becomes the floor after some seconds.

import { SAMPLE_RATE } from "../audio/resample.js";

/** A frame is 20 ms. */
const FRAME = SAMPLE_RATE / 50;
const FRAME_MS = (1000 * FRAME) / SAMPLE_RATE;
/** The decibels above the floor at which a frame is speech, before speech and during it. */
const BEGIN_ABOVE = 10;
const STAY_ABOVE = 6;
/** Quieter frames are silence, in decibels of full scale. */
const LEAST_LEVEL = -60;
/** The floor is the least level of these frames, which is that of pauses between words (Martin 2001). */
const FLOOR_FRAMES = 200;
/** How fast the level follows a frame: it lasts about three frames. */
const SMOOTHING = 0.35;

export interface ActivityOptions {
  /** The least length of speech, in milliseconds. Shorter sounds, such as clicks, are none. */
  readonly onsetMs?: number | undefined;
  /** The silence that ends speech, in milliseconds. */
  readonly silenceMs?: number | undefined;
}

/** ``sample``: the first one of speech, or the first one after it, counted from the first sample of all. */
export interface ActivityChange {
  readonly type: "begin" | "end";
  readonly sample: number;
}

export class VoiceActivity {
  /** May change at any time, for example while a loudspeaker is heard. */
  onsetMs: number;
  readonly #silenceMs: number;
  readonly #rest = new Float32Array(FRAME);
  #filled = 0;
  /** The frames so far. */
  #frames = 0;
  /** The mean energy of the last frames; null before the first one. */
  #energy: number | null = null;
  readonly #levels: number[] = [];
  #isSpeech = false;
  /** Frames above the threshold: in a row before speech, and the end of the last one during it. */
  #above = 0;
  #lastVoiced = 0;

  constructor({ onsetMs = 100, silenceMs = 700 }: ActivityOptions = {}) {
    this.onsetMs = onsetMs;
    this.#silenceMs = silenceMs;
  }

  get isSpeech(): boolean {
    return this.#isSpeech;
  }

  /** What has changed with these samples at 16 kHz, of any number. */
  push(samples: Float32Array): readonly ActivityChange[] {
    const changes: ActivityChange[] = [];
    for (let at = 0; at < samples.length;) {
      const part = samples.subarray(at, at + FRAME - this.#filled);
      this.#rest.set(part, this.#filled);
      this.#filled += part.length;
      at += part.length;
      if (this.#filled < FRAME) break;
      this.#filled = 0;
      const change = this.#frame();
      if (change !== null) changes.push(change);
    }
    return changes;
  }

  #frame(): ActivityChange | null {
    const now = this.#rest.reduce((sum, sample) => sum + sample * sample, 0) / FRAME;
    this.#energy = this.#energy === null ? now : this.#energy + SMOOTHING * (now - this.#energy);
    const level = decibels(now);
    this.#levels.push(decibels(this.#energy));
    if (this.#levels.length > FLOOR_FRAMES) this.#levels.shift();
    const floor = Math.min(...this.#levels);
    this.#frames++;
    const isVoiced = level > Math.max(LEAST_LEVEL, floor + (this.#isSpeech ? STAY_ABOVE : BEGIN_ABOVE));
    return this.#isSpeech ? this.#during(isVoiced) : this.#before(isVoiced);
  }

  #before(isVoiced: boolean): ActivityChange | null {
    // A frame between two periods of a voice may be quiet.
    this.#above = isVoiced ? this.#above + 1 : Math.max(0, this.#above - 1);
    if (this.#above * FRAME_MS < this.onsetMs) return null;
    const sample = (this.#frames - this.#above) * FRAME;
    this.#isSpeech = true;
    this.#above = 0;
    this.#lastVoiced = this.#frames;
    return { type: "begin", sample };
  }

  #during(isVoiced: boolean): ActivityChange | null {
    if (isVoiced) this.#lastVoiced = this.#frames;
    if ((this.#frames - this.#lastVoiced) * FRAME_MS < this.#silenceMs) return null;
    this.#isSpeech = false;
    return { type: "end", sample: this.#lastVoiced * FRAME };
  }
}

/** Of full scale; samples of zeros have -100. */
const decibels = (energy: number): number => 10 * Math.log10(energy + 1e-10);
