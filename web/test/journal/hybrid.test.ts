// Answers of two sides that a later page goes on with: near by its tokens, far after the text, and each after the other.

import { getEventListeners } from "node:events";

import { expect, test } from "vitest";

import type { EngineApi } from "../../src/api/engine_api.js";
import type { ChatCompletionChunk } from "../../src/api/types.js";
import type { JournalOptions } from "../../src/journal/index.js";
import type { MaskedText } from "../../src/router/index.js";
import { journalled } from "../../src/journal/index.js";
import { ReceiptKey, receipted } from "../../src/receipts/index.js";
import type { FarScript } from "../router/fakes.js";
import { FakeFar } from "../router/fakes.js";
import { mulberry32 } from "../engine/mulberry32.js";
import { MESSAGES, routes, setUp, shown } from "../router/hybrid_set_up.js";
import { memoryDisk } from "../store/memory_folder.js";
import { eachToken, pageEngine, pageStore } from "./pages.js";

const CHAT = { messages: MESSAGES, stream: true as const, max_tokens: 40, seed: 3 };

interface Setup extends NonNullable<Parameters<typeof setUp>[0]> {
  readonly journal?: JournalOptions;
}

async function page(disk: ReturnType<typeof memoryDisk>, { journal = {}, ...options }: Setup = {}) {
  const store = pageStore(disk);
  const { engine, runner } = pageEngine();
  const { nf, far } = await setUp({ near: engine, ...options });
  return { store, runner, far, hybrid: journalled(nf, { ...eachToken(store), ...journal }) };
}

/** The chunks until enough text is there, or all. The page crashes after them. */
async function until(
  { hybrid, store }: Awaited<ReturnType<typeof page>>,
  disk: ReturnType<typeof memoryDisk>,
  characters: number,
  rest: object = {},
): Promise<ChatCompletionChunk[]> {
  const chunks: ChatCompletionChunk[] = [];
  const stream = (await hybrid.chat.completions.create({ ...CHAT, ...rest }, { id: "x" }))[Symbol.asyncIterator]();
  while (written(chunks) < characters) {
    const { done, value } = await stream.next();
    if (done === true) return chunks;
    chunks.push(value);
    await new Promise((resolve) => setImmediate(resolve));
  }
  store.crash(disk);
  return chunks;
}

const written = (chunks: readonly ChatCompletionChunk[]): number =>
  chunks.reduce((sum, { choices: [choice] }) => {
    const { content = "", reasoning_content: thought = "", tool_calls: calls = [] } = choice?.delta ?? {};
    return (
      sum +
      `${content}${thought}`.length +
      calls.reduce((all, call) => all + (call.function?.arguments?.length ?? 0), 0)
    );
  }, 0);

async function resume({ hybrid }: Awaited<ReturnType<typeof page>>): Promise<ChatCompletionChunk[]> {
  const chunks: ChatCompletionChunk[] = [];
  for await (const chunk of (await hybrid.journals.resume("x")).answer) chunks.push(chunk as ChatCompletionChunk);
  return chunks;
}

const cancelled = ({ requests }: FakeFar): readonly (string | undefined)[] =>
  requests.filter(({ url }) => url.endsWith("/cancel")).map(({ headers }) => headers["Idempotency-Key"]);

const NEAR = { policy: { mode: "prefer-near" } };
const FAR = { policy: { mode: "prefer-far" } };
const slow = (...texts: readonly string[]): FarScript => ({ texts, then: "hang" });

test.each([
  ["plain", {}],
  ["in a format", { response_format: { type: "regex", pattern: "[a-f ]{20,39}" } }],
  ["with log-probabilities", { logprobs: true, top_logprobs: 2 }],
])("near goes on with its own answer, %s", async (_, rest) => {
  const expected = await until(await page(memoryDisk(), NEAR), memoryDisk(), Infinity, rest);
  for (const characters of [1, 12]) {
    const disk = memoryDisk();
    const begun = await until(await page(disk, NEAR), disk, characters, rest);
    expect(begun.length).toBeLessThan(expected.length);
    const next = await page(disk, NEAR);
    const chunks = await resume(next);
    const delta = (each: ChatCompletionChunk): unknown => each.choices[0] ?? null;
    expect(chunks.map(delta)).toEqual(expected.map(delta));
    expect(routes(chunks)).toEqual(routes(expected));
    expect(next.far.chats).toHaveLength(0);
    expect(next.runner.batches.length).toBeLessThan(40);
  }
});

