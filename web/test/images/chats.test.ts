// Chats about pictures: the whole package on a device, with the letters that see. Browsers decode files; here, messages
// have pixels.

import { expect, test, vi } from "vitest";

import type { ChatCompletionContentPart } from "../../src/api/types.js";
import type { RawPixels } from "../../src/images/index.js";
import { images } from "../../src/images/index.js";
import { imagePatches } from "../../src/images/patches.js";
import type { Pixels } from "../../src/images/resize.js";
import { Engine, RequestError } from "../../src/index.js";
import { dawn } from "../../tools/dawn.js";
import { lettersBundle, memorySource } from "../letters_bundle.js";
import { SEEING, letterOf, seeingBundle } from "../seeing_letters.js";

const gpu = dawn();
const hasAdapter = (await gpu.requestAdapter()) !== null;
const withEngine = test.runIf(hasAdapter);

function picture(seed: number, width = 8, height = 8): Pixels {
  const data = Uint8Array.from(
    { length: width * height * 3 },
    (_, index) => (seed * 7919 + index * (seed + 3) * 31) % 251,
  );
  return { width, height, data };
}

const LETTERS = "abcdefg";

/** What the model says after a picture at the end of its prompt, up to ``length`` letters: it stops at f. */
function spokenAfter(pixels: Pixels, length: number): string {
  const { patches } = imagePatches(SEEING, pixels);
  let letter = letterOf(patches.slice(-12));
  let text = "";
  for (let count = 0; count < length && letter !== 5; count++, letter = (3 * letter + 1) % 8)
    text += LETTERS.charAt(letter);
  return text;
}

const shown = (image: RawPixels): ChatCompletionContentPart => ({ type: "image", image });
const said = (text: string): ChatCompletionContentPart => ({ type: "text", text });
const asked = (...content: readonly ChatCompletionContentPart[]) => [{ role: "user" as const, content }];

async function loaded(files = seeingBundle().files): Promise<Engine> {
  return Engine.load(memorySource(files), { gpu, maxSequences: 2 });
}

async function answer(engine: Engine, ...content: readonly ChatCompletionContentPart[]) {
  const { choices, usage } = await engine.chat.completions.create({
    messages: asked(...content),
    max_tokens: 4,
    temperature: 0,
  });
  return { text: choices[0]?.message.content, cached: usage.prompt_tokens_details?.cached_tokens ?? 0, usage };
}

withEngine("a model answers about a picture, and its tower computes it once", async () => {
  const engine = await loaded();
  expect(engine.info.images).toBe(true);
  const [cat, dog] = [picture(1), picture(4, 8, 5)];
  expect(spokenAfter(cat, 4)).not.toBe(spokenAfter(dog, 4));
  const first = await answer(engine, said("abc"), shown(cat));
  expect(first.text).toBe(spokenAfter(cat, 4));
  // Five tiles of four tokens, with a letter at each tile, each row of tiles, and the start.
  expect(first.usage.prompt_tokens).toBe(3 + 1 + 5 * 5 + 2);
  expect(engine.counts.pictures).toEqual({ queries: 1, hits: 0, retainedBytes: 20 * 8 * 4 });
  const { steps } = engine.counts;
  expect((await answer(engine, said("abc"), shown(cat), said("d"))).cached).toBe(16);
  expect(engine.counts.pictures).toMatchObject({ queries: 2, hits: 1 });
  expect(engine.counts.steps - steps).toBeLessThan(6);
  // The same places of another picture are computed.
  const other = await answer(engine, said("abc"), shown(dog));
  expect([other.text, other.cached]).toEqual([spokenAfter(dog, 4), 0]);
  // Several pictures, alone and in one message of several requests at once.
  const both = [said("a"), shown(dog), said("b"), shown(cat)];
  const found = await Promise.all([
    answer(engine, ...both),
    answer(engine, shown(cat)),
    answer(engine, ...both.slice(0, 2)),
  ]);
  expect(found.map(({ text }) => text)).toEqual([cat, cat, dog].map((each) => spokenAfter(each, 4)));
  expect(engine.counts.pictures?.hits).toBe(5);
  engine.destroy();
});

