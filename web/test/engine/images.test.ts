// Images in prompts: their features are placed where their tokens are, and never those of another image.

import { readFileSync } from "node:fs";

import fc from "fast-check";
import { expect, test } from "vitest";

import { DraftAssistant, DraftHeads } from "../../src/drafts/draft_heads.js";
import { DraftModel } from "../../src/drafts/draft_model.js";
import { Drafting } from "../../src/drafts/drafting.js";
import { NgramDrafter } from "../../src/drafts/ngram_drafter.js";
import type { PromptImage, TokenRequest } from "../../src/engine/request.js";
import { forkOf, newConversation } from "../../src/engine/sequence.js";
import type { Drafter } from "../../src/engine/speculation.js";
import type { StepRunner } from "../../src/engine/step_runner.js";
import { TokenEngine } from "../../src/engine/token_engine.js";
import { DeviceError, RequestError } from "../../src/errors.js";
import { placeImages, placeholderKey, promptKeys, ropePositions } from "../../src/images/placed_images.js";
import type { PatchBatch } from "../../src/runtime/batch.js";
import { answer, engineOn, LIMITS, onePool } from "./engine_set_up.js";
import { STOP, VOCAB, answerOf } from "./fake_model.js";
import { FakeRunner } from "./fake_runner.js";

const PLACEHOLDER = 15;
const COLUMNS = 2;

interface Vector {
  readonly tokens: readonly number[];
  readonly images: readonly Pick<PromptImage, "offset" | "length" | "key" | "first">[];
  readonly keys: readonly number[];
}
const { prompts } = JSON.parse(readFileSync("../tests/conformance/image_keys.json", "utf8")) as {
  readonly prompts: readonly Vector[];
};

type Picture = Pick<PromptImage, "offset" | "length" | "columns">;
const TURNS = JSON.parse(readFileSync("../tests/conformance/rope_positions.json", "utf8")) as Record<
  string,
  { readonly images: readonly Picture[]; readonly positions: readonly (readonly number[])[] }
>;

const keyOf = (seed: number): string => seed.toString(16).padStart(2, "0").repeat(32);

/** What the model reads in the places of an image: numbers that depend on the image. */
const valuesOf = (seed: number, length: number): readonly number[] =>
  Array.from({ length }, (_, index) => 100 + seed * 37 + index * 11);

const imageAt = (offset: number, seed: number, length: number): PromptImage => ({
  offset,
  length,
  key: keyOf(seed),
  features: Float32Array.from(valuesOf(seed, length).flatMap((value) => [value, -1])),
});

type Part = number | { readonly seed: number; readonly length: number };

function requestOf(parts: readonly Part[]): Pick<TokenRequest, "promptIds" | "images"> {
  const promptIds: number[] = [];
  const images: PromptImage[] = [];
  for (const part of parts) {
    if (typeof part !== "number") images.push(imageAt(promptIds.length, part.seed, part.length));
    promptIds.push(...(typeof part === "number" ? [part] : Array<number>(part.length).fill(PLACEHOLDER)));
  }
  return { promptIds, images };
}

const readOf = (parts: readonly Part[]): readonly number[] =>
  parts.flatMap((part) => (typeof part === "number" ? [part] : valuesOf(part.seed, part.length)));

const expected = (parts: readonly Part[], maxTokens = 6): readonly number[] =>
  answerOf(readOf(parts), maxTokens, LIMITS.context).tokens;

function seeingOn(
  runner: StepRunner,
  replace: (() => Promise<StepRunner>) | null = null,
  wholeImages = false,
  drafter?: Drafter,
): TokenEngine {
  const place = (request: TokenRequest, maxTokens: number) =>
    placeImages(
      request,
      { picture: PLACEHOLDER, sound: null },
      COLUMNS,
      wholeImages ? maxTokens : null,
      drafter !== undefined,
    );
  const drafting = drafter && new Drafting(drafter);
  return new TokenEngine(runner, { vocabSize: VOCAB, endTokenIds: [STOP], place }, replace, undefined, () => drafting);
}

const CAT = { seed: 1, length: 6 };
const DOG = { seed: 2, length: 6 };

test.each(prompts)("keys of prompts are those of every runtime", ({ tokens, images, keys }) => {
  expect(promptKeys(tokens, images)).toEqual(keys);
  for (const key of keys) expect(Number.isSafeInteger(key)).toBe(true);
});