const KEEP_PRIVATE = { journal: { keepPrivate: true } };
const EMAIL = [{ kind: "EMAIL", pattern: "[a-z]+@[a-z.]+" }];
const ANNA = { messages: [{ role: "user", content: "I am anna@example.org" }] };

const away = (texts: readonly string[], later: readonly string[]): FarScript => ({ texts, later, then: "hang" });

test("far goes on while the page is away, and its one answer is there when the page is back", async () => {
  for (const rest of [
    {},
    { response_format: { type: "json_object" } },
    { logprobs: true },
    { tools: [{ type: "function", function: { name: "f" } }], tool_choice: "required" },
  ]) {
    const disk = memoryDisk();
    const far = new FakeFar([away(["one ", "two "], ["three ", "four"])]);
    const first = await page(disk, { ...FAR, far });
    await until(first, disk, 8, rest);
    // Any number of pages may come and go.
    for (let pages = 0; pages < 2; pages++) {
      const next = await page(disk, { ...FAR, far });
      const chunks = await resume(next);
      expect(shown(chunks)).toBe("one two three four");
      expect(routes(chunks).at(-1)).toEqual({ side: "far", reason: "prefer", at: null });
      expect(chunks.at(-1)?.choices[0]?.finish_reason).toBe("stop");
    }
    expect([far.chats.length, far.receivedAgain.length, cancelled(far)]).toEqual([1, 1, []]);
  }
});

test("far's text is shown once the key of its stream is stored, so that no page computes it again", async () => {
  const first = await page(memoryDisk(), { ...FAR, far: new FakeFar([away(["one ", "two "], ["three"])]) });
  const write = first.store.write.bind(first.store);
  let isStored = false;
  first.store.write = async (...args) => {
    for (let turn = 0; turn < 20; turn++) await new Promise((resolve) => setImmediate(resolve));
    const place = await write(...args);
    isStored ||= args[2].far !== undefined;
    return place;
  };
  const stream = await first.hybrid.chat.completions.create(CHAT, { id: "x" });
  for await (const chunk of stream) {
    if (written([chunk]) === 0) continue;
    expect(isStored).toBe(true);
    break;
  }
  expect.assertions(1);
});

test("what near wrote before far is not lost, and far's stream is the same with its token ids and masks", async () => {
  const far = new FakeFar([away(["one "], ["[EMAIL_1]", " three"])]);
  far.about = { api_version: 1, models: [{ id: "big", context: 4096, tokenizer_sha256: "abc", tools: true }] };
  const escalation = { then: "continue", window_tokens: 2, min_mean_logprob: -0.001 };
  const masks = { then: "mask", patterns: [{ kind: "EMAIL", pattern: "[a-z]+@[a-z.]+" }] };
  for (const [policy, rest] of [
    [{ mode: "prefer-near", escalation }, {}],
    [{ mode: "prefer-far", private: { masks } }, { messages: [{ role: "user", content: "I am anna@example.org" }] }],
  ] as const) {
    const disk = memoryDisk();
    const begun = await until(await page(disk, { policy, far, ...KEEP_PRIVATE }), disk, 4, rest);
    const before = far.chats.length;
    const next = await page(disk, { policy, far, ...KEEP_PRIVATE });
    const chunks = await resume(next);
    expect(shown(chunks)).toBe(
      `${shown(begun)}${"mode" in policy && policy.mode === "prefer-far" ? "anna@example.org" : "[EMAIL_1]"} three`,
    );
    expect(routes(chunks).at(-1)).toEqual(routes(begun).at(-1));
    expect(far.chats).toHaveLength(before);
    expect(next.runner.batches).toHaveLength(0);
  }
  expect(far.receivedAgain.map(({ url }) => new URL(url).pathname)).toEqual([
    "/v1/completions",
    "/v1/chat/completions",
  ]);
});

