import { expect, test, vi } from "vitest";
import fc from "fast-check";

import type { DocumentFormat } from "../../src/retrieval/document.js";
import { DOCUMENT_FORMATS, readDocument } from "../../src/retrieval/document.js";
import { segmentEnds } from "../../src/retrieval/pack.js";

const texts = (source: string, format: DocumentFormat, maxCharacters = 600): string[] =>
  readDocument(source, { format, maxCharacters }).passages.map(({ text }) => text);

test("paragraphs of one text are packed until a passage is full", () => {
  const source = "One line\nand another.\n\nA second paragraph.\n \n\nA third one, which is a bit longer.";
  expect(texts(source, "text")).toEqual([source]);
  expect(texts(source, "text", 50)).toEqual([
    "One line\nand another.\n\nA second paragraph.",
    "A third one, which is a bit longer.",
  ]);
});

test.each(["word", "grapheme"] as const)("a long text is divided in windows by %s", (granularity) => {
  const segment = vi.spyOn(Intl.Segmenter.prototype, "segment");
  try {
    const source = (granularity === "word" ? "some words and " : "x".repeat(16)).repeat(1000);
    const passages = texts(source, "text");
    expect(passages.join("").replaceAll(" ", "")).toBe(source.replaceAll(" ", ""));
    const windows = segment.mock.calls.filter(
      (_, call) => (segment.mock.contexts[call] as Intl.Segmenter).resolvedOptions().granularity === granularity,
    );
    expect(windows.length).toBeGreaterThan(1);
    for (const [window] of windows) expect(window.length).toBeLessThanOrEqual(1024);
  } finally {
    segment.mockRestore();
  }
});

test("windows change no passage", () => {
  const words = [
    "a",
    "I.",
    "e.g.b",
    "3.14",
    "Mr. ",
    "End. ",
    "End.) ",
    "née",
    "🇩🇪",
    "👩‍👩‍👧",
    "日本語。",
    "don't",
    " ",
    "\r\n",
    "?! ",
    "x".repeat(70),
  ];
  const text = fc.array(fc.constantFrom(...words), { minLength: 200, maxLength: 500 }).map((parts) => parts.join(""));
  const ends = (source: string, granularity: "sentence" | "word" | "grapheme", windowed: boolean): number[] => {
    const segmenter = new Intl.Segmenter("en", { granularity });
    if (windowed) return [...segmentEnds(source, segmenter)];
    return [...segmenter.segment(source)].map(({ index, segment }) => index + segment.length);
  };
  fc.assert(
    fc.property(text, fc.constantFrom("sentence" as const, "word" as const, "grapheme" as const), (source, kind) => {
      expect(ends(source, kind, true)).toEqual(ends(source, kind, false));
    }),
    { numRuns: 40, seed: 1 },
  );
});

test("Markdown passages do not cross headings, and know the headings above them", () => {
  const source =
    "# Guide\n\nHello.\n\n## Set *up*\n\n- first\n- second\n\n```sh\n# no heading\n```\n\nTitle\n-----\n\nEnd.\n\n# [Other](x)\n";
  expect(readDocument(source, { format: "markdown" }).passages.map(({ headings, text }) => [headings, text])).toEqual([
    [["Guide"], "Hello."],
    [["Guide", "Set up"], "- first\n- second\n\n```sh\n# no heading\n```"],
    [["Guide", "Title"], "End."],
    [[], "# [Other](x)"],
  ]);
});

test("a long Markdown list is divided between its items, and a table between its rows", () => {
  const items = Array.from({ length: 20 }, (_, index) => `- item ${index} has some words`);
  for (const passage of texts(items.join("\n"), "markdown", 100)) expect(passage).toMatch(/^- item \d+ .* words$/s);
  const rows = Array.from({ length: 20 }, (_, index) => `| row ${index} | some words |`);
  for (const passage of texts(`| a | b |\n|---|:-:|\n${rows.join("\n")}`, "markdown", 100))
    expect(passage).toMatch(/^\|.*\|$/s);
});

