// A model of sound as the rules of transcription see it: its tokens, and the sizes of a window.

import { RequestError } from "../../errors.js";
import type { SpeechSpec } from "../../runtime/manifest.js";

export interface SpeechModel extends SpeechSpec {
  /** The tokens that end a text. */
  readonly ends: readonly number[];
  /** The rows of the longest window of sound. If the model writes timestamps, one begins each row. */
  readonly rows: number;
  /** The most tokens of a prompt and a text. */
  readonly context: number;
}

/** The frames of a second by which windows of sound are cut. */
export const FRAMES_PER_SECOND = 100;

/** Infinity for a model that writes no timestamps. */
export const firstTimestamp = ({ no_timestamps }: Pick<SpeechModel, "no_timestamps">): number =>
  no_timestamps === null ? Infinity : no_timestamps + 1;

/** The seconds from one timestamp to the next. */
export const secondsPerStamp = ({ seconds, rows }: SpeechModel): number => seconds / rows;

/** How sound is transcribed. */
export interface TranscriptionTask {
  /** Its code, such as "en"; null if it is not known yet, and for models that do not name theirs. */
  readonly language: string | null;
  readonly translate: boolean;
  readonly timestamps: boolean;
  /** The tokens of a text that precedes: its last ones are kept. */
  readonly previous: readonly number[];
}

/** Throws RequestError for a language or task that the model does not have. */
export function checkTask(model: SpeechModel, language: string | null, translate: boolean): null {
  const codes = model.languages.map(({ code }) => code);
  if (language !== null && !codes.includes(language)) {
    const known = codes.length === 0 ? "it knows one language, so leave it out" : `known: ${codes.join(", ")}`;
    throw new RequestError(`language '${language}' is not known to the model; ${known}`);
  }
  if (translate && model.translate === null) {
    throw new RequestError("the model does not translate; use one of several languages, or transcribe");
  }
  return null;
}

/** The tokens of a prompt. */
export function transcriptionPrompt(model: SpeechModel, task: TranscriptionTask): readonly number[] {
  const { previous, start, languages, transcribe, translate, no_timestamps } = model;
  // As many as leave half of the context to the text.
  const kept = task.previous.slice(Math.max(0, task.previous.length - (Math.floor(model.context / 2) - 1)));
  const before = kept.length > 0 && previous !== null ? [previous, ...kept] : [];
  const tokens = [...before, start];
  const language = languages.find(({ code }) => code === task.language)?.token ?? null;
  if (language !== null) {
    const chosen = task.translate ? translate : transcribe;
    tokens.push(language, ...(chosen === null ? [] : [chosen]));
  }
  return task.timestamps || no_timestamps === null ? tokens : [...tokens, no_timestamps];
}