test("an answer of far that is left goes on, and ends once it is deleted", async () => {
  const far = new FakeFar([away(["one ", "two "], ["three"])]);
  const { hybrid } = await page(memoryDisk(), { ...FAR, far });
  for await (const _ of await hybrid.chat.completions.create(CHAT, { id: "x" })) break;
  expect(cancelled(far)).toEqual([]);
  await hybrid.journals.delete("x");
  expect(cancelled(far)).toEqual([far.chats[0]?.headers["Idempotency-Key"]]);
  // Without an id, it ends when it is left.
  for await (const _ of await hybrid.chat.completions.create(CHAT)) break;
  expect(cancelled(far)).toHaveLength(2);
});

test("a signal of many answers has no listeners once they have ended", async () => {
  const { signal } = new AbortController();
  for (const policy of [NEAR, FAR]) {
    const disk = memoryDisk();
    const far = new FakeFar([away(["one ", "two "], ["three"]), { texts: ["four"] }]);
    await until(await page(disk, { ...policy, far }), disk, 3);
    const { hybrid } = await page(disk, { ...policy, far });
    for await (const _ of (await hybrid.journals.resume("x", { signal })).answer as AsyncIterable<unknown>);
    for await (const _ of await hybrid.chat.completions.create(CHAT, { signal, id: "y" }));
    await hybrid.chat.completions.create({ ...CHAT, stream: false }, { signal });
    expect(getEventListeners(signal, "abort")).toEqual([]);
  }
});

test("far goes on after the text of the page before", async () => {
  const disk = memoryDisk();
  await until(await page(disk, { ...FAR, far: [slow("one ", "two ")] }), disk, 8);
  const next = await page(disk, { ...FAR, far: [{ texts: ["three ", "four"] }] });
  const chunks = await resume(next);
  expect(shown(chunks)).toBe("one two three four");
  expect(chunks.every(({ id }) => id === "x")).toBe(true);
  expect(next.far.bodies[0]?.messages?.at(-1)).toEqual({ role: "assistant", content: "one two " });
  expect(next.far.bodies[0]).toMatchObject({ continue_final_message: true, max_tokens: 38 });
  expect(routes(chunks)[0]).toEqual({ side: "far", reason: "prefer", at: null });
  // A third page repeats the complete answer and asks nobody.
  const last = await page(disk, { ...FAR, far: [{ texts: ["never"] }] });
  expect(shown(await resume(last))).toBe("one two three four");
  expect(last.far.chats).toHaveLength(0);
});

test("far goes on with an answer that near began and far took over", async () => {
  const disk = memoryDisk();
  const policy = { mode: "prefer-near", escalation: { then: "continue", window_tokens: 2, min_mean_logprob: -0.001 } };
  const begun = await until(await page(disk, { policy, far: [slow("one ", "two ")] }), disk, 6);
  const at = routes(begun).at(-1)?.at;
  expect(at).toBeGreaterThan(0);
  const next = await page(disk, { policy, far: [{ texts: ["three"] }] });
  const chunks = await resume(next);
  expect(shown(chunks)).toBe(`${shown(begun)}three`);
  expect(routes(chunks).at(-1)).toMatchObject({ side: "far", reason: "escalated_logprob", at });
});

test("near goes on where far cannot be reached any more, and far where near is gone", async () => {
  const disk = memoryDisk();
  await until(await page(disk, { ...FAR, far: [slow("one ", "two ")] }), disk, 8);
  const offline = await page(disk, { ...FAR, hints: { online: false } });
  const chunks = await resume(offline);
  expect(shown(chunks)).toMatch(/^one two [^]/);
  expect(routes(chunks).at(-1)).toEqual({ side: "near", reason: "offline", at: 8 });

  const other = memoryDisk();
  const begun = await until(await page(other, NEAR), other, 5);
  const next = await page(other, { ...NEAR, near: null, far: [{ texts: [" the end"] }] });
  const whole = await resume(next);
  expect(shown(whole)).toBe(`${shown(begun)} the end`);
  expect(routes(whole).at(-1)).toMatchObject({ side: "far", at: Array.from(shown(begun)).length });
});

