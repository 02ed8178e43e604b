// How sound becomes features of a model that hears: how many frames and features it has, its text in the prompt, and what
// names it. The page and Python then compute the frames, each in its own language.

import { RequestError } from "../errors.js";
import type { SoundSpec } from "../runtime/manifest.js";
import { keyHead } from "./images/key.js";
import { imageText } from "./images/text.js";

/** Of all sound that models read, in Hz. */
const RATE = 16_000;

/** ``frames`` of the sound, which become ``features``. */
export interface SoundLayout {
  readonly frames: number;
  readonly features: number;
  readonly text: string;
}

/** Of a sound with this number of samples. Throws RequestError for one that is too short or too long for the model. */
export function soundLayout(spec: SoundSpec, samples: number): SoundLayout {
  if (samples > spec.most)
    throw new RequestError(
      `audio: the sound has ${seconds(samples)} s, and this model hears at most ${seconds(spec.most)} s at once; send ` +
        "parts of it",
      { seconds: samples / RATE, most: spec.most / RATE },
    );
  const frames = framesOf(spec, samples);
  if (frames < 1)
    throw new RequestError(`audio: the sound has ${samples} samples, which is too short; send a longer one`, {
      samples,
    });
  const features = Math.ceil(frames / spec.frames);
  return { frames, features, text: imageText(spec, { rows: 0, columns: 0 }, [features]) };
}

function framesOf({ samples: step, mel }: SoundSpec, samples: number): number {
  if (mel === null) return Math.ceil(samples / step);
  // Frame n ends half a window behind sample n * hop, and the next sample must be one of the sound.
  return Math.max(0, Math.floor((samples - 1 - (mel.window - Math.floor(mel.window / 2))) / mel.hop) + 1);
}

/** What names a sound's features: the SHA-256 of this text in UTF-8, followed by its samples, as float32 (little endian). */
export function soundKeyHead(spec: SoundSpec, samples: number): string {
  return keyHead(spec, samples);
}

const seconds = (samples: number): string => (samples / RATE).toFixed(2).replace(/\.?0+$/, "");
