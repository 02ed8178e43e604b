import { describe, expect, it } from "vitest";
import { nextTokens } from "../../src/shared/transcription/next_tokens.js";
import type { SpeechModel } from "../../src/shared/transcription/speech.js";
import { checkTask, transcriptionPrompt } from "../../src/shared/transcription/speech.js";
import { THRESHOLDS, cutWindow, judgeText } from "../../src/shared/transcription/windows.js";

// Text is 0 to 39; timestamps are 20 ms apart from 50 on.
const MODEL: SpeechModel = {
  start: 41,
  no_timestamps: 49,
  no_speech: 48,
  seconds: 1,
  languages: [
    { code: "en", token: 42 },
    { code: "de", token: 43 },
  ],
  transcribe: 46,
  translate: 45,
  previous: 47,
  suppressed: [],
  suppressed_first: [],
  max_initial_timestamp: 20,
  ends: [40],
  rows: 50,
  context: 40,
};
const SIZE = 101;

/** The tokens that may follow. */
function allowed(...written: readonly number[]): readonly number[] {
  const { banned } = nextTokens(MODEL, written, true, SIZE);
  const tokens = Array.from({ length: SIZE }, (_, token) => token);
  return tokens.filter((token) => !banned.some(([from, to]) => token >= from && token < to));
}

describe("the tokens of a text with timestamps", () => {
  it("begin with an early timestamp", () => {
    expect(allowed()).toEqual(Array.from({ length: 21 }, (_, index) => 50 + index));
  });

  it("have text behind the first timestamp, and behind a pair", () => {
    expect(Math.max(...allowed(50))).toBeLessThan(50);
    expect(Math.max(...allowed(50, 7, 60, 60))).toBeLessThan(50);
  });

  it("have a timestamp or the end behind a single one, which may be repeated", () => {
    expect(Math.min(...allowed(50, 7, 60))).toBe(40);
    expect(allowed(50, 7, 60)).toContain(60);
    expect(allowed(50, 7, 60)).not.toContain(59);
    expect(allowed(50, 7, 60)).not.toContain(7);
  });

  it("never end a segment where it begins", () => {
    expect(allowed(50, 7)).not.toContain(50);
    expect(allowed(50, 7)).toContain(51);
    expect(allowed(50, 7, 60, 60, 8)).not.toContain(60);
  });

  it("are not restricted without timestamps", () => {
    expect(nextTokens(MODEL, [1], false, SIZE)).toEqual({ banned: [], isFirst: false, preferred: null });
  });
});

describe("a window", () => {
  const cut = (tokens: readonly number[], frames = 100): ReturnType<typeof cutWindow> =>
    cutWindow(MODEL, tokens, { seek: 300, frames });

  it("ends each segment at a pair of timestamps, and leaves the rest to the next window", () => {
    expect(cut([50, 7, 60, 60, 8, 75, 80, 9])).toEqual({
      segments: [
        { start: 3, end: 3.2, tokens: [50, 7, 60] },
        { start: 3.2, end: 3.5, tokens: [60, 8, 75] },
      ],
      advance: 50,
    });
  });

  it("is done if it ends with one timestamp", () => {
    const { segments, advance } = cut([50, 7, 60, 60, 8, 75]);
    expect(segments).toHaveLength(2);
    expect(advance).toBe(100);
  });

  it("is one segment without pairs, up to its last timestamp or its end", () => {
    expect(cut([50, 7, 8])).toEqual({ segments: [{ start: 3, end: 4, tokens: [50, 7, 8] }], advance: 100 });
    expect(cut([55, 7, 70]).segments[0]?.end).toBe(3.4);
    expect(cut([1, 2], 37)).toEqual({ segments: [{ start: 3, end: 3.37, tokens: [1, 2] }], advance: 37 });
  });

  it("always makes progress, within the window", () => {
    expect(cut([50, 50]).advance).toBe(100);
    expect(cut([50, 7, 95, 96, 8], 60).advance).toBe(60);
  });
});

it("judges a text by its repetitions, its likelihood and whether there is speech", () => {
  const good = { compressionRatio: 1.2, meanLogprob: -0.3, noSpeech: 0.9 };
  expect(judgeText(good, THRESHOLDS)).toBe("use");
  expect(judgeText({ ...good, compressionRatio: 1.4 }, THRESHOLDS)).toBe("retry");
  expect(judgeText({ ...good, meanLogprob: -1.1 }, THRESHOLDS)).toBe("skip");
  expect(judgeText({ ...good, meanLogprob: -1.1, noSpeech: 0.5 }, THRESHOLDS)).toBe("retry");
});

it("prompts with the language, the task and the end of the text before", () => {
  const task = { language: "de", translate: true, timestamps: true, previous: Array.from({ length: 30 }, (_, i) => i) };
  expect(transcriptionPrompt(MODEL, task)).toEqual([47, ...task.previous.slice(-19), 41, 43, 45]);
  const plain = { language: null, translate: false, timestamps: false, previous: [] };
  expect(transcriptionPrompt(MODEL, plain)).toEqual([41, 49]);
  expect(checkTask(MODEL, "de", true)).toBeNull();
  expect(() => checkTask(MODEL, "fr", false)).toThrow("known: en, de");
  expect(() => checkTask({ ...MODEL, languages: [], translate: null }, null, true)).toThrow("does not translate");
  const english = { ...MODEL, languages: [{ code: "en", token: null }], transcribe: null, translate: null };
  expect(checkTask(english, "en", false)).toBeNull();
  expect(() => checkTask(english, "de", false)).toThrow("language 'de' is not known to the model; known: en");
  expect(transcriptionPrompt(english, { ...plain, language: "en" })).toEqual(
    transcriptionPrompt({ ...english, languages: [] }, plain),
  );
});
