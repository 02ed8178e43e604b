// Which answers are kept, for how long, and what is refused.

import { expect, test } from "vitest";

import type { ChatCompletionChunk } from "../../src/api/types.js";
import { RequestError, StorageError } from "../../src/errors.js";
import type { JournalOptions } from "../../src/journal/index.js";
import { journalled } from "../../src/journal/index.js";
import { setUp } from "../router/hybrid_set_up.js";
import { memoryDisk, memoryLocks } from "../store/memory_folder.js";
import { eachToken, pageEngine, pageStore } from "./pages.js";

const CHAT = {
  messages: [{ role: "user" as const, content: "hi" }],
  max_tokens: 40,
  temperature: 0,
  stream: true as const,
};

function page(disk = memoryDisk(), locks = memoryLocks(), options: JournalOptions = {}) {
  const store = pageStore(disk, locks);
  const { engine, runner } = pageEngine();
  return { disk, store, runner, kept: journalled(engine, { ...eachToken(store), ...options }) };
}

/** The chunks of an answer that a page goes on with. */
async function resumed(kept: ReturnType<typeof page>["kept"]): Promise<ChatCompletionChunk[]> {
  const { answer } = await kept.journals.resume("x");
  return read(answer as AsyncIterable<ChatCompletionChunk>);
}

async function read<T>(items: AsyncIterable<T>): Promise<T[]> {
  const all: T[] = [];
  for await (const item of items) all.push(item);
  return all;
}

const textOf = (chunks: readonly ChatCompletionChunk[]): string =>
  chunks.map(({ choices }) => choices[0]?.delta.content ?? "").join("");

test("what keeps no answers refuses an id, and says what does", async () => {
  const { engine } = pageEngine();
  const { nf } = await setUp({ near: engine });
  const id = { id: "x" } as object;
  for (const asked of [
    engine.chat.completions.create(CHAT, id),
    engine.completions.create({ prompt: "hi" }, id),
    nf.chat.completions.create(CHAT, id),
  ])
    await expect(asked).rejects.toMatchObject({
      code: "request_error",
      details: { param: "id" },
      message: expect.stringContaining("journalled(engine)") as string,
    });
});

test("only one tab writes an answer, and the next one goes on when that has ended", async () => {
  const [disk, locks] = [memoryDisk(), memoryLocks()];
  const first = page(disk, locks);
  const stream = await first.kept.chat.completions.create(CHAT, { id: "x" });
  const second = page(disk, locks);
  await expect(second.kept.journals.resume("x")).rejects.toMatchObject({
    code: "storage_error",
    details: { code: "in_use", id: "x" },
  });
  await expect(second.kept.journals.delete("x")).rejects.toBeInstanceOf(StorageError);
  expect(await second.kept.journals.find("x")).toMatchObject({ running: true, done: false });
  const whole = textOf(await read(stream));
  expect(await second.kept.journals.find("x")).toMatchObject({ running: false, done: true });
  const again = await resumed(second.kept);
  expect(textOf(again)).toBe(whole);
  expect(new Set(again.map(({ id }) => id))).toEqual(new Set(["x"]));
  // A complete answer is repeated, and nothing is computed.
  expect(second.runner.batches).toHaveLength(0);
  await second.kept.journals.delete("x");
  expect(disk.files.size).toBe(0);
  await expect(second.kept.journals.resume("x")).rejects.toMatchObject({ details: { code: "not_found" } });
});

test("what is not written yet is computed again, and the rest is read in a few steps of the prompt", async () => {
  const { disk, store, kept } = page(undefined, undefined, { flushTokens: 8 });
  const request = { ...CHAT, logprobs: true };
  const chunks = (await kept.chat.completions.create(request, { id: "x" }))[Symbol.asyncIterator]();
  for (let shown = 0; shown < 20;) {
    const { value } = (await chunks.next()) as { readonly value: ChatCompletionChunk };
    shown += value.choices[0]?.logprobs?.content?.length ?? 0;
  }
  store.crash(disk);
  const next = page(disk);
  const [info] = await next.kept.journals.list();
  expect(info).toMatchObject({ id: "x", api: "chat", done: false, args: [request] });
  const kepts = info?.tokens ?? 0;
  expect(kepts % 8).toBe(0);
  expect(kepts).toBeGreaterThan(8);
  expect(kepts).toBeLessThan(40);
  const whole = textOf(await read(await next.kept.chat.completions.create(request, { id: "x" })));
  expect(whole).toBe(textOf(await read(await page().kept.chat.completions.create(request))));
  // One step of the prompt and the kept tokens, and one for each of the other tokens.
  expect(next.runner.batches[0]?.token_ids.length).toBeGreaterThan(kepts);
  expect(next.runner.batches.length).toBeLessThan(40 - kepts + next.runner.stepsInFlight);
});