test("far starts over in a format or in a call of a tool, and what was shown is withdrawn", async () => {
  for (const [rest, script] of [
    [{ response_format: { type: "json_object" } }, { texts: ['{"a": '], then: "hang" }],
    [
      { tools: [{ type: "function", function: { name: "f" } }] },
      {
        deltas: [
          { tool_calls: [{ index: 0, id: "c", type: "function", function: { name: "f", arguments: '{"a": ' } }] },
        ],
        then: "hang",
      },
    ],
  ] as const) {
    const disk = memoryDisk();
    await until(await page(disk, { ...FAR, far: [script] }), disk, 3, rest);
    const chunks = await resume(await page(disk, { ...FAR, far: [{ texts: ['{"a": 1}'] }] }));
    expect(shown(chunks)).toBe('{"a": 1}');
    expect(routes(chunks).at(-1)).toEqual({ side: "far", reason: "resumed", at: 0 });
  }
});

test("an answer with a receipt goes on, and its parts are those of the whole answer", async () => {
  const pair = await crypto.subtle.generateKey({ name: "Ed25519" }, false, ["sign", "verify"]);
  const key = await ReceiptKey.of(pair);
  const selfTest = { state: "passed", switchedOff: [], largestDeviation: 0 };
  const info = { bundle: "b".repeat(64), target: "webgpu", adapter: "one", activation: "float16", selfTest };
  const signing = (): EngineApi => {
    const { engine } = pageEngine();
    return receipted({ ...engine, info: { ...engine.info, ...info } } as unknown as EngineApi, { key });
  };
  const partsOf = async (setup: Setup, next: Setup = setup) => {
    const disk = memoryDisk();
    const first = await page(disk, { near: signing(), ...setup });
    const begun = written(await until(first, disk, 8, { receipt: true }));
    const chunks = await resume(await page(disk, { near: signing(), ...next }));
    const { receipts = [], parts = [] } = chunks.at(-1) ?? {};
    expect(parts.at(-1)?.request).toMatchObject({ receipt: true });
    const sides = parts.map(({ side, start, receipt }) => [side, start === begun ? "after" : start, receipt]);
    return [receipts.map(({ receipt }) => receipt.side), ...sides];
  };
  const signed = [{ receipt: { side: "far" }, signature: {} }];
  const kept = new FakeFar([{ texts: ["one ", "two "], later: ["three"], receipts: signed, then: "hang" }]);
  expect(await partsOf({ ...FAR, far: kept })).toEqual([["far"], ["far", 0, 0]]);
  const lost = { ...FAR, far: [slow("one ", "two ")] };
  const other = { ...FAR, far: [{ texts: ["three"], receipts: signed }] };
  expect(await partsOf(lost, other)).toEqual([["far"], ["far", 0, null], ["far", "after", 0]]);
  expect(await partsOf(NEAR)).toEqual([["near"], ["near", 0, 0]]);
});

test("a private answer is kept only if the page wants that, and never goes on far", async () => {
  const policy = { mode: "prefer-far", private: { patterns: ["secret"] } };
  const rest = { messages: [{ role: "user", content: "my secret" }] };
  const disk = memoryDisk();
  await until(await page(disk, { policy }), disk, 4, rest);
  expect(disk.files.size).toBe(0);
  await until(await page(disk, { policy, ...KEEP_PRIVATE }), disk, 4, rest);
  expect(disk.files.size).toBeGreaterThan(1);
  const far = new FakeFar();
  await resume(await page(disk, { policy, far, ...KEEP_PRIVATE }));
  expect(far.chats).toHaveLength(0);
  // The policy of the next page may be stricter: what an earlier one kept is deleted when it goes on.
  const open = memoryDisk();
  await until(await page(open, { ...FAR, far: [slow("one ")] }), open, 4, rest);
  expect(open.files.size).toBeGreaterThan(1);
  const strict = await page(open, { policy, far });
  expect(shown(await resume(strict))).toMatch(/^one [^]/);
  expect(far.chats).toHaveLength(0);
  expect(open.files.size).toBe(0);
});

