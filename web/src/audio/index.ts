// Sound: from a file, a recording or samples to the frames that a model such as Whisper reads. This is a separate file,
// audio.js, which runs in pages, workers and Node.

export type { Frames } from "./log_mel.js";
export { logMel } from "./log_mel.js";
export type { RawSound, ReadOptions, SoundSource } from "./read_sound.js";
export { MAX_SECONDS, SAMPLE_RATE, readSound } from "./read_sound.js";