test("HTML passages have the text that a reader sees", () => {
  const source =
    "<!doctype html><html><head><title>No</title><style>p { color: red }</style></head><body><h1>Caf&eacute;</h1>" +
    "<p>One &amp; <b>two</b>\n  three&nbsp;&#x41;.</p><script>if (1 < 2) alert('</p>')</script><div hidden>no</div>" +
    "<ul><li>first<li>second</ul><table><tr><td>a</td><td>b</td></tr></table><pre>x  &lt; y\n z</pre>" +
    "<!-- <p>no</p> --><p title='a > b'>last &unknown; 3 < 4</p></body></html>";
  const { text, passages } = readDocument(source, { format: "html" });
  expect(text).toBe("Café\nOne & two three\u00a0A.\nfirst\nsecond\na b\nx  < y\n z\nlast &unknown; 3 < 4\n");
  expect(passages.map(({ headings }) => headings)).toEqual([["Café"]]);
});

test("offsets in an HTML text lead to the source", () => {
  const source = "<p>a &amp; <i>bold</i> word</p>\n<p>next</p>";
  const { text, sourceOffset } = readDocument(source, { format: "html" });
  for (const word of ["bold", "word", "next"])
    expect(source.slice(sourceOffset(text.indexOf(word))).startsWith(word)).toBe(true);
  expect(source.slice(sourceOffset(text.indexOf("&")))).toMatch(/^&amp;/);
});

test("a script, a comment and a tag that do not end hide the rest, as in a browser", () => {
  for (const rest of ["<script>b", "<!-- b", "<noscript><p>b", "<b title='", "<? b", "<p hidden>b"])
    expect(texts(`<p>a</p>${rest}`, "html")).toEqual(["a"]);
  expect(texts("<p>a <svg/>b</p><p hidden=''>c</p><p class=hidden>d</p>", "html")).toEqual(["a b\nd"]);
});

test.each(["<", "<a ", "<p>", "&#", "</", '<a b="', "<h1>", "\n\n", " ", "#", "# ", "[", "- ", "<td>", "x "])(
  "many times %j is read in linear time",
  (part) => {
    // Quadratic time would be minutes.
    for (const format of DOCUMENT_FORMATS) readDocument(part.repeat(100_000), { format, maxCharacters: 1e9 });
  },
);

test("a text without spaces is divided between graphemes", () => {
  const family = "👨‍👩‍👧‍👦";
  for (const passage of texts(family.repeat(30), "text", 40)) expect(passage.length % family.length).toBe(0);
});

test("every passage of any text is a range of it, and together they hold every word", () => {
  const piece = fc.constantFrom(
    "# a\n",
    "\n\n",
    "- b ",
    "word ",
    "```\n",
    "<p>",
    "| x |\n",
    "é",
    "x. ",
    "<h2>",
    "</h2>",
    "&lt;",
  );
  fc.assert(
    fc.property(
      fc.array(piece, { maxLength: 30 }),
      fc.constantFrom<DocumentFormat>("text", "markdown", "html"),
      (pieces, format) => {
        const { text, passages } = readDocument(pieces.join(""), { format, maxCharacters: 32 });
        let last = 0;
        for (const { start, end, text: part } of passages) {
          expect(text.slice(start, end)).toBe(part);
          expect(part.trim()).not.toBe("");
          expect(start).toBeGreaterThanOrEqual(last);
          last = end;
        }
        const words = (whole: string): number => whole.match(/word|b|x/g)?.length ?? 0;
        const found = passages.flatMap((each) => [each.text, ...each.headings]).join(" ");
        expect(words(found)).toBeGreaterThanOrEqual(words(text));
      },
    ),
    { numRuns: 60 },
  );
});

test("an unknown format and a passage length below 32 are errors", () => {
  expect(() => readDocument("a", { format: "pdf" as DocumentFormat })).toThrow(/document format is pdf/);
  expect(() => readDocument("a", { format: "text", maxCharacters: 10 })).toThrow(/maxCharacters is 10/);
});
