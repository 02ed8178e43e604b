// Readings: a sound as the windows that an encoder reads, one after the other. Places in it are numbers of frames of 10
// ms, whatever the encoder's own frames are. `compiler/runtime/audio/readings.py` and `windows.py` do the same.

import type { AudioSpec } from "../runtime/manifest.js";
import { FRAMES_PER_SECOND } from "../shared/transcription/speech.js";
import { quietEnd } from "../shared/transcription/windows.js";
import type { Frames } from "./log_mel.js";
import { HOP, logMel } from "./log_mel.js";
import { FRAME } from "./spectrum.js";

/** What the plan "audio" reads: numbers for each row, and how many frames it has if the encoder counts them. */
export interface AudioWindow {
  readonly rows: number;
  readonly frames: Float32Array<ArrayBuffer>;
  readonly rowFrames: readonly number[] | null;
}

export interface Reading {
  /** The frames of the sound. */
  readonly count: number;
  /** Whether it has several windows. */
  readonly isLong: boolean;
  /** The window that begins at a frame, and how many frames of the sound it has. */
  readonly window: (seek: number) => { readonly frames: number; readonly read: AudioWindow };
}

/** The reading of samples at 16 kHz. ``seconds``: those of the longest window. */
export const readingOf = (samples: Float32Array<ArrayBuffer>, audio: AudioSpec, seconds: number): Reading =>
  audio.mel_bins > 0 ? melReading(samples, audio) : sampleReading(samples, audio, seconds);

/**
 * Windows of one length. Frames behind the end of the sound are zeros, as openai-whisper has them; transformers has
 * silence there if the sound is shorter than a window.
 */
function melReading(samples: Float32Array, audio: AudioSpec): Reading {
  const length = audio.frames_of_row * audio.positions;
  const count = Math.max(1, Math.floor(samples.length / HOP));
  // The last frames reach into the silence behind the sound.
  const frames = logMel(padded(samples, samples.length + FRAME), audio.mel_bins);
  const window: Reading["window"] = (seek) => {
    const own = Math.min(count - seek, length);
    return { frames: own, read: melWindow(audio, frames, { start: seek, own, rows: audio.positions }) };
  };
  return { count, isLong: samples.length > length * HOP, window };
}

/**
 * Windows of any length. A longer sound than the longest one is cut at a quiet place, and silence follows what is too
 * short for a row.
 */
function sampleReading(samples: Float32Array<ArrayBuffer>, audio: AudioSpec, seconds: number): Reading {
  const longest = seconds * FRAMES_PER_SECOND;
  const count = Math.ceil(samples.length / HOP);
  // The frames of the rows behind the first one, of which the last has one.
  const least = audio.rows_behind * audio.frames_of_row * audio.hop_samples + audio.frame_samples;
  const window: Reading["window"] = (seek) => {
    const cut = (frames: number): Float32Array<ArrayBuffer> => samples.subarray(seek * HOP, (seek + frames) * HOP);
    const rest = count - seek;
    const frames = rest > longest ? quietEnd(levels(cut(longest))) : rest;
    const own = cut(frames);
    return { frames, read: sampleWindow(audio, own.length < least ? padded(own, least) : own) };
  };
  return { count, isLong: count > longest, window };
}

/** The window of ``rows`` rows: ``own`` frames of mel bands from ``start`` on, with zeros behind them. */
export function melWindow(
  audio: AudioSpec,
  { data, bins, count }: Frames,
  { start, own, rows }: { readonly start: number; readonly own: number; readonly rows: number },
): AudioWindow {
  const step = audio.frames_of_row;
  const size = step + 2;
  const frames = new Float32Array(rows * size * bins);
  // Row t has its frames, the one before and the one behind them, with zeros outside of the window.
  for (let row = 0; row < rows; row++)
    for (let place = 0; place < size; place++) {
      const frame = step * row - 1 + place;
      if (frame < 0 || frame >= own) continue;
      const at = (row * size + place) * bins;
      for (let bin = 0; bin < bins; bin++) frames[at + bin] = Number(data[bin * count + start + frame]);
    }
  return { rows, frames, rowFrames: null };
}

/**
 * The window of these samples: row t reads them from its first frame on. Frames that do not overlap are completed with
 * zeros, so that no sound is lost.
 */
export function sampleWindow(audio: AudioSpec, samples: Float32Array): AudioWindow {
  const { frame_samples: size, hop_samples: hop, frames_of_row: perRow, row_elements: elements } = audio;
  const missing = size === hop ? hop - 1 : 0;
  const count = Math.floor(Math.max(0, samples.length + missing - size) / hop) + 1;
  const rows = Math.ceil(count / perRow);
  const frames = new Float32Array(rows * elements);
  for (let row = 0; row < rows; row++) {
    const start = row * hop * perRow;
    frames.set(samples.subarray(start, start + elements), row * elements);
  }
  const rowFrames = Array.from({ length: rows }, (_, row) => Math.min(count - row * perRow, perRow));
  return { rows, frames, rowFrames };
}

/** What is added to the mean square of silence before its logarithm. */
const LEAST_POWER = 1e-10;

/** How loud each complete frame is, in whole decibels, so that both languages compute the same. */
function levels(samples: Float32Array): number[] {
  return Array.from({ length: Math.floor(samples.length / HOP) }, (_, frame) => {
    let sum = 0;
    for (const sample of samples.subarray(frame * HOP, (frame + 1) * HOP)) sum += sample * sample;
    return Math.floor(10 * Math.log10(sum / HOP + LEAST_POWER) + 0.5);
  });
}

function padded(samples: Float32Array, length: number): Float32Array<ArrayBuffer> {
  const longer = new Float32Array(length);
  longer.set(samples);
  return longer;
}