test("another request, or another model, does not go on with an answer", async () => {
  const { disk, kept } = page();
  await read(await kept.chat.completions.create(CHAT, { id: "x" }));
  const other = page(disk).kept;
  await expect(other.chat.completions.create({ ...CHAT, temperature: 1 }, { id: "x" })).rejects.toMatchObject({
    code: "request_error",
    details: { code: "other_request" },
  });
  const newer = journalled(pageEngine(320, "newer").engine, eachToken(pageStore(disk)));
  await expect(newer.journals.resume("x")).rejects.toMatchObject({ details: { code: "other_model" } });
  // How an answer is delivered does not matter.
  const whole = await other.chat.completions.create({ ...CHAT, stream: false }, { id: "x" });
  expect(whole.choices[0]?.finish_reason).toBe("length");
  expect(whole.id).toBe("x");
});

test("an unknown option is refused by name", () => {
  expect(() => journalled(pageEngine().engine, { flushtokens: 1 } as object)).toThrow(
    "'flushtokens' is not supported; supported: budgetBytes, maxAgeMs, flushTokens",
  );
});

test("what JSON cannot hold is refused by name, and a refused request leaves nothing", async () => {
  const { disk, kept } = page();
  const { completions } = kept.chat;
  const named = completions.create(
    { ...CHAT, tools: [{ type: "function", function: { name: "f", parameters: { run: raise } } }] },
    { id: "x" },
  );
  await expect(named).rejects.toMatchObject({ details: { param: "tools.0.function.parameters.run" } });
  await expect(completions.create(CHAT, { id: "x", logitProcessor: () => undefined })).rejects.toBeInstanceOf(
    RequestError,
  );
  await expect(completions.create({ ...CHAT, max_tokens: -1 }, { id: "x" })).rejects.toBeInstanceOf(RequestError);
  await expect(completions.create(CHAT, { id: "" })).rejects.toMatchObject({ details: { param: "id" } });
  await expect(completions.create(CHAT, { id: "é".repeat(60) })).rejects.toMatchObject({ details: { param: "id" } });
  expect(disk.files.size).toBe(0);
});

function raise(): never {
  throw new Error("called");
}

test("old answers, and those beyond the budget, make room for a new one, but never one that a tab writes", async () => {
  const [disk, locks] = [memoryDisk(), memoryLocks()];
  const budgetBytes = 1500;
  const { kept } = page(disk, locks, { budgetBytes });
  const held = await kept.chat.completions.create(CHAT, { id: "held" });
  for (const id of ["a", "b", "c", "d"]) {
    await read(await kept.chat.completions.create(CHAT, { id }));
    await new Promise((resolve) => setTimeout(resolve, 2));
  }
  const ids = (await kept.journals.list()).map(({ id }) => id);
  expect(ids[0]).toBe("d");
  expect(ids).toContain("held");
  expect(ids).not.toContain("a");
  expect(ids.length).toBeGreaterThan(2);
  const later = page(disk, locks, { maxAgeMs: -1 });
  await read(await later.kept.chat.completions.create(CHAT, { id: "e" }));
  expect((await later.kept.journals.list()).map(({ id }) => id).sort()).toEqual(["e", "held"]);
  await read(held);
});

test("a long answer is written in few files", async () => {
  const { disk, kept } = page();
  const request = { prompt: "hi", max_tokens: 200, temperature: 0, stream: true } as const;
  const stream = await kept.completions.create(request, { id: "x" });
  let most = 0;
  for await (const _ of stream) {
    await new Promise((resolve) => setImmediate(resolve));
    most = Math.max(most, disk.files.size);
  }
  expect(most).toBeGreaterThan(50);
  expect(most).toBeLessThan(70);
  expect(disk.files.size).toBe(2);
});

test("an answer goes on when storage is full, and a later page computes what it did not keep", async () => {
  const errors: unknown[] = [];
  const { disk, kept } = page(undefined, undefined, { onError: (error) => errors.push(error) });
  const stream = (await kept.chat.completions.create(CHAT, { id: "x" }))[Symbol.asyncIterator]();
  const chunks: ChatCompletionChunk[] = [];
  for (;;) {
    const { done, value } = await stream.next();
    if (done === true) break;
    chunks.push(value);
    await new Promise((resolve) => setImmediate(resolve));
    if (chunks.length === 9) disk.capacity = 0;
  }
  expect(errors).toHaveLength(1);
  expect(errors[0]).toBeInstanceOf(StorageError);
  disk.capacity = Infinity;
  const [info] = await kept.journals.list();
  expect(info?.done).toBe(false);
  expect(info?.tokens).toBeGreaterThan(4);
  expect(textOf(await resumed(page(disk).kept))).toBe(textOf(chunks));
});

test("a request without an id is not kept, and the engine's other methods are its own", async () => {
  const { disk, kept } = page();
  await read(await kept.chat.completions.create(CHAT));
  await read(kept.generate("hi", { maxTokens: 3 }));
  expect(await kept.countTokens("abc")).toBe(4);
  expect(kept.info.model).toBe("fake");
  expect("journals" in kept).toBe(true);
  expect(disk.files.size).toBe(0);
});

