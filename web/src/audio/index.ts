// Sound: from a file, a recording or samples to the frames that a model such as Whisper reads, and its transcript. This
// is a separate file, audio.js, which an engine imports with such a model; it runs in pages, workers and Node.

import { CtcTranscriber } from "./ctc_transcriber.js";
import { withTestFrames } from "./frame_rows.js";
import { hearing } from "./hearing.js";
import type { Transcribe, TranscriberParts } from "./transcriber.js";
import { Transcriber } from "./transcriber.js";

export type { Frames } from "./log_mel.js";
export { logMel } from "./log_mel.js";
export { magnitudeFrames } from "./magnitude_frames.js";
export { listen, openMicrophone } from "./microphone.js";
export type { RawSound, ReadOptions, SoundSource } from "./read_sound.js";
export { MAX_SECONDS, readSound } from "./read_sound.js";
export { SAMPLE_RATE } from "./resample.js";
export type { Word } from "../shared/transcription/ctc.js";
export type { Transcribe, TranscribeOptions, Transcript, TranscriptSegment } from "./transcriber.js";

/** What an engine needs of this file. */
export interface AudioModule {
  readonly open: (parts: TranscriberParts) => Transcribe;
  readonly hearing: typeof hearing;
  readonly withTestFrames: typeof withTestFrames;
}

export const audio: AudioModule = {
  open: (parts) => (parts.manifest.ctc === null ? new Transcriber(parts) : new CtcTranscriber(parts)).transcribe,
  hearing,
  withTestFrames,
};