test.each(Object.entries(TURNS))("a chunk has the positions of its tokens: %s", (_, { images, positions }) => {
  for (let start = 0; start < positions.length; start++)
    for (let stop = start + 1; stop <= positions.length; stop++)
      expect(ropePositions(images, start, stop)).toEqual(positions.slice(start, stop).flat());
});

test("only models that rotate by row and column have positions of several axes, and these need whole rows", async () => {
  const runner = new FakeRunner(LIMITS);
  const parts = [3, { seed: 4, length: 6 }, 5];
  await answer(seeingOn(runner), { ...requestOf(parts), maxTokens: 2 });
  expect(runner.batches[1]?.rope_positions).toEqual([8, 8, 8]);
  const place = (request: TokenRequest) =>
    placeImages(request, { picture: PLACEHOLDER, sound: null }, COLUMNS, null, true);
  const engine = new TokenEngine(runner, { vocabSize: VOCAB, endTokenIds: [STOP], place }, null);
  const request = { ...requestOf(parts), maxTokens: 2 };
  await expect(answer(engine, request)).rejects.toThrow("image 0 has 6 features, 0 side by side");
  const before = runner.batches.length;
  const images = (request.images ?? []).map((image) => ({ ...image, columns: 3 }));
  await answer(engine, { ...request, images });
  const found = runner.batches.slice(before).map(({ rope_positions: own }) => own);
  expect(found).toEqual([
    [0, 0, 0, 1, 1, 1, 1, 1, 2, 1, 1, 3, 1, 2, 1, 1, 2, 2, 1, 2, 3, 4, 4, 4],
    [5, 5, 5],
  ]);
});

test("images that agree in one window of their keys differ in every page of placeholders", () => {
  const [first, second] = ["ab".repeat(32), "ab".repeat(6) + "cd".repeat(26)];
  const found = [first, second].map((key) => promptKeys(Array<number>(10).fill(1), [{ offset: 1, length: 9, key }]));
  const [own = [], other = []] = found;
  expect(own[1]).toBe(other[1]);
  expect(own[1]).toBe(placeholderKey(first, 0));
  for (const start of [0, 5]) expect(own.slice(start, start + 5)).not.toEqual(other.slice(start, start + 5));
});

test("features of chunks that begin and end inside images replace their embeddings", async () => {
  const runner = new FakeRunner(LIMITS);
  const engine = seeingOn(runner);
  const parts = [3, { seed: 4, length: 11 }, 5, 2, { seed: 5, length: 3 }, { seed: 6, length: 9 }, 1];
  expect((await answer(engine, requestOf(parts))).ids).toEqual(expected(parts));
  const placed = runner.batches.map(({ feature_rows: rows = [] }) => rows.length);
  expect(placed.slice(0, 5)).toEqual([7, 6, 8, 2, 0]);
  expect(runner.batches[4]).not.toHaveProperty("features");
});

test("the second question about a picture continues from the state at the picture's last page border", async () => {
  const engine = seeingOn(new FakeRunner({ ...LIMITS, states: 16 }));
  const about = (seed: number, ...question: readonly number[]): readonly Part[] => [
    3,
    { seed, length: 10 },
    ...question,
  ];
  const cached: number[] = [];
  // The last one follows the first, whose whole prompt was kept.
  for (const parts of [about(1, 5, 1, 2, 3, 4, 2), about(1, 7, 1, 4), about(2, 5, 1), about(1, 5, 1, 2, 3, 4, 2, 9)]) {
    const { ids, completion } = await answer(engine, requestOf(parts));
    expect(ids).toEqual(expected(parts));
    cached.push(completion.cachedTokens);
  }
  expect(cached).toEqual([0, 8, 0, 16]);
});

