// Receipts of answers on this device: what they state, who signs them, and what is refused.

import { readFileSync } from "node:fs";

import { expect, test } from "vitest";

import type { EngineApi } from "../../src/api/engine_api.js";
import type { ChatCompletionChunk, CompletionChunk, SignedReceipt } from "../../src/api/types.js";
import { RequestError } from "../../src/errors.js";
import type { ReceiptOptions } from "../../src/receipts/index.js";
import { ReceiptKey, deviceKey, isSigned, receipted } from "../../src/receipts/index.js";
import type { Notes } from "../../src/runtime/notes.js";
import { canonicalJson, requestText } from "../../src/shared/receipt.js";
import { fakeEngine, fakeModel } from "../api/fake_model.js";
import { sha256Of } from "./sha256_of.js";
import { MESSAGES, read, routes, setUp, WATCHED } from "../router/hybrid_set_up.js";
import { near } from "../router/fakes.js";

const VECTORS = JSON.parse(
  readFileSync(new URL("../../../tests/conformance/receipts.json", import.meta.url), "utf8"),
) as {
  readonly canonical: readonly { readonly value: unknown; readonly text: string }[];
  readonly refused: readonly unknown[];
  readonly requests: readonly {
    readonly request: Record<string, unknown>;
    readonly text: string;
    readonly sha256: string;
  }[];
  readonly tokens: readonly { readonly token_ids: readonly number[]; readonly sha256: string }[];
  readonly signed: readonly SignedReceipt[];
};

const INFO = {
  bundle: "b".repeat(64),
  target: "webgpu",
  adapter: "an adapter",
  activation: "float16",
  selfTest: {
    state: "passed-with-switched-off",
    switchedOff: ["slow"],
    largestDeviation: 0.001,
    durationMs: 5,
    remembered: true,
  },
} as const;

const withInfo = (engine: EngineApi): EngineApi => ({ ...engine, info: { ...engine.info, ...INFO } });

const newKey = async (name = "Ed25519"): Promise<ReceiptKey> =>
  ReceiptKey.of(await crypto.subtle.generateKey({ name, namedCurve: "P-256" }, false, ["sign", "verify"]));

async function page(texts: readonly string[], options: ReceiptOptions = {}) {
  const { model, source } = fakeModel(...texts);
  const key = await newKey();
  return { engine: receipted(withInfo(fakeEngine(model)), { key, ...options }), source, key };
}

const idsOf = (text: string): number[] => [...new TextEncoder().encode(text)];

test("texts and hashes are those of the vectors", async () => {
  for (const { value, text } of VECTORS.canonical) expect(canonicalJson(value)).toBe(text);
  for (const value of VECTORS.refused) expect(() => canonicalJson(value)).toThrow(RequestError);
  for (const { request, text, sha256 } of VECTORS.requests) {
    expect(requestText(request)).toBe(text);
    expect(sha256Of(text)).toBe(sha256);
  }
  for (const { token_ids: ids, sha256 } of VECTORS.tokens) expect(sha256Of(canonicalJson(ids))).toBe(sha256);
  expect(VECTORS.signed.map(({ signature }) => signature.algorithm)).toEqual(["ed25519", "ecdsa-p256"]);
  for (const signed of VECTORS.signed) {
    expect(await isSigned(signed)).toBe(true);
    expect(await isSigned({ ...signed, receipt: { ...signed.receipt, time: 0 } })).toBe(false);
  }
});

test.each(["Date", "Map"])("a %s is not JSON", (name) => {
  const value = name === "Date" ? new Date() : new Map();
  expect(() => canonicalJson({ a: [value] })).toThrow("the request.a[0] has no form");
});

test("an answer's receipt has hashes of its tokens, and the tokens only if they are asked for", async () => {
  const { engine, source, key } = await page(["hello", "again"]);
  const params = { messages: MESSAGES, temperature: 0.5, n: 2, max_tokens: 9 };
  const answer = await engine.chat.completions.create({ ...params, receipt: true });
  expect(answer.choices.map(({ message, token_ids: ids }) => [message.content, ids])).toEqual([
    ["hello", undefined],
    ["again", undefined],
  ]);
  expect(answer.prompt_token_ids).toBeUndefined();
  const [signed] = answer.receipts ?? [];
  if (signed === undefined) throw new Error("no receipt");
  expect(await isSigned(signed)).toBe(true);
  expect(signed.signature.public_key).toBe(key.publicKey);
  const { receipt } = signed;
  const prompt = source.requests[0]?.promptIds ?? [];
  const seed = source.requests[0]?.sampling?.seed ?? -1;
  expect(receipt).toMatchObject({
    version: 1,
    side: "near",
    model: "fake",
    bundle: INFO.bundle,
    request: sha256Of(requestText(params)),
    device: {
      name: "an adapter",
      target: "webgpu",
      activation: "float16",
      self_test: { state: "passed-with-switched-off", largest_deviation: 0.001, switched_off: ["slow"] },
    },
    sampling: { temperature: 0.5, top_k: 0, top_p: 1 },
  });
  expect(receipt.choices).toEqual(
    ["hello", "again"].map((text, index) => ({
      index,
      seed: (seed + index) >>> 0,
      prompt: sha256Of(canonicalJson(prompt)),
      prompt_tokens: prompt.length,
      answer: sha256Of(canonicalJson([...idsOf(text), 256])),
      answer_tokens: text.length + 1,
      finish_reason: "stop",
      token_ids: null,
    })),
  );
  const listed = await engine.chat.completions.create({ ...params, receipt: true, return_token_ids: true });
  expect(listed.receipts?.[0]?.receipt.choices[0]?.token_ids).toEqual(listed.choices[0]?.token_ids);
  const plain = await engine.chat.completions.create(params);
  expect(plain.receipts).toBeUndefined();
});

