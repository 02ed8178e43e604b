import { describe, expect, it } from "vitest";
import type { TokenSpan } from "../../src/shared/transcription/ctc.js";
import { rowWindows, withRows, wordSegments } from "../../src/shared/transcription/ctc.js";

const SIZES = { rows: 20, rowSamples: 1280, frameSamples: 160 };
const BLANK = 9;

describe("rowWindows", () => {
  it("reads a short sound at once", () => {
    expect(rowWindows(20 * 1280, SIZES)).toEqual([{ start: 0, end: 25_600, first: 0, last: 20 }]);
    expect(rowWindows(1281 + 160, SIZES)).toEqual([{ start: 0, end: 1441, first: 0, last: 2 }]);
    expect(rowWindows(1281, SIZES)).toEqual([{ start: 0, end: 1281, first: 0, last: 1 }]);
  });

  it("keeps each row of a long sound once, from a window that has sound on both sides of it", () => {
    for (let samples = 20 * 1280; samples < 80 * 1280; samples += 977) {
      const windows = rowWindows(samples, SIZES);
      const rows = windows.flatMap(({ start, first, last }) =>
        Array.from({ length: last - first }, (_, index) => start / 1280 + first + index),
      );
      expect(rows).toEqual(Array.from({ length: Math.ceil(Math.floor(samples / 160) / 8) }, (_, row) => row));
      for (const [index, { start, end, first, last }] of windows.entries()) {
        expect(end - start).toBeLessThanOrEqual(25_600);
        if (index > 0) expect(first).toBe(3);
        if (index + 1 < windows.length) expect([last, end - start]).toEqual([17, 25_600]);
      }
      expect(windows.at(-1)?.end).toBe(samples);
    }
  });
});

describe("withRows", () => {
  const named = (...tokens: number[]) => ({ tokens, logprobs: tokens.map((token) => -token) });

  it("writes equal neighbours once, and those that a blank parts twice", () => {
    const spans = withRows([], named(BLANK, 3, 3, BLANK, 3, 4, BLANK), 10, BLANK);
    expect(spans.map(({ token, start, end }) => [token, start, end])).toEqual([
      [3, 11, 13],
      [3, 14, 15],
      [4, 15, 16],
    ]);
    expect(spans[0]?.logprob).toBe(-3);
  });

  it("goes on with a token at the end of the window before", () => {
    const before = withRows([], named(BLANK, 5), 0, BLANK);
    expect(withRows(before, named(5, BLANK), 2, BLANK)).toEqual([{ token: 5, start: 1, end: 3, logprob: -5 }]);
    expect(withRows(before, named(BLANK, 5), 2, BLANK)).toHaveLength(2);
  });
});

describe("wordSegments", () => {
  /** Spans of one row each at these rows, and the texts of the pieces up to each. */
  function cut(pieces: readonly (readonly [piece: string, row: number])[], isLast = true, soundSeconds = 60) {
    const spans: readonly TokenSpan[] = pieces.map(([, row], token) => ({
      token,
      start: row,
      end: row + 1,
      logprob: -1,
    }));
    const texts = pieces.map((_, index) =>
      pieces
        .slice(0, index + 1)
        .map(([piece]) => piece)
        .join("")
        .trimStart(),
    );
    return wordSegments(spans, texts, 0.08, soundSeconds, isLast);
  }

  it("gives words the times of their first and last token", () => {
    const { segments, used } = cut([
      [" a", 0],
      ["b", 2],
      [" c", 5],
    ]);
    expect(used).toBe(3);
    expect(segments).toEqual([
      {
        start: 0,
        end: 0.48,
        text: " ab c",
        words: [
          { word: "ab", start: 0, end: 0.24 },
          { word: "c", start: 0.4, end: 0.48 },
        ],
        tokens: [0, 1, 2],
        logprob: -1,
      },
    ]);
  });

  it("ends no word behind the end of the sound, which may be inside the last row", () => {
    const { segments } = cut(
      [
        [" a", 0],
        ["b", 1],
      ],
      true,
      0.1,
    );
    expect(segments).toMatchObject([{ start: 0, end: 0.1, words: [{ word: "ab", start: 0, end: 0.1 }] }]);
  });

  it("ends segments at pauses and sentences, and before they are longer than 15 seconds", () => {
    const texts = (pieces: Parameters<typeof cut>[0]) => cut(pieces).segments.map(({ text }) => text);
    expect(
      texts([
        [" a", 0],
        [" b", 10],
        [" c", 21],
      ]),
    ).toEqual([" a b", " c"]);
    expect(
      texts([
        [" Yes", 0],
        [".", 1],
        [" No", 2],
        ["?", 3],
        ["”", 4],
        [" 3.5", 5],
      ]),
    ).toEqual([" Yes.", " No?”", " 3.5"]);
    const steady = Array.from({ length: 60 }, (_, index) => [" w", index * 5] as const);
    expect(texts(steady).map((text) => text.length / 2)).toEqual([38, 22]);
  });

  it("times each letter of a script without spaces, and parts its sentences", () => {
    const { segments } = cut([
      [" 今", 0],
      ["日は", 2],
      ["。", 4],
      ["OK", 6],
      ["です", 8],
    ]);
    expect(segments.map(({ text }) => text)).toEqual(["今日は。", "OKです"]);
    expect(segments.flatMap(({ words }) => words.map(({ word, start, end }) => [word, start, end]))).toEqual([
      ["今", 0, 0.08],
      ["日", 0.16, 0.24],
      ["は。", 0.16, 0.4],
      ["OK", 0.48, 0.56],
      ["で", 0.64, 0.72],
      ["す", 0.64, 0.72],
    ]);
  });

  it("leaves the last words to what follows", () => {
    expect(
      cut(
        [
          [" a", 0],
          [".", 1],
          [" b", 2],
          ["c", 3],
        ],
        false,
      ),
    ).toMatchObject({ segments: [{ text: " a." }], used: 2 });
    expect(
      cut(
        [
          [" a", 0],
          [".", 1],
        ],
        false,
      ),
    ).toEqual({ segments: [], used: 0 });
    expect(cut([], false)).toEqual({ segments: [], used: 0 });
    expect(cut([])).toEqual({ segments: [], used: 0 });
  });
});
