import { expect, test } from "vitest";

import type { TokenRequest } from "../../src/engine/request.js";
import type { RetainedSequence } from "../../src/engine/sequence.js";
import { forkOf, newConversation } from "../../src/engine/sequence.js";
import { TokenEngine } from "../../src/engine/token_engine.js";
import type { KeyValueMode } from "../../src/onnx/runner.js";
import { OnnxRunner } from "../../src/onnx/runner.js";
import { planExport } from "../../src/runtime/export_memory.js";
import { sequenceBatch } from "../../src/runtime/sequence_batch.js";
import { VOCAB, answerOf } from "../engine/fake_model.js";
import { CONTEXT, lettersOnnx, stubRuntime } from "./letters_onnx.js";

const { manifest } = lettersOnnx();

async function engineOf(
  mode: KeyValueMode,
  maxSequences = 3,
): Promise<{ engine: TokenEngine; runner: OnnxRunner; runs: (readonly [number, number])[] }> {
  const { ort, log } = stubRuntime();
  const session = await ort.InferenceSession.create("");
  const runner = new OnnxRunner(ort, session, manifest, planExport(manifest, { maxSequences }), maxSequences, mode);
  return { engine: new TokenEngine(runner, { vocabSize: VOCAB, endTokenIds: [] }), runner, runs: log.runs };
}

async function tokensOf(engine: TokenEngine, request: TokenRequest, retained?: RetainedSequence): Promise<number[]> {
  const ids: number[] = [];
  for await (const { tokenId } of engine.generateTokens(request, retained)) ids.push(tokenId);
  return ids;
}

function prompt(length: number, seed: number): number[] {
  return Array.from({ length }, (_, index) => (index * seed + seed) % VOCAB);
}

/** The answer of the fake model, which has no end token here. */
function expected(promptIds: readonly number[], maxTokens: number): number[] {
  const all = [...promptIds];
  while (all.length < promptIds.length + maxTokens && all.length <= CONTEXT)
    all.push(answerOf(all, 1, CONTEXT).tokens[0] ?? 0);
  return all.slice(promptIds.length);
}

test.each(["rows", "in-place"] as const)(
  "%s: sequences of all lengths are correct, alone and in batches, over chunks and growing pages",
  async (mode) => {
    const { engine, runs } = await engineOf(mode);
    const requests = [1, 63, 64, 65, 127, 128, 129, 190].map((length, index) => ({
      promptIds: prompt(length, index + 3),
      maxTokens: 9,
    }));
    for (const request of requests) expect(await tokensOf(engine, request)).toEqual(expected(request.promptIds, 9));
    const together = await Promise.all(requests.map((request) => tokensOf(engine, request)));
    expect(together).toEqual(requests.map(({ promptIds }) => expected(promptIds, 9)));
    expect(Math.max(...runs.map(([tokens]) => tokens))).toBe(128);
  },
);

test("an answer continues to the end of the context and ends there", async () => {
  const { engine } = await engineOf("rows");
  expect(await tokensOf(engine, { promptIds: prompt(CONTEXT - 2, 5) })).toHaveLength(3);
});

test("a conversation continues from its page, forks copy it, and saved ones are restored", async () => {
  const { engine, runs } = await engineOf("rows");
  const retained = newConversation();
  const first = prompt(70, 7);
  const answer = await tokensOf(engine, { promptIds: first, maxTokens: 5 }, retained);
  const saved = await engine.readRetained(retained);
  const second = [...first, ...answer, 1, 2, 3];
  const other = [...first, ...answer, 4];
  const fork = forkOf(retained);
  runs.length = 0;
  const found = await Promise.all([
    tokensOf(engine, { promptIds: second, maxTokens: 4 }, retained),
    tokensOf(engine, { promptIds: other, maxTokens: 4 }, fork),
  ]);
  expect(found).toEqual([expected(second, 4), expected(other, 4)]);
  // Neither computes the conversation so far again.
  expect(Math.max(...runs.map(([tokens]) => tokens))).toBeLessThan(6);
  const restored = engine.writeRetained(saved);
  runs.length = 0;
  expect(await tokensOf(engine, { promptIds: second, maxTokens: 4 }, restored)).toEqual(expected(second, 4));
  expect(runs[0]?.[0]).toBeLessThan(6);
});