test("the last chunk of a stream has the receipt, and no other chunk is different", async () => {
  const chunksOf = async <C>(stream: AsyncIterable<C>): Promise<C[]> => {
    const chunks: C[] = [];
    for await (const chunk of stream) chunks.push(chunk);
    return chunks;
  };
  const choices = (chunks: readonly (ChatCompletionChunk | CompletionChunk)[]) => chunks.map((chunk) => chunk.choices);
  const chat = { messages: MESSAGES, stream: true as const, seed: 3 };
  const text = { prompt: "a", stream: true as const, seed: 3, stop: "l" };
  const { engine } = await page(["hello", "hello", "hello", "hello"]);
  const chatChunks = await chunksOf(await engine.chat.completions.create({ ...chat, receipt: true }));
  expect(choices(chatChunks.slice(0, -1))).toEqual(choices(await chunksOf(await engine.chat.completions.create(chat))));
  expect(chatChunks.at(-1)).toMatchObject({ choices: [] });
  expect(chatChunks.at(-1)?.usage).toBeUndefined();
  const counted = { ...text, receipt: true, stream_options: { include_usage: true } };
  const textChunks = await chunksOf(await engine.completions.create(counted));
  expect(choices(textChunks.slice(0, -1))).toEqual(choices(await chunksOf(await engine.completions.create(text))));
  const last = textChunks.at(-1);
  expect(last?.usage?.completion_tokens).toBe(3);
  // The tokens up to the one that completes the stop string.
  expect(last?.receipts?.[0]?.receipt.choices[0]).toMatchObject({
    answer: sha256Of(canonicalJson(idsOf("hel"))),
    finish_reason: "stop",
    seed: 3,
  });
});

test("an answer that is broken off has a receipt of its part for onReceipt", async () => {
  const parts: SignedReceipt[] = [];
  const { engine } = await page(["hello"], { onReceipt: (receipt) => parts.push(receipt) });
  let text = "";
  for await (const chunk of await engine.chat.completions.create({ messages: MESSAGES, stream: true, receipt: true })) {
    text += chunk.choices[0]?.delta.content ?? "";
    if (text === "hel") break;
  }
  expect(parts).toHaveLength(1);
  expect(parts[0]?.receipt.choices[0]).toMatchObject({
    answer: sha256Of(canonicalJson(idsOf("hel"))),
    finish_reason: null,
  });
});

test("an unknown option is refused by name", () => {
  expect(() => receipted({} as EngineApi, { keys: 1 } as object)).toThrow(
    "'keys' is not supported; supported: key, onReceipt",
  );
});

test("what a receipt could not say is refused by name", async () => {
  const { engine, source } = await page(["hello"]);
  const ask = (rest: object, options = {}): Promise<unknown> =>
    engine.chat.completions.create({ messages: MESSAGES, receipt: true, ...rest }, options);
  await expect(ask({ functions: [{ name: "f" }] })).rejects.toThrow("older form of tools");
  await expect(ask({}, { begun: [{}] })).rejects.toThrow("an earlier page has begun");
  const image = { type: "image", image: new Blob() };
  await expect(ask({ messages: [{ role: "user", content: [image] }] })).rejects.toThrow("has no form");
  const { model } = fakeModel("hello");
  const plain = fakeEngine(model);
  await expect(plain.chat.completions.create({ messages: MESSAGES, receipt: true } as never)).rejects.toThrow(
    "receipt",
  );
  expect(source.requests).toEqual([]);
});

test("a device has one key, whose private part nobody can read", async () => {
  const kept = new Map<string, unknown>();
  const notes: Notes = {
    read: (name) => Promise.resolve(kept.get(name)),
    write: (name, value) => Promise.resolve(void kept.set(name, value)),
  };
  const key = await deviceKey(notes);
  expect((await deviceKey(notes)).publicKey).toBe(key.publicKey);
  expect([...kept.values()].map((pair) => (pair as CryptoKeyPair).privateKey.extractable)).toEqual([false]);
  expect(key.pem).toMatch(/^-----BEGIN PUBLIC KEY-----\n[\w+/=]{1,64}\n-----END PUBLIC KEY-----\n$/);
  for (const { receipt } of VECTORS.signed)
    for (const each of [key, await newKey("ECDSA")]) expect(await isSigned(await each.sign(receipt))).toBe(true);
  const pair = await crypto.subtle.generateKey({ name: "ECDSA", namedCurve: "P-384" }, false, ["sign", "verify"]);
  await expect(ReceiptKey.of(pair)).rejects.toThrow(RequestError);
});

