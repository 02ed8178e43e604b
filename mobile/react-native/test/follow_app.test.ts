import { mkdtemp } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";

import { expect, test } from "vitest";

import { lettersOnnx, stubRuntime } from "../../../web/test/onnx/letters_onnx.js";
import { followApp } from "../src/follow_app.js";
import { load } from "../src/load.js";
import { nodeFiles } from "./node_files.js";

const { manifest } = lettersOnnx();
// A model whose answers never end.
const endless = lettersOnnx({ spec: { ...manifest.spec, eos_token_ids: [] } });

/** An app whose state a test sets. */
class FakeApp {
  readonly #listeners: (readonly [string, (state: string) => void])[] = [];

  addEventListener(type: string, listener: (state: string) => void): { remove(): void } {
    const entry = [type, listener] as const;
    this.#listeners.push(entry);
    return { remove: () => void this.#listeners.splice(this.#listeners.indexOf(entry), 1) };
  }

  emit(type: string, state = ""): void {
    for (const [name, listener] of [...this.#listeners]) if (name === type) listener(state);
  }

  get listeners(): number {
    return this.#listeners.length;
  }
}

async function open(): Promise<{
  engine: Awaited<ReturnType<typeof load>>;
  app: FakeApp;
  log: ReturnType<typeof stubRuntime>["log"];
}> {
  const { ort, log } = stubRuntime();
  const get = ((url: string) =>
    Promise.resolve(new Response(endless.files[url.replace("https://x/", "")]))) as typeof fetch;
  const engine = await load("https://x/", {
    files: nodeFiles(await mkdtemp(join(tmpdir(), "phone-"))),
    ort,
    fetch: get,
  });
  return { engine, app: new FakeApp(), log };
}

test("in the background, answers pause and sessions are saved; in the foreground, answers continue", async () => {
  const { engine, app, log } = await open();
  const session = engine.createSession();
  const ids: number[] = [];
  for await (const event of session.generate("be", { maxTokens: 4 }))
    if (event.type === "token") ids.push(event.tokenId);
  const errors: unknown[] = [];
  const stop = followApp(engine, app, { sessions: () => [["chat", session]], onError: (error) => errors.push(error) });
  const alone: number[] = [];
  for await (const { tokenId } of engine.generateTokens({ promptIds: [1, 2, 3], maxTokens: 40 })) alone.push(tokenId);
  const found: number[] = [];
  const answering = (async () => {
    for await (const { tokenId } of engine.generateTokens({ promptIds: [1, 2, 3], maxTokens: 40 })) {
      found.push(tokenId);
      if (found.length === 5) app.emit("change", "background");
    }
  })();
  const other = engine.createSession();
  await expect
    .poll(() =>
      other.restore("chat").then(
        () => true,
        () => false,
      ),
    )
    .toBe(true);
  const runs = log.runs.length;
  await new Promise((resolve) => setTimeout(resolve, 30));
  expect([log.runs.length, found.length < 40]).toEqual([runs, true]);
  app.emit("change", "active");
  await answering;
  expect(found).toEqual(alone);
  expect([other.messages, errors]).toEqual([session.messages, []]);
  stop();
  expect(app.listeners).toBe(0);
  engine.destroy();
});

test("on a memory warning, an idle engine unloads the model and loads it again for the next answer", async () => {
  const { engine, app, log } = await open();
  followApp(engine, app);
  const answer = async (): Promise<number[]> => {
    const ids: number[] = [];
    for await (const { tokenId } of engine.generateTokens({ promptIds: [4, 5], maxTokens: 5 })) ids.push(tokenId);
    return ids;
  };
  const before = await answer();
  app.emit("memoryWarning");
  await expect.poll(() => log.released).toBe(1);
  expect(await answer()).toEqual(before);
  expect([log.created.length, log.released]).toEqual([2, 1]);
  // An engine that is answering keeps the model.
  for await (const { tokenId } of engine.generateTokens({ promptIds: [4, 5], maxTokens: 5 })) {
    expect(tokenId).toBeGreaterThanOrEqual(0);
    app.emit("memoryWarning");
  }
  expect(log.created.length).toBe(2);
  engine.destroy();
});