test("an answer to a masked request is kept only if the page wants that, because the request has the private texts", async () => {
  const disk = memoryDisk();
  for (const [kept, rest, isKept] of [
    [{}, ANNA, false],
    [KEEP_PRIVATE, ANNA, true],
    // Nothing of it is masked.
    [{}, {}, true],
  ] as const) {
    const policy = { mode: "prefer-far", private: { masks: { patterns: EMAIL } } };
    await until(await page(disk, { policy, far: [slow("one ")], ...kept }), disk, 4, rest);
    expect(disk.files.size > 1).toBe(isKept);
    disk.files.clear();
  }
});

test("under strict masks that ask, far goes on with what was written if that is agreed to with its request", async () => {
  const policy = { mode: "prefer-far", private: { masks: { then: "ask", strict: true, patterns: EMAIL } } };
  for (const agrees of [true, false]) {
    const disk = memoryDisk();
    const first = { policy, far: [slow("one ", "[EMAIL_1] ")], confirm: () => true, ...KEEP_PRIVATE };
    await until(await page(disk, first), disk, 8, ANNA);
    const asked: (readonly MaskedText[])[] = [];
    const confirm = (texts: readonly MaskedText[]): boolean => asked.push(texts) > 0 && agrees;
    const next = await page(disk, { policy, far: [{ texts: ["two"] }], confirm, ...KEEP_PRIVATE });
    const chunks = await resume(next);
    expect(asked).toHaveLength(1);
    expect(asked[0]?.filter(({ path }) => /answer|content/.test(path))).toEqual([
      { path: "messages[0].content", text: "I am [EMAIL_1]" },
      { path: "answer.text", text: "one [EMAIL_1] " },
    ]);
    expect(shown(chunks).startsWith("one anna@example.org ")).toBe(true);
    if (agrees) expect(shown(chunks)).toBe("one anna@example.org two");
    expect(next.far.bodies.map(({ messages }) => (messages as readonly unknown[] | undefined)?.at(-1))).toEqual(
      agrees ? [{ role: "assistant", content: "one [EMAIL_1] " }] : [],
    );
  }
});

const ANSWERS = Number(process.env.NEARFAR_FAULTS ?? 6);

test(`${ANSWERS} answers of far are the same after pages that end at random points`, { timeout: 600_000 }, async () => {
  const draw = mulberry32(11);
  const below = (end: number): number => Math.floor(draw() * end);
  for (let index = 0; index < ANSWERS; index++) {
    const pieces = Array.from({ length: 4 + below(12) }, () => `${below(1e6)} `);
    const at = 1 + below(pieces.length - 1);
    const far = new FakeFar([away(pieces.slice(0, at), pieces.slice(at))]);
    const disk = memoryDisk();
    const written = pieces.slice(0, at).join("").length;
    await until(await page(disk, { ...FAR, far }), disk, 1 + below(written), index % 2 === 0 ? {} : { logprobs: true });
    let text = "";
    for (let rounds = below(3); ; rounds--) {
      const next = await page(disk, { ...FAR, far });
      const stored = (await next.hybrid.journals.find("x")) !== null;
      expect(stored).toBe(true);
      const { answer } = await next.hybrid.journals.resume("x");
      text = "";
      const most = rounds > 0 ? below(pieces.join("").length) : Infinity;
      for await (const chunk of answer as AsyncIterable<ChatCompletionChunk>) {
        text += chunk.choices[0]?.delta.content ?? "";
        if (text.length > most) break;
      }
      if (rounds <= 0) break;
      next.store.crash(disk, below(3) === 0);
    }
    expect(text, `answer ${index}`).toBe(pieces.join(""));
    expect(far.chats).toHaveLength(1);
  }
});