withEngine("all answers of a request share each of its pictures, which the tower computes once", async () => {
  let tiles = 0;
  const counting: typeof images = {
    ...images,
    open: ({ features, ...parts }) => images.open({ ...parts, features: (batch) => (tiles++, features(batch)) }),
  };
  const engine = await Engine.load(memorySource(seeingBundle().files), { gpu, maxSequences: 2, images: counting });
  const [cat, dog] = [picture(1), picture(4, 8, 5)];
  for (const stream of [false, true]) {
    const messages = asked(shown(dog), said("a"), shown(cat), said("b"), shown(dog));
    const params = { messages, n: 3, max_tokens: 4, temperature: 0 };
    const texts = ["", "", ""];
    if (stream) {
      for await (const { choices } of await engine.chat.completions.create({ ...params, stream }))
        for (const { index, delta } of choices) texts[index] = `${texts[index] ?? ""}${delta.content ?? ""}`;
    } else {
      const { choices } = await engine.chat.completions.create(params);
      for (const { index, message } of choices) texts[index] = message.content ?? "";
    }
    expect(texts).toEqual(Array<string>(3).fill(spokenAfter(dog, 4)));
    // Five tiles of each of two pictures.
    expect(tiles).toBe(10);
  }
  engine.destroy();
});

withEngine("a device that sees wrongly fails the test of the tower", async () => {
  const { manifest } = seeingBundle();
  const rows = manifest.vision_test?.rows.map((row, index) => (index === 3 ? { ...row, values: [9, 0] } : row)) ?? [];
  const tolerances = { float32: 0.05 };
  await expect(loaded(seeingBundle({ vision_test: { rows, tolerances } }).files)).rejects.toThrow(
    /logits, or features of pictures, are off by .* the self-test ran/,
  );
  (await loaded(seeingBundle({ vision_test: { rows, tolerances: { float32: 0.2 } } }).files)).destroy();
});

withEngine("messages cannot spell the place of a picture", async () => {
  const engine = await loaded();
  const cat = picture(1);
  const { text, usage } = await answer(engine, said("a<image>"), shown(cat));
  // Of the spelled one, the letters a, g and e are tokens.
  expect([text, usage.prompt_tokens]).toEqual([spokenAfter(cat, 4), 1 + 3 + 1 + 5 * 5 + 2]);
  engine.destroy();
});

test("the bytes of an address of data: are read without fetching it", async () => {
  const pictures = images.open({
    spec: SEEING,
    model: { hidden_size: 8, vision: null, hearing: null },
    features: () => Promise.reject(new Error("not here")),
  });
  const refused = async (source: string): Promise<string> =>
    pictures.read([{ kind: "picture", source, param: "p" }]).then(
      () => "",
      (error: unknown) => String(error),
    );
  expect(await refused("data:image/png;base64,YWJj")).toMatch(/p: the picture has an unknown format/);
  expect(await refused("data:image/svg+xml,%3Csvg%3E%3C/svg%3E")).toMatch(/p: the picture is an SVG/);
  expect(await refused("data:image/png;base64,%%%")).toMatch(/p: the data: address of the picture cannot be read/);
  expect(await refused("data:image/png")).toMatch(/it has no comma/);
});

withEngine("a script that cannot import images.js passes it", async () => {
  const open = vi.fn(images.open);
  const passed = { ...images, open, testPatches: vi.fn(images.testPatches) };
  const engine = await Engine.load(memorySource(seeingBundle().files), { gpu, images: passed });
  expect([open.mock.calls.length, passed.testPatches.mock.calls.length]).toEqual([1, 1]);
  engine.destroy();
});

withEngine("tokens of a picture are counted without computing it", async () => {
  const engine = await loaded();
  expect(await engine.countTokens(asked(said("ab"), shown(picture(3, 8, 3))))).toBe(2 + 1 + 3 * 5 + 1);
  expect(engine.counts.pictures).toEqual({ queries: 0, hits: 0, retainedBytes: 0 });
  expect(engine.counts.steps).toBe(0);
  engine.destroy();
});

