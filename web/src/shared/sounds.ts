// How sound becomes features of a model that hears: how many frames and features it has, its text in the prompt, and what
// names it. The page and Python then compute the frames, each in its own language.

import { RequestError } from "../errors.js";
import type { ImageSpec, SoundSpec } from "../runtime/manifest.js";
import { keyHead } from "./images/key.js";
import { imageText } from "./images/text.js";

/** Of all sound that models read, in Hz. */
export const SOUND_RATE = 16_000;

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
      { seconds: samples / SOUND_RATE, most: spec.most / SOUND_RATE },
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

/** The most samples of a sound: an hour of them. */
const MAX_SAMPLES = 3600 * SOUND_RATE;

/** The part of a spec that is wrong, and what is wrong with it; null if nothing is. A bundle may come from anywhere. */
export function wrongSounds(
  { most, mel, samples, prompt }: SoundSpec,
  images: Pick<ImageSpec, "prompt"> | null,
  vocabSize: number,
): readonly [part: string, what: string] | null {
  if (most > MAX_SAMPLES) return ["most", `allows ${most} samples`];
  if (mel !== null && !(mel.window <= mel.points && mel.points <= MAX_SAMPLES && mel.bins <= mel.points))
    return ["mel", `has ${mel.bins} bands and windows of ${mel.window} samples in ${mel.points} points`];
  if (mel !== null && mel.points !== 512) return ["mel.points", `is ${mel.points}; supported: 512`];
  if (mel !== null && mel.hop !== samples) return ["mel.hop", `is ${mel.hop}, but samples is ${samples}`];
  if (prompt.mark === "" || prompt.placeholder === "") return ["prompt", "has no text for a sound"];
  if (prompt.placeholder_id >= vocabSize)
    return ["prompt.placeholder_id", `is ${prompt.placeholder_id}, beyond the vocabulary of ${vocabSize}`];
  const { mark, placeholder_id: id } = images?.prompt ?? {};
  return mark === prompt.mark || id === prompt.placeholder_id ? ["prompt", "has the token of a picture"] : null;
}

const seconds = (samples: number): string => (samples / SOUND_RATE).toFixed(2).replace(/\.?0+$/, "");
