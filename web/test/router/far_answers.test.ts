// A far side that filters, continues after its end, or sends invalid responses: an end is an end, and near takes over
// from a failure.

import { readFileSync } from "node:fs";

import { expect, test } from "vitest";

import type { FarScript } from "./fakes.js";
import { MESSAGES, setUp } from "./hybrid_set_up.js";

const chunkOf = (content: string, finish_reason: string | null = null, index = 0): string =>
  JSON.stringify({ id: "c", created: 1, choices: [{ index, delta: { content }, finish_reason }] });
const usage = (completion_tokens: number): string =>
  JSON.stringify({ id: "c", created: 1, choices: [], usage: { prompt_tokens: 3, completion_tokens } });
const FILTERED = [chunkOf("one "), chunkOf("", "content_filter")];
const DEEP = `${"[".repeat(100_000)}${"]".repeat(100_000)}`;

async function answer(script: FarScript, params: object = {}, dialect: "openai" | "nearfar" = "nearfar") {
  const { nf, clock, source } = await setUp({ policy: { mode: "prefer-far", retries: 0 }, far: [script], dialect });
  const whole = nf.chat.completions.create({ messages: MESSAGES, ...params });
  await clock.pass(60_000);
  const { choices, route } = await whole;
  return {
    text: choices[0]?.message.content,
    end: choices[0]?.finish_reason,
    side: route?.side,
    reason: route?.reason,
    near: source.requests.length,
  };
}

test.each<[string, FarScript]>([
  ["and counts", { data: [...FILTERED, usage(2)] }],
  ["and breaks off", { data: FILTERED, then: "break" }],
  ["and fails", { data: [...FILTERED, '{"error":{"message":"filtered","code":500}}'] }],
  ["and hangs", { data: FILTERED, then: "hang" }],
  ["and talks on", { data: [...FILTERED, ...Array.from({ length: 40 }, () => chunkOf("more"))], then: "hang" }],
])("near does not continue the text of a far side that filters it %s", async (_, script) => {
  expect(await answer(script)).toEqual({ text: "one ", end: "content_filter", side: "far", reason: "prefer", near: 0 });
});

test("near does not answer what far filtered before its first token", async () => {
  expect(await answer({ data: [chunkOf("", "content_filter")], then: "hang" })).toMatchObject({
    text: "",
    end: "content_filter",
    side: "far",
    near: 0,
  });
});

test.each<[string, string[], object, "openai" | "nearfar", string, string]>([
  [
    "choices that were not requested",
    [chunkOf("a"), chunkOf("b", null, 1), chunkOf("", "stop"), chunkOf("c", "stop", 1)],
    {},
    "nearfar",
    "a",
    "stop",
  ],
  ["text after the end", [chunkOf("a", "stop"), chunkOf("b"), usage(1)], {}, "nearfar", "a", "stop"],
  [
    "one token beyond the limit",
    ["a", "b", "c"].map((text) => chunkOf(text)).concat(chunkOf("", "stop"), usage(3)),
    { max_tokens: 2 },
    "nearfar",
    "ab",
    "length",
  ],
  [
    "one token beyond the limit without a usage",
    ["a", "b", "c"].map((text) => chunkOf(text)).concat(chunkOf("", "stop")),
    { max_tokens: 2 },
    "nearfar",
    "ab",
    "length",
  ],
  [
    "many tokens beyond the limit",
    ["a", "b", "c", "d", "e"].map((text) => chunkOf(text)).concat(usage(1)),
    { max_tokens: 2 },
    "nearfar",
    "ab",
    "length",
  ],
])("%s: cut", async (_, data, params, dialect, text, end) => {
  expect(await answer({ data }, params, dialect)).toMatchObject({ text, end, side: "far", near: 0 });
});

test("a piece that was held back belongs to the answer, and so do pieces of tokens", async () => {
  const data = ["a", "b", "c"].map((text) => chunkOf(text)).concat(chunkOf("", "stop"));
  expect(await answer({ data: [...data, usage(2)] }, { max_tokens: 2 })).toMatchObject({ text: "abc", end: "stop" });
  expect(await answer({ data }, { max_tokens: 2 }, "openai")).toMatchObject({ text: "abc", end: "stop" });
});

test.each<[string, FarScript]>([
  ["no such model", { status: 404, error: { code: "model_not_found" } }],
  ["half a surrogate pair", { data: ['{"choices":[{"index":0,"delta":{"content":"\\ud800"}}]}'] }],
  [
    "half a surrogate pair in a call",
    { data: ['{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"\\udfff"}}]}}]}'] },
  ],
  ["deep JSON", { data: [`{"choices":${DEEP}}`] }],
  ["no JSON", { data: ["{"] }],
  ["a null character", { data: ["\0"] }],
  ["choices that are none", { data: ['{"choices":5}'] }],
  ["a choice that is null", { data: ['{"choices":[null]}'] }],
  ["a delta that is a text", { data: ['{"choices":[{"index":0,"delta":"x"}]}'] }],
  ["a content that is a number", { data: ['{"choices":[{"index":0,"delta":{"content":5}}]}'] }],
  ["calls that are none", { data: ['{"choices":[{"index":0,"delta":{"tool_calls":5}}]}'] }],
  ["an end that is a list", { data: ['{"choices":[{"index":0,"delta":{},"finish_reason":["stop"]}]}'] }],
])("near takes over from %s", async (_, script) => {
  expect(await answer(script)).toMatchObject({ text: "near by", end: "stop", side: "near", reason: "far_failed" });
});

test("near continues if an invalid chunk follows a text, and complete surrogate pairs are text", async () => {
  expect(
    await answer({ data: [chunkOf("near "), '{"choices":[{"index":0,"delta":{"content":"\\ud800"}}]}'] }),
  ).toMatchObject({ side: "near", reason: "far_failed" });
  expect(
    await answer({
      data: ['{"choices":[{"index":0,"delta":{"content":"\\ud83d\\ude00"},"finish_reason":"recitation"}]}'],
    }),
  ).toMatchObject({ text: "😀", end: "recitation", side: "far" });
});

interface BoundsCase {
  readonly name: string;
  readonly limit: number;
  readonly counts_pieces: boolean;
  readonly pieces: readonly string[];
  readonly counted: number | null;
  readonly text: string;
  readonly finish_reason: string;
}

const BOUNDS = JSON.parse(
  readFileSync(new URL("../../../tests/conformance/answer_bounds.json", import.meta.url), "utf8"),
) as readonly BoundsCase[];

test.each(BOUNDS)(
  "an answer is cut at max_tokens, whatever its length claims to be: $name",
  async ({ limit, counts_pieces, pieces, counted, text, finish_reason }) => {
    const data = [
      ...pieces.map((piece) => chunkOf(piece)),
      chunkOf("", "stop"),
      ...(counted === null ? [] : [usage(counted)]),
    ];
    expect(await answer({ data }, { max_tokens: limit }, counts_pieces ? "nearfar" : "openai")).toMatchObject({
      text,
      end: finish_reason,
      side: "far",
    });
  },
);