test("what is damaged is named, and hides no other answer", async () => {
  const { disk, kept } = page();
  for (const id of ["good", "torn", "odd"]) await read(await kept.chat.completions.create(CHAT, { id }));
  const damage = (id: string, text: string): void => {
    const path = [...disk.files.keys()].find((each) => each.includes(`answer-${id}/`) && !each.endsWith("/request"));
    disk.files.set(path ?? "", new TextEncoder().encode(text));
  };
  damage("torn", '{"generated":[[0,5');
  damage("odd", '{"generated":[[0,"x"]]}');
  const errors: unknown[] = [];
  const next = page(disk, undefined, { onError: (error) => errors.push(error) });
  expect((await next.kept.journals.list()).map(({ id }) => id)).toEqual(["good"]);
  expect(new Set(errors.map((error) => (error as StorageError).details.id))).toEqual(new Set(["odd", "torn"]));
  for (const id of ["odd", "torn"]) {
    await expect(next.kept.journals.resume(id)).rejects.toMatchObject({ details: { code: "damaged", id } });
    await next.kept.journals.delete(id);
  }
  expect(await next.kept.journals.list()).toHaveLength(1);
  for (const id of ["", "\ud800"]) {
    await expect(next.kept.chat.completions.create(CHAT, { id })).rejects.toBeInstanceOf(RequestError);
    await expect(next.kept.journals.find(id)).rejects.toBeInstanceOf(RequestError);
    await expect(next.kept.journals.delete(id)).rejects.toBeInstanceOf(RequestError);
  }
});

test("a file of a journal that is not what was written is damage, and costs nothing", async () => {
  const ended = '{"finishReason":"stop","promptTokens":1,"cachedTokens":0,"completionTokens":1}';
  const parts = [
    ...["1", "[]", '"a"', "null", '{"generated":[[1e9,5]]}', '{"generated":[[-1,5]]}', '{"generated":[["a",5]]}'],
    ...['{"generated":[[0,1.5]]}', '{"generated":[[0,{"finishReason":1}]]}', `{"generated":[[0,5],[0,${ended},0],5]}`],
    ...['{"items":[null]}', '{"items":[{"type":"chunk","chunk":{"choices":[{}]}}]}', '{"near":1}', '{"far":{}}'],
    ...['{"far":{"key":"k","from":1}}', '{"done":"x"}'],
  ];
  const head = { format: 1, id: "x", api: "chat", createdMs: 1, model: null, args: [CHAT], seed: 1 };
  const heads = [
    ...[{ id: "y" }, { api: "speak" }, { args: [] }, { args: 1 }, { args: [1] }, { seed: "a" }, { createdMs: "b" }],
    ...[{ model: 5 }, { format: 2 }],
  ].map((change) => JSON.stringify({ ...head, ...change }));
  const { disk, store, kept } = page();
  await read(await kept.chat.completions.create(CHAT, { id: "x" }));
  const files = new Map(disk.files);
  for (const [texts, isFile] of [
    [parts, (path: string) => !path.endsWith("/request")],
    [heads, (path: string) => path.endsWith("/request")],
  ] as const)
    for (const text of texts) {
      const path = [...files.keys()].find(isFile) ?? "";
      disk.files.set(path, new TextEncoder().encode(text));
      await expect(store.read("x"), text).rejects.toMatchObject({ details: { code: "damaged", id: "x" } });
      for (const [name, bytes] of files) disk.files.set(name, bytes);
    }
  expect((await store.read("x"))?.head).toMatchObject({
    ...head,
    model: {},
    createdMs: expect.any(Number) as number,
    seed: expect.any(Number) as number,
  });
});

test("tokens that the model has not are damage of the journal, and no fault of the request", async () => {
  for (const token of ["999", "[5,-0.1,[999],[-0.2]]"]) {
    const { disk, kept } = page();
    await read(await kept.chat.completions.create(CHAT, { id: "x" }));
    const path = [...disk.files.keys()].find((each) => !each.endsWith("/request")) ?? "";
    disk.files.set(path, new TextEncoder().encode(`{"generated":[[0,5],[0,${token}]]}`));
    const next = page(disk).kept;
    const damaged = { code: "storage_error", details: { code: "damaged", id: "x" } };
    await expect(resumed(next)).rejects.toMatchObject(damaged);
    await expect(next.chat.completions.create({ ...CHAT, stream: false }, { id: "x" })).rejects.toMatchObject(damaged);
    await next.journals.delete("x");
    expect(disk.files.size).toBe(0);
  }
});

test("a tool may have an argument of any name", async () => {
  const { disk, kept } = page();
  const parameters = { type: "object", properties: { nearfarMap: { type: "string" } } };
  const tools = [{ type: "function" as const, function: { name: "f", parameters } }];
  await read(await kept.chat.completions.create({ ...CHAT, tools }, { id: "x" }));
  const next = page(disk);
  expect((await next.kept.journals.list())[0]?.args).toEqual([{ ...CHAT, tools }]);
  expect(await resumed(next.kept)).not.toHaveLength(0);
});