const FAR_RECEIPT = { receipt: { side: "far" }, signature: {} };
const FAR = [{ texts: ["far", " away"], receipts: [FAR_RECEIPT] }];

test("Hybrid's answer has the receipt of the side that wrote it", async () => {
  const { engine } = near({ text: "near by" });
  const { nf, far } = await setUp({ near: receipted(withInfo(engine), { key: await newKey() }), far: FAR });
  const answer = await nf.chat.completions.create({ messages: MESSAGES, receipt: true, labels: [] });
  expect(answer.receipts?.map(({ receipt }) => [receipt.side, receipt.request])).toEqual([
    ["near", sha256Of(requestText({ messages: MESSAGES }))],
  ]);
  const chunks = await read(nf, { receipt: true, pin: "far" });
  expect(chunks.at(-1)?.receipts).toEqual([FAR_RECEIPT]);
  expect(far.bodies[0]).toMatchObject({ receipt: true });
  expect((await read(nf)).at(-1)?.receipts).toBeUndefined();
});

test("an answer that changes sides has what each side received, wrote and signed", async () => {
  const { engine } = near({ text: "abcdefgh", logprobs: [-0.1, -0.1, -0.1, -9] });
  const key = await newKey();
  const { nf, far } = await setUp({
    near: receipted(withInfo(engine), { key }),
    far: FAR,
    policy: { escalation: WATCHED },
  });
  const chunks = await read(nf, { receipt: true, return_token_ids: true });
  expect(routes(chunks).at(-1)).toMatchObject({ side: "far", at: 4 });
  const { receipts = [], parts = [] } = chunks.at(-1) ?? {};
  expect(receipts[1]).toEqual(FAR_RECEIPT);
  const [signed] = receipts;
  if (signed === undefined) throw new Error("no receipt");
  expect(await isSigned(signed)).toBe(true);
  expect(signed.receipt.choices).toMatchObject([{ finish_reason: null, token_ids: idsOf("abcd") }]);
  expect(parts.map(({ side, start, receipt }) => [side, start, receipt])).toEqual([
    ["near", 0, 0],
    ["far", 4, 1],
  ]);
  // The receipt is of what the side received.
  expect(sha256Of(requestText(parts[0]?.request ?? {}))).toBe(signed.receipt.request);
  expect(parts[1]?.request).toEqual(far.bodies.at(-1));
  expect(far.bodies.at(-1)).toMatchObject({ receipt: true, return_token_ids: true });
  const answer = await nf.chat.completions.create({ messages: MESSAGES, receipt: true, pin: "far" });
  expect(answer.parts?.map(({ side, start, receipt }) => [side, start, receipt])).toEqual([["far", 0, 0]]);
});

test("far's part of a masked request states what far has received", async () => {
  const patterns = [{ kind: "EMAIL", pattern: "[a-z]+@[a-z.]+[a-z]" }];
  const { nf } = await setUp({ far: FAR, policy: { mode: "prefer-far", private: { masks: { patterns } } } });
  const messages = [{ role: "user" as const, content: "write to anna@lee.org" }];
  const { parts = [] } = await nf.chat.completions.create({ messages, receipt: true });
  expect(parts).toMatchObject([
    { side: "far", changed: ["masked"], request: { messages: [{ content: "write to [EMAIL_1]" }] } },
  ]);
});

test("a side that failed before it signed has a part without a receipt, and a withdrawn text has no part", async () => {
  const partsOf = async (setup: Parameters<typeof setUp>[0], text: string, logprobs: readonly number[] = []) => {
    const { engine } = near({ text, logprobs });
    const { nf } = await setUp({ near: receipted(withInfo(engine), { key: await newKey() }), ...setup });
    const { receipts = [], parts = [] } = (await read(nf, { receipt: true })).at(-1) ?? {};
    return [
      receipts.map(({ receipt }) => receipt.side),
      ...parts.map(({ side, start, receipt }) => [side, start, receipt]),
    ];
  };
  const broken = { far: [{ texts: ["far"], then: "break" as const }], policy: { mode: "prefer-far" } };
  expect(await partsOf(broken, "far away")).toEqual([["near"], ["far", 0, null], ["near", 3, 0]]);
  const withdrawn = { far: FAR, policy: { escalation: { ...WATCHED, then: "restart" } } };
  expect(await partsOf(withdrawn, "abcdefgh", [-0.1, -0.1, -0.1, -9])).toEqual([["far"], ["far", 0, 0]]);
});

test.each(["openai", "vllm"] as const)("a far side of dialect %s signs no receipts", async (dialect) => {
  const { nf } = await setUp({ dialect });
  await expect(nf.chat.completions.create({ messages: MESSAGES, receipt: true, pin: "far" })).rejects.toThrow(
    "only nearfar serve signs receipts",
  );
});
