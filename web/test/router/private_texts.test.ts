// Which texts of a request are searched for private patterns, and which of them meet in the prompt.

import { readFileSync } from "node:fs";

import { expect, test } from "vitest";

import { PrivateCheck } from "../../src/shared/decision/privacy.js";
import { PRIVATE_TEXTS, privateTexts, requestTexts } from "../../src/shared/decision/private_texts.js";
import type { Media, MediaKind } from "../../src/shared/decision/media.js";
import { mediaOf } from "../../src/shared/decision/media.js";
import type { Situation } from "../../src/shared/decision/situation.js";
import { HYBRID_PARAMS } from "../../src/router/hybrid_options.js";
import type { HybridParams } from "../../src/router/request.js";
import { readRequest, withFileTexts } from "../../src/router/request.js";

interface Case {
  readonly name: string;
  readonly request: HybridParams;
  readonly texts: readonly string[];
  readonly meeting: readonly string[];
}

interface MediaCase {
  readonly name: string;
  /** Of each: its kind, message and part. */
  readonly media: readonly (readonly [MediaKind, number | null, number | null])[];
}

interface Verdict extends Pick<Case, "name" | "request"> {
  readonly pattern: string;
  readonly private: boolean;
}

const vectors = JSON.parse(
  readFileSync(new URL("../../../tests/conformance/private_texts.json", import.meta.url), "utf8"),
) as {
  readonly not_searched: readonly string[];
  readonly texts: readonly Case[];
  readonly verdicts: readonly Verdict[];
  readonly media: readonly (MediaCase & Pick<Case, "request">)[];
  readonly files: readonly (MediaCase &
    Omit<Verdict, "request"> &
    Pick<HybridParams, "messages"> & { readonly contents: readonly string[] })[];
  readonly unknown_parts: readonly (MediaCase & { readonly messages: readonly unknown[] })[];
  /** Values of other kinds than the API has. */
  readonly odd_values: readonly (Pick<Case, "name" | "texts"> & { readonly request: object })[];
};
const unique = (texts: Iterable<string>): readonly string[] => [...new Set(texts)].sort();
/** Parameters that this package does not have are left out. */
const known = (request: HybridParams): HybridParams =>
  Object.fromEntries(Object.entries(request).filter(([key]) => Object.hasOwn(HYBRID_PARAMS, key))) as never;

test.each(vectors.texts)("conformance: $name", ({ request, texts, meeting }) => {
  const { properties } = readRequest(known(request));
  expect(unique(properties.texts.flat())).toEqual(unique(texts));
  expect(
    properties.messages.flatMap(({ content, parts = [] }) => (parts.length > 0 ? parts : [content])).filter(Boolean),
  ).toEqual(meeting.filter(Boolean));
  const found = [...privateTexts(request)];
  expect(found.filter(({ meets }) => meets).map(({ text }) => text)).toEqual(meeting);
  expect(unique(found.filter(({ meets }) => !meets).map(({ text }) => text))).toEqual(unique(texts));
});

test.each(vectors.verdicts)("conformance: $name", ({ pattern, request, private: isPrivate }) => {
  const check = PrivateCheck.of({ labels: [], patterns: [pattern], ignore_case: true });
  expect(check.isPrivate(readRequest(known(request)).properties as unknown as Situation)).toBe(isPrivate);
});

const listed = (media: readonly Media[]) => media.map(({ kind, message, part }) => [kind, message, part]);

test.each(vectors.media)("media: $name", ({ request, media }) => {
  expect(listed(readRequest(known(request)).properties.media)).toEqual(media);
});

test.each(vectors.files)("files: $name", async ({ messages, contents, media, pattern, private: isPrivate }) => {
  const { properties } = await withFileTexts(readRequest({ messages }));
  expect(properties.messages.map(({ content }) => content)).toEqual(contents);
  expect(listed(properties.media)).toEqual(media);
  const check = PrivateCheck.of({ labels: [], patterns: [pattern], ignore_case: true });
  expect(check.isPrivate(properties as unknown as Situation)).toBe(isPrivate);
});

test.each(vectors.unknown_parts)("media: $name", ({ messages, media }) => {
  expect(listed(requestTexts({ messages }, []).media)).toEqual(media);
});

test.each(vectors.odd_values)("searched: $name", ({ request, texts }) => {
  expect(unique([...privateTexts(request)].map(({ text }) => text))).toEqual(unique(texts));
});

test("a long text that begins as an address takes linear time", () => {
  for (const repeated of ["a", "data:", ";base64,", "; ", "data:image/a;"])
    expect(mediaOf([], [`data:${repeated.repeat(400_000)}`])).toEqual([]);
});

test("every parameter is either searched or has no text", () => {
  const decided = new Set([...vectors.not_searched, ...Object.keys(PRIVATE_TEXTS), "signal"]);
  expect(Object.keys(HYBRID_PARAMS).filter((name) => !decided.has(name))).toEqual([]);
});

test("deep and unknown values are searched", () => {
  let deep: unknown = "078-05-1120";
  for (let depth = 0; depth < 5000; depth++) deep = [deep];
  const messages = [{ role: "user", content: [{ type: "audio", data: { id: 12 } }] }];
  expect([...privateTexts({ metadata: deep, messages })].map(({ text }) => text).sort()).toEqual([
    "078-05-1120",
    "12",
    "data",
    "id",
  ]);
});
