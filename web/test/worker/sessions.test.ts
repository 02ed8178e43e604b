// Sessions of an engine in a worker work like those on the page, and are freed with the connection.

import { afterEach, expect, test, vi } from "vitest";

import type { EngineWithSessions, SessionApi } from "../../src/api/engine_api.js";
import type { GenerationEvent } from "../../src/generation.js";
import { Engine } from "../../src/index.js";
import { connectEngine } from "../../src/worker/connect_engine.js";
import { dawn } from "../../tools/dawn.js";
import { fakeEngine, fakeModel } from "../api/fake_model.js";
import { lettersBundle, memorySource } from "../letters_bundle.js";
import { memoryDisk } from "../store/memory_folder.js";
import { fakeWorker } from "./fake_worker.js";
import { waitFor } from "../wait_for.js";

const gpu = dawn();
const hasAdapter = (await gpu.requestAdapter()) !== null;
const BUNDLE = "https://example.org/bundle/";
const { files } = lettersBundle();

afterEach(() => {
  vi.unstubAllGlobals();
});

async function collect(
  events: AsyncIterable<GenerationEvent>,
): Promise<{ readonly text: string; readonly cached: number }> {
  let text = "";
  let cached = -1;
  for await (const event of events) {
    text += event.text;
    if (event.type === "done") cached = event.timings.cachedTokens;
  }
  return { text, cached };
}

/**
 * Two messages, a clone after the first, and a session that was saved and restored. Returns the texts, the messages and
 * the numbers of cached tokens.
 */
async function conversation(engine: EngineWithSessions): Promise<unknown[]> {
  const session = engine.createSession({ messages: [{ role: "system", content: "ab" }] });
  const seen: unknown[] = [await collect(session.generate("c", { maxTokens: 3 }))];
  await session.save("one");
  const clone = session.clone();
  seen.push(
    await collect(session.generate("d", { maxTokens: 2 })),
    await collect(clone.generate("e", { maxTokens: 2 })),
    session.messages,
    clone.messages,
  );
  await clone.restore("one");
  seen.push(clone.messages, await collect(clone.generate("d", { maxTokens: 2 })), clone.isAnswering);
  await expect(clone.restore("two")).rejects.toMatchObject({ code: "storage_error", details: { session: "two" } });
  for (const open of [session, clone]) open.close();
  await expect(collect(session.generate("a"))).rejects.toThrow("The session is closed");
  expect(() => session.clone()).toThrow("The session is closed");
  return seen;
}

test.runIf(hasAdapter)(
  "a session in a worker generates, clones, saves and restores the same as one on the page",
  async () => {
    const disk = memoryDisk();
    vi.stubGlobal("navigator", { userAgent: "test", storage: { getDirectory: () => Promise.resolve(disk.root) } });
    vi.stubGlobal(
      "FileSystemFileHandle",
      Object.assign(() => undefined, { prototype: { createWritable: 0 } }),
    );
    const here = await Engine.load(memorySource(files), { gpu });
    const worker = fakeWorker(() => Engine.load(memorySource(files), { gpu }));
    const there = await connectEngine(worker, BUNDLE);
    const expected = await conversation(here);
    expect(expected[0]).toMatchObject({ text: expect.stringMatching(/^[a-h]+$/) as string });
    expect(await conversation(there)).toEqual(expected);
    const tokens = there.generateTokens({ promptIds: [1, 2], maxTokens: 3 });
    for await (const token of here.generateTokens({ promptIds: [1, 2], maxTokens: 3 }))
      expect((await tokens.next()).value).toEqual(token);
    expect(await tokens.next()).toMatchObject({ done: true, value: { completionTokens: 3 } });
    expect([await there.unload(), await there.countTokens("a")]).toEqual([true, await here.countTokens("a")]);
    here.destroy();
    there.destroy();
  },
);

test("an abort or leaving the loop ends the answer in the worker, and the session forgets it", async () => {
  const signals: (AbortSignal | undefined)[] = [];
  const session = {
    close: () => undefined,
    // oxlint-disable-next-line typescript/require-await
    async *generate(_: string, { signal }: { signal?: AbortSignal } = {}) {
      signals.push(signal);
      for (;;) {
        signal?.throwIfAborted();
        yield { type: "token", text: "a", tokenId: 0 };
      }
    },
  } as unknown as SessionApi;
  const engine = await connectEngine(
    fakeWorker(() => Promise.resolve({ ...fakeEngine(fakeModel().model), createSession: () => session })),
    BUNDLE,
  );
  const remote = engine.createSession();
  for await (const { text } of remote.generate("x")) {
    expect([text, remote.isAnswering]).toEqual(["a", true]);
    expect(() => remote.clone()).toThrow("is generating an answer");
    break;
  }
  const controller = new AbortController();
  await expect(
    (async () => {
      for await (const { text } of remote.generate("x", { signal: controller.signal }))
        if (text !== "") controller.abort();
    })(),
  ).rejects.toHaveProperty("name", "AbortError");
  expect([remote.messages, remote.isAnswering]).toEqual([[], false]);
  engine.destroy();
});

test("a page that leaves closes its sessions, and an engine without sessions throws an error", async () => {
  const closed: number[] = [];
  let made = 0;
  const createSession = (): SessionApi => {
    const id = made++;
    return { close: () => closed.push(id) } as unknown as SessionApi;
  };
  const worker = fakeWorker(() => Promise.resolve({ ...fakeEngine(fakeModel().model), createSession }));
  const [first, second] = await Promise.all([connectEngine(worker, BUNDLE), connectEngine(worker, BUNDLE)]);
  first.createSession();
  second.createSession();
  second.createSession().close();
  await waitFor(() => {
    expect(closed).toEqual([2]);
  });
  first.destroy();
  await waitFor(() => {
    expect(closed).toEqual([2, 0]);
  });
  second.destroy();
  const plain = await connectEngine(
    fakeWorker(() => Promise.resolve(fakeEngine(fakeModel().model))),
    BUNDLE,
  );
  await expect(plain.createSession().save("x")).rejects.toMatchObject({
    code: "request_error",
    message: expect.stringContaining("has no createSession") as string,
  });
  plain.destroy();
});