test("no step ends inside an image that is read as a whole", async () => {
  const runner = new FakeRunner(LIMITS);
  const engine = seeingOn(runner, null, true);
  const parts = [3, 1, 2, { seed: 4, length: 7 }, 5, { seed: 5, length: 3 }, 2, { seed: 6, length: 4 }, 1];
  expect((await answer(engine, requestOf(parts))).ids).toEqual(expected(parts));
  const placed = runner.batches.map(({ feature_rows: rows = [] }) => rows.length);
  expect(placed.slice(0, 4)).toEqual([0, 7, 7, 0]);
  // Each token of an image sees its last one.
  expect(runner.batches[2]?.reach).toEqual([13, 13, 13, 14, 18, 18, 18, 18]);
  const others = Array.from({ length: 3 }, (_, index) => [
    ...[index, 1, { seed: 10 + index, length: 6 }, 5],
    { seed: 20 + index, length: 6 },
  ]);
  const found = await Promise.all(others.map((own) => answer(engine, requestOf(own))));
  expect(found.map(({ ids }) => ids)).toEqual(others.map((own) => expected(own)));
  for (const { feature_rows: rows = [] } of runner.batches.slice(placed.length)) expect([0, 6]).toContain(rows.length);
  await expect(answer(engine, requestOf([3, { seed: 7, length: 9 }]))).rejects.toThrow("an image takes 9 tokens");
  // The device may return to its first chunk.
  const changing = seeingOn(new FakeRunner({ ...LIMITS, tokens: 16, chunk: 8 }), null, true);
  await expect(answer(changing, requestOf([3, { seed: 7, length: 9 }]))).rejects.toThrow("computes at most 8");
  await expect(
    answer(
      engine,
      requestOf([
        { seed: 5, length: 3 },
        { seed: 6, length: 4 },
      ]),
    ),
  ).rejects.toThrow("no token of text between image 0 and image 1");
  await expect(answer(engine, { ...requestOf(parts), promptLogprobs: 1 })).rejects.toThrow("promptLogprobs cannot be");
});

test("another question about a picture computes only its new tokens, and another picture has its own pages", async () => {
  const engine = seeingOn(new FakeRunner(LIMITS));
  const ask = async (...parts: Part[]): Promise<number> => {
    const { ids, completion } = await answer(engine, requestOf(parts));
    expect(ids).toEqual(expected(parts));
    return completion.cachedTokens;
  };
  expect(await ask(3, 1, CAT, 5, 2)).toBe(0);
  expect(await ask(3, 1, CAT, 7, 7, 2)).toBe(8);
  expect(await ask(3, 1, DOG, 5, 2)).toBe(0);
  expect(await ask(3, 1, DOG, 5, 2)).toBe(8);
});

test("answers with images are the same alone, together, and after preemptions", async () => {
  const image = fc.record({ seed: fc.integer({ min: 1, max: 3 }), length: fc.integer({ min: 1, max: 12 }) });
  const part = fc.oneof(fc.integer({ min: 1, max: 14 }), image);
  const prompt = fc.array(part, { minLength: 1, maxLength: 6 }).filter((parts) => readOf(parts).length < 50);
  let preemptions = 0;
  const property = fc.asyncProperty(fc.array(prompt, { minLength: 2, maxLength: 5 }), async (asked) => {
    const engine = seeingOn(new FakeRunner({ ...LIMITS, groups: onePool(17) }));
    const found = await Promise.all(asked.map((parts) => answer(engine, { ...requestOf(parts), maxTokens: 12 })));
    expect(found.map(({ ids }) => ids)).toEqual(asked.map((parts) => expected(parts, 12)));
    ({ preemptions } = { preemptions: preemptions + engine.counts.preemptions });
  });
  await fc.assert(property, { numRuns: 150 });
  expect(preemptions).toBeGreaterThan(0);
});

/** Prompts whose first two tokens are the last one and the one that follows it, as the text guesses. */
const TWICE = Array.from({ length: 14 * 14 }, (_, index) => [1 + (index % 14), 1 + Math.floor(index / 14)] as const)
  .map(([last, next]) => [last, next, CAT, last] as const)
  .filter((parts) => expected(parts)[0] === parts[1])
  .slice(0, 2);

const GUESSING: Readonly<Record<string, (runner: FakeRunner) => Drafter>> = {
  heads: (runner) => new DraftHeads(runner),
  "an assistant": (runner) => new DraftAssistant(Object.assign(runner, { hasAssistant: true })),
  "the text": () => new NgramDrafter(),
};