test("bytes of another model are a RequestError, and a state of an unknown slot fails the next step", async () => {
  const { runner } = await engineOf("rows");
  expect(() => {
    runner.writePages([[0]], new Uint8Array(7));
  }).toThrow("7 bytes are not the keys and values of 1 pages");
  runner.setLogitBias(99, new Float32Array(VOCAB));
  await expect(runner.submit(sequenceBatch([1], 0, [[0]], CONTEXT, true))).rejects.toThrow("slot 99");
  expect((await runner.submit(sequenceBatch([1], 0, [[0]], CONTEXT, true))).tokenIds).toHaveLength(1);
});

test("an unknown page, slot or position is a RequestError, and the runner still works", async () => {
  const { runner } = await engineOf("rows");
  await expect(runner.submit(sequenceBatch([1], 0, [[99]], CONTEXT, true))).rejects.toMatchObject({
    code: "request_error",
  });
  await expect(runner.submit(sequenceBatch([1], CONTEXT, [[0]], CONTEXT, true))).rejects.toMatchObject({
    code: "request_error",
  });
  await expect(runner.submit({ ...sequenceBatch([1, 2], 0, [[0]], CONTEXT, true), sample_rows: [0] })).rejects.toThrow(
    "is not the last of its sequence",
  );
  expect((await runner.submit(sequenceBatch([1], 0, [[0]], CONTEXT, true))).tokenIds).toHaveLength(1);
});

test("penalties, bias, mask and log-probabilities apply to one slot", async () => {
  const { runner } = await engineOf("rows");
  const batch = (flags: number): ReturnType<typeof sequenceBatch> => ({
    ...sequenceBatch([1], 0, [[0]], CONTEXT, true),
    sample_slots: [1, flags],
  });
  const plain = await runner.submit(batch(0), { logprobs: true, alternatives: true });
  const token = plain.tokenIds[0] ?? -1;
  expect(plain.logprobs?.[0]).toBeCloseTo(10 - Math.log(Math.exp(10) + VOCAB - 1), 5);
  expect(plain.alternatives?.ids[0]).toBe(token);
  runner.setLogitBias(
    1,
    new Float32Array(VOCAB).fill(0).map((_, id) => (id === 3 ? 99 : 0)),
  );
  expect((await runner.submit(batch(2))).tokenIds[0]).toBe(3);
  runner.setTokenMask(1, Int32Array.of(1 << 5));
  expect((await runner.submit(batch(4))).tokenIds[0]).toBe(5);
  expect((await runner.submit(batch(0))).tokenIds[0]).toBe(token);
});

test("a step that fails is a DeviceError, and so are all later calls", async () => {
  const { ort } = stubRuntime((run) => (run === 1 ? new Error("no memory") : null));
  const runner = new OnnxRunner(
    ort,
    await ort.InferenceSession.create(""),
    manifest,
    planExport(manifest, {}),
    4,
    "rows",
  );
  await runner.submit(sequenceBatch([1], 0, [[0]], CONTEXT, true));
  const failing = [
    runner.submit(sequenceBatch([1], 1, [[0]], CONTEXT, true)),
    runner.submit(sequenceBatch([1], 0, [[1]], CONTEXT, true)),
  ];
  for (const each of failing)
    await expect(each).rejects.toMatchObject({
      code: "device_error",
      message: expect.stringContaining("no memory") as string,
    });
});

test("a logit processor changes the logits before the token is sampled", async () => {
  const { engine } = await engineOf("rows");
  const seen: number[] = [];
  const logitProcessor = (logitsOrToken: Float32Array | number): void => {
    if (typeof logitsOrToken === "number") seen.push(logitsOrToken);
    else logitsOrToken[3] = 100;
  };
  const [forced, other] = await Promise.all([
    tokensOf(engine, { promptIds: prompt(5, 3), maxTokens: 2, logitProcessor }),
    tokensOf(engine, { promptIds: prompt(5, 7), maxTokens: 2 }),
  ]);
  expect([forced, seen, other]).toEqual([[3, 3], [3, 3], answerOf(prompt(5, 7), 2, CONTEXT).tokens]);
});
