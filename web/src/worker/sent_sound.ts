// Sound as a worker can read it. The worker reads WAV files and samples; only the page can decode other files, read what
// the browser has decoded, and hear a microphone.

import type { ReadOptions, SoundSource } from "../audio/index.js";
import { SAMPLE_RATE } from "../audio/resample.js";
import { isWav } from "../audio/wav.js";
import { readSoundHere } from "../runtime/import_later.js";

export type SentSound = (source: SoundSource, options: ReadOptions) => Promise<SoundSource>;

/** Throws the errors of `readSound`. */
export const sentSound: SentSound = async (source, options) => {
  const { samples } = Object(source) as { readonly samples?: unknown };
  if (samples !== undefined || (await isWavFile(source))) return source;
  return { samples: await readSoundHere(source, options), sampleRate: SAMPLE_RATE };
};

async function isWavFile(source: SoundSource): Promise<boolean> {
  const isBytes = source instanceof ArrayBuffer || source instanceof Uint8Array;
  if (!isBytes && !(source instanceof Blob)) return false;
  const head = await new Blob([source as BlobPart]).slice(0, 12).arrayBuffer();
  return isWav(new Uint8Array(head));
}