test.each(Object.keys(GUESSING))("%s guess the answers to images from what the model reads", async (name) => {
  const prompts: readonly (readonly Part[])[] = [
    [3, { seed: 4, length: 11 }, 5, 2, { seed: 5, length: 3 }, { seed: 6, length: 9 }, 1],
    [3, { seed: 4, length: 11 }, 5, 2, { seed: 7, length: 3 }, 4],
    [CAT, 5],
    ...TWICE,
  ];
  const inColumns = (parts: readonly Part[]): ReturnType<typeof requestOf> => {
    const { promptIds, images = [] } = requestOf(parts);
    return { promptIds, images: images.map((image) => ({ ...image, columns: image.length % 3 === 0 ? 3 : 1 })) };
  };
  const runner = new FakeRunner({ ...LIMITS, rows: 20, draftPages: name === "heads" ? 60 : 0 });
  const drafter = GUESSING[name]?.(runner);
  const engine = seeingOn(runner, null, false, drafter);
  for (const asked of [prompts.slice(0, 1), prompts, prompts]) {
    const found = await Promise.all(asked.map((parts) => answer(engine, { ...inColumns(parts), maxTokens: 12 })));
    expect(found.map(({ ids }) => ids)).toEqual(asked.map((parts) => expected(parts, 12)));
    if (asked.length > 1) continue;
    // A row of the heads rotates by the position of the row that it reads, which the model has for it.
    const { images = [], promptIds } = inColumns(asked[0] ?? []);
    const turns = ropePositions(images, 0, promptIds.length + 12);
    for (const { positions, rope_positions = [] } of runner.batches)
      expect(rope_positions).toEqual(positions.flatMap((at) => turns.slice(3 * at, 3 * at + 3)));
  }
  const { draftedTokens, acceptedTokens } = engine.counts;
  expect(draftedTokens).toBeGreaterThan(0);
  if (name !== "the text") expect(acceptedTokens).toBe(draftedTokens);
});

test("answers to images have no drafts of what does not read them", async () => {
  const own = new FakeRunner({ ...LIMITS, rows: 20, draftPages: 60 });
  for (const drafter of [new DraftModel(new FakeRunner(LIMITS)), new DraftHeads(own, false)]) {
    const runner = drafter instanceof DraftHeads ? own : new FakeRunner({ ...LIMITS, rows: 20 });
    const engine = seeingOn(runner, null, false, drafter);
    const { promptIds, images = [] } = requestOf([3, CAT, 5]);
    const seen = { promptIds, images: images.map((image) => ({ ...image, columns: 3 })) };
    expect((await answer(engine, seen)).ids).toEqual(expected([3, CAT, 5]));
    expect(engine.counts.draftedTokens).toBe(0);
    expect((await answer(engine, requestOf([3, 1, 5]))).ids).toEqual(expected([3, 1, 5]));
    expect(engine.counts.draftedTokens).toBeGreaterThan(0);
  }
});

test("a conversation, its clone, and a saved one continue after their images", async () => {
  const runner = new FakeRunner(LIMITS);
  const engine = seeingOn(runner);
  const retained = newConversation();
  const ask = async (
    on: TokenEngine,
    parts: readonly Part[],
    conversation: typeof retained,
  ): Promise<{ next: readonly Part[]; cachedTokens: number }> => {
    const request = { ...requestOf(parts), maxTokens: 3 };
    const stream = on.generateTokens(request, conversation);
    const ids: number[] = [];
    let end = await stream.next();
    for (; end.done !== true; end = await stream.next()) ids.push(end.value.tokenId);
    expect(ids).toEqual(expected(parts, 3));
    return { next: [...parts, ...ids, 4], cachedTokens: end.value.cachedTokens };
  };
  const first = await ask(engine, [3, 1, CAT, 5, 2], retained);
  const clone = forkOf(retained);
  const saved = await engine.readRetained(retained);
  const length = readOf(first.next).length;
  for (const conversation of [retained, clone]) {
    const { cachedTokens } = await ask(engine, [...first.next, DOG, 1], conversation);
    expect(cachedTokens).toBeGreaterThan(length - 4);
  }
  // JSON is how they are saved.
  const { keysAndValues, ...record } = saved;
  const read = { ...(JSON.parse(JSON.stringify(record)) as typeof record), keysAndValues };
  const other = seeingOn(new FakeRunner(LIMITS));
  const restored = await ask(other, [...first.next, DOG, 1], other.writeRetained(read));
  expect(restored.cachedTokens).toBe(saved.tokenIds.length);
  // The same tokens with another picture are not that conversation.
  const wrong = seeingOn(new FakeRunner(LIMITS));
  const others = first.next.map((part) => (part === CAT ? DOG : part));
  expect((await ask(wrong, others, wrong.writeRetained(read))).cachedTokens).toBe(2);
});