withEngine("a session continues after its pictures, and so does its clone", async () => {
  const engine = await loaded();
  const [cat, dog] = [picture(1), picture(6)];
  const session = engine.createSession();
  const say = async (on: Pick<typeof session, "generate">, content: Parameters<typeof session.generate>[0]) => {
    let text = "";
    for await (const event of on.generate(content, { maxTokens: 3 })) {
      text += event.text;
      if (event.type === "done") return { text, cached: event.timings.cachedTokens };
    }
    return null;
  };
  expect((await say(session, [said("abc"), shown(cat)]))?.text).toBe(spokenAfter(cat, 3));
  const copy = session.clone();
  const [next, other] = [await say(session, "ab"), await say(copy, [said("d"), shown(dog)])];
  expect([next?.text, other?.text]).toEqual(["ebg".slice(0, next?.text.length), spokenAfter(dog, 3)]);
  expect(Math.min(next?.cached ?? 0, other?.cached ?? 0)).toBeGreaterThanOrEqual(30);
  expect(session.messages[0]?.content).toEqual([said("abc"), shown(cat)]);
  expect(engine.counts.pictures).toMatchObject({ queries: 4, hits: 2 });
  engine.destroy();
});

withEngine("pictures are computed again on a new device", async () => {
  const engine = await loaded();
  const [cat, dog] = [picture(1), picture(6)];
  await answer(engine, shown(cat));
  expect(engine.unload()).toBe(true);
  expect((await answer(engine, shown(dog))).text).toBe(spokenAfter(dog, 4));
  expect(engine.unload()).toBe(true);
  expect((await answer(engine, shown(cat))).text).toBe(spokenAfter(cat, 4));
  expect(engine.counts).toMatchObject({ recoveries: 2, pictures: { queries: 3, hits: 1 } });
  engine.destroy();
});

withEngine("an aborted request computes no further tiles", async () => {
  const engine = await loaded();
  const controller = new AbortController();
  const waiting = engine.chat.completions.create({ messages: asked(shown(picture(1))) }, { signal: controller.signal });
  controller.abort();
  await expect(waiting).rejects.toHaveProperty("name", "AbortError");
  expect((await answer(engine, shown(picture(2)))).text).toBe(spokenAfter(picture(2), 4));
  expect(engine.counts.pictures).toMatchObject({ hits: 0 });
  engine.destroy();
});

withEngine("what is no picture is refused by the name of its part", async () => {
  const engine = await loaded();
  const refused = async (
    content: readonly ChatCompletionContentPart[],
    param: string,
    message: RegExp,
    on = engine,
  ): Promise<void> => {
    const found: unknown = await answer(on, ...content).catch((error: unknown) => error);
    expect(found).toBeInstanceOf(RequestError);
    expect(found).toMatchObject({ param, status: 400 });
    expect((found as Error).message).toMatch(message);
  };
  const part = "messages[0].content[1]";
  await refused([said("a"), shown(new Blob(["no picture"]) as never)], `${part}.image`, /unknown format; send a PNG/);
  await refused([said("a"), { type: "image_url" }], part, /needs a picture: {type: "image_url"/);
  await refused([said("a"), { type: "image" }], part, /needs a picture/);
  await refused([said("a"), { type: "smell" }], part, /reads parts of type "text"/);
  await refused([said("a"), { type: "video" }], part, /needs a video/);
  await refused([said("a"), shown({ ...picture(1), width: 7 })], `${part}.image`, /are not 3 or 4 for each of 7 x 8/);
  const huge = { width: 10_000, height: 10_000, data: new Uint8Array(3) };
  await refused([said("a"), shown(huge)], `${part}.image`, /has 10000 x 10000 pixels, and at most 50000000/);
  const url = { type: "image_url", image_url: { url: "http://127.0.0.1:9/cat.png" } };
  await refused([said("a"), url], `${part}.image_url`, /cannot be fetched .* whether its server allows this page/);
  const many = Array.from({ length: 17 }, () => shown(picture(1)));
  await refused(many, "messages[0].content[16].image", /have 17 pictures; send at most 16/);
  const long = Array.from({ length: 10 }, () => shown(picture(1)));
  await refused(long, "promptIds", /maximum context length is 256 tokens/);
  expect(engine.counts.pictures?.queries).toBe(0);
  engine.destroy();
  const blind = await loaded(lettersBundle().files);
  expect(blind.info.images).toBe(false);
  await refused([said("a"), shown(picture(1))], part, /is a picture, and this model reads texts only/, blind);
  blind.destroy();
});