test("what does not fit together is refused", async () => {
  const engine = seeingOn(new FakeRunner(LIMITS));
  const cat = imageAt(1, 1, 6);
  const promptIds = [3, ...Array<number>(6).fill(PLACEHOLDER), 2];
  const refused = async (request: Partial<TokenRequest>, message: RegExp, on = engine): Promise<void> => {
    const found: unknown = await answer(on, { promptIds, ...request }).catch((error: unknown) => error);
    expect(found).toBeInstanceOf(RequestError);
    expect((found as Error).message).toMatch(message);
  };
  await refused({}, /has 6 image tokens \(15\), and its images take 0/);
  await refused({ images: [cat, imageAt(7, 2, 1)] }, /image 1 takes tokens that are not the image token/);
  await refused({ images: [{ ...cat, length: 5 }] }, /image 0 has 12 numbers; it needs 5 features of 2/);
  await refused({ images: [imageAt(1, 1, 5)] }, /has 6 image tokens \(15\), and its images take 5/);
  await refused({ images: [imageAt(3, 1, 6)] }, /image 0 takes 6 tokens from token 3 on/);
  await refused({ images: [{ ...cat, key: "cat" }] }, /the key of image 0 is not a SHA-256/);
  await refused({ images: [cat], whenFull: { keep: 1 } }, /images cannot be dropped in part/);
  await refused({ images: [cat] }, /reads texts only/, engineOn(new FakeRunner(LIMITS)));
});

const tile = (...values: number[]): PatchBatch => ({
  patches: Float32Array.from(values),
  patch_rows: new Int32Array(1),
  patch_weights: new Float32Array(1),
  patch_starts: [0, 1],
});

test("features are computed between the steps of answers, also by the device after a lost one", async () => {
  const runners: FakeRunner[] = [];
  const replacement = (): Promise<FakeRunner> => {
    const runner = new FakeRunner(LIMITS);
    runners.push(runner);
    return Promise.resolve(runner);
  };
  const first = await replacement();
  first.loseAfterTiles = 1;
  const engine = seeingOn(first, replacement);
  expect([...(await engine.features(tile(1, 2)))]).toEqual([3, 3]);
  const long = answer(engine, { maxTokens: 30 });
  const found = Promise.all([engine.features(tile(4, 5)), engine.features(tile(6, 1))]);
  expect(engine.isBusy).toBe(true);
  expect((await found).map((features) => [...features])).toEqual([
    [9, 9],
    [7, 7],
  ]);
  expect((await long).ids).toEqual(answerOf([13, 2, 3, 13, 10, 1, 5, 13, 1, 14], 30, LIMITS.context).tokens);
  expect([engine.counts.recoveries, runners.length, runners[1]?.tiles.length]).toEqual([1, 2, 2]);
});

test("a request that comes while features are computed is answered", async () => {
  const runner = new FakeRunner(LIMITS);
  const compute = runner.features.bind(runner);
  runner.features = async (batch) => {
    await new Promise((resolve) => setTimeout(resolve, 10));
    return compute(batch);
  };
  const engine = seeingOn(runner);
  const features = engine.features(tile(1, 2));
  await new Promise((resolve) => setTimeout(resolve, 2));
  const parts = [3, 1, 2];
  expect((await answer(engine, requestOf(parts))).ids).toEqual(expected(parts));
  expect([...(await features)]).toEqual([3, 3]);
});

test("features that are still missing fail with the engine, and hinder that it is unloaded", async () => {
  const engine = seeingOn(new FakeRunner(LIMITS));
  const waiting = engine.features(tile(1));
  expect(engine.forgetAll()).toBe(false);
  engine.close(new DeviceError("gone"));
  await expect(waiting).rejects.toThrow("gone");
  await expect(engine.features(tile(1))).rejects.toThrow("gone");
  expect(engine.isBusy).toBe(false);
});
