// Near guesses for far inside Hybrid: the answer is the far model's own, and requests that cannot be guessed or checked
// are answered by far as usual.

import { beforeEach, expect, test } from "vitest";

import { ChatCompletions } from "../../src/api/chat_completions.js";
import type { AnswerEnd, GeneratedToken, TokenRequest, TokenSource } from "../../src/engine/request.js";
import { drawAt } from "../../src/engine/resolved_sampling.js";
import { DeviceError } from "../../src/errors.js";
import type { DeviceHints } from "../../src/router/device_hints.js";
import type { DraftingEngine } from "../../src/router/sides/near.js";
import type { SocketClass } from "../../src/router/sides/verify_socket.js";
import { ToolCallStream } from "../../src/text/tool_call_stream.js";
import { formatOf } from "../text/tool_formats.js";
import { fakeEngine, modelOf } from "../api/fake_model.js";
import type { Message } from "./fake_socket.js";
import { FakeSocket } from "./fake_socket.js";
import { FakeFar, turns } from "./fakes.js";
import { MESSAGES, read, setUp, shown } from "./hybrid_set_up.js";

const ANSWER = "far says 85, says far";
const PROMPT = bytes("[user]what is 27 + 58?[assistant]");
const ABOUT = { id: "big", context: 4096, tokenizer_sha256: "abc", vocab_size: 512, tools: true, verify: true };
const POLICY = { mode: "prefer-far", speculation: { draft_tokens: 3 }, retries: 0 };

function bytes(text: string): readonly number[] {
  return [...new TextEncoder().encode(text)];
}

/** Knows the answer except for every fifth of its tokens. */
class Guesser implements TokenSource {
  readonly requests: TokenRequest[] = [];
  failure: Error | null = null;

  async *generateTokens(request: TokenRequest): AsyncGenerator<GeneratedToken, AnswerEnd, undefined> {
    this.requests.push(request);
    const { promptIds, maxTokens = Infinity, signal } = request;
    const answerIds = bytes(ANSWER)
      .map((id, index) => (index % 5 === 4 ? id + 1 : id))
      .slice(promptIds.length - PROMPT.length)
      .slice(0, maxTokens);
    for (const tokenId of answerIds) {
      await Promise.resolve();
      signal?.throwIfAborted();
      if (this.failure !== null) throw this.failure;
      yield { tokenId, logprob: null, alternatives: [] };
    }
    return {
      finishReason: "stop",
      promptTokens: promptIds.length,
      cachedTokens: 0,
      completionTokens: answerIds.length,
    };
  }
}

/** The far model behind /v1/nearfar/verify, which generates ANSWER. */
class Verifier extends FakeSocket {
  static sockets: Verifier[] = [];
  #left = bytes(ANSWER);

  constructor(...given: ConstructorParameters<SocketClass>) {
    super(...given);
    Verifier.sockets.push(this);
  }

  protected override answer({ type, tokens = [] }: Message): void {
    if (type === "open") {
      this.reply({ type: "opened", version: 1, context: 4096, max_drafts: 8 });
      return;
    }
    const wrong = tokens.findIndex((token, index) => token !== this.#left[index]);
    const accepted = this.#left.slice(0, (wrong < 0 ? tokens.length : wrong) + 1);
    this.#left = this.#left.slice(accepted.length);
    this.reply({
      type: "accepted",
      tokens: accepted,
      cached_tokens: 0,
      ...(this.#left.length === 0 ? { finish_reason: "stop" } : {}),
    });
  }
}

beforeEach(() => {
  Verifier.sockets = [];
});

function refusing(code: string, status: number): SocketClass {
  return class extends Verifier {
    protected override answer(): void {
      this.refuse(code, status);
    }
  };
}

/** A proxy that does not let WebSockets through. */
class Blocked extends Verifier {
  protected override connect(): void {
    this.onclose?.({ code: 1006 });
  }
}

/** Breaks after the first tokens. */
class Breaking extends Verifier {
  protected override reply(message: { readonly type?: string }): void {
    super.reply(message);
    if (message.type === "accepted") setImmediate(() => this.onclose?.({ code: 1006 }));
  }
}

interface Setup {
  readonly policy?: object;
  readonly about?: object;
  readonly promptIds?: readonly number[];
  readonly WebSocket?: SocketClass;
  readonly hints?: Partial<DeviceHints>;
}

async function speculating({
  policy = {},
  about = {},
  promptIds = PROMPT,
  WebSocket = Verifier,
  hints = {},
}: Setup = {}) {
  const guesser = new Guesser();
  const tools = { parser: () => new ToolCallStream(formatOf("hermes")), grammar: () => null };
  const model = modelOf(guesser, { name: "small", tools });
  const engine = fakeEngine(model);
  const near: DraftingEngine = {
    ...engine,
    info: { ...engine.info, tokenizerSha256: "abc" },
    generateTokens: (request) => guesser.generateTokens(request),
    over: (tokens) => new ChatCompletions({ ...model, tokens }),
    decode: (ids) => String.fromCharCode(...ids),
  };
  const far = Object.assign(new FakeFar([{ texts: [ANSWER] }]), {
    about: { api_version: 1, models: [{ ...ABOUT, ...about }] },
    promptIds,
  });
  return { ...(await setUp({ policy: { ...POLICY, ...policy }, near, far, WebSocket, hints })), guesser };
}

test("the answer is the far model's own, in fewer rounds than tokens, and counts as far's", async () => {
  const { nf, far, ledger, guesser } = await speculating({
    policy: { price: { prompt_usd_per_million: 1, completion_usd_per_million: 10 } },
  });
  expect(nf.speculation).toEqual({ rounds: 0, drafted: 0, accepted: 0, tokens: 0 });
  const whole = await nf.chat.completions.create({ messages: MESSAGES, temperature: 0.5 });
  const plain = await setUp({ policy: { mode: "prefer-far" }, far: [{ texts: [ANSWER] }] });
  const expected = await plain.nf.chat.completions.create({ messages: MESSAGES, temperature: 0.5 });
  expect([whole.choices, whole.model, whole.route?.side, whole.route?.reason]).toEqual([
    expected.choices,
    "big",
    "far",
    "prefer",
  ]);
  expect(whole.usage).toEqual({
    prompt_tokens: 33,
    completion_tokens: 21,
    total_tokens: 54,
    prompt_tokens_details: { cached_tokens: 0 },
  });
  expect(ledger.spent).toEqual({ requests: 1, usd: (33 * 1 + 21 * 10) / 1e6 });
  expect(far.chats).toEqual([]);
  const { rounds = 0, drafted = 0, accepted = 0, tokens } = nf.speculation ?? {};
  expect(tokens).toBe(21);
  expect([rounds < 21, accepted > 0, accepted < drafted]).toEqual([true, true, true]);
  const [socket] = Verifier.sockets;
  expect(socket?.url).toBe("ws://far.test/v1/nearfar/verify");
  expect(socket?.sent[0]).toMatchObject({
    type: "open",
    model: "big",
    tokenizer_sha256: "abc",
    prompt: PROMPT,
    temperature: 0.5,
  });
  // Both sides sample their tokens with the same random numbers.
  const seed = Number(socket?.sent[0]?.seed);
  expect(seed).toBeGreaterThanOrEqual(0);
  for (const { promptIds, sampling } of guesser.requests)
    expect(drawAt(sampling?.seed ?? 0, 1)).toBe(drawAt(seed, promptIds.length - PROMPT.length + 1));
  expect([socket?.closed, plain.nf.speculation]).toEqual([true, null]);
});

test("the token ids of both sides are compared once", async () => {
  const { nf, far } = await speculating();
  for (const chunks of [await read(nf), await read(nf)]) expect(shown(chunks)).toBe(ANSWER);
  expect(far.requests.map(({ url }) => new URL(url).pathname)).toEqual(["/v1/nearfar/about", "/tokenize"]);
  expect(Verifier.sockets.length).toBe(2);
});

test("a stop string ends the answer, on both sides", async () => {
  const { nf } = await speculating();
  const chunks = await read(nf, { stop: [" 85"] });
  expect([shown(chunks), chunks.at(-1)?.choices[0]?.finish_reason]).toEqual(["far says", "stop"]);
  expect(Verifier.sockets[0]?.closed).toBe(true);
});

test.each<[string, Setup, number]>([
  ["checks no guesses", { about: { verify: false } }, 0],
  ["has another tokenizer", { about: { tokenizer_sha256: "other" } }, 0],
  ["has another chat template", { promptIds: PROMPT.slice(1) }, 0],
  ["says that its model checks none", { WebSocket: refusing("verify_unavailable", 400) }, 1],
  ["says that its messages are of another version", { WebSocket: refusing("verify_version", 400) }, 1],
  ["says that its tokenizer is another", { WebSocket: refusing("tokenizer_differs", 400) }, 1],
  ["cannot be reached by a WebSocket", { WebSocket: Blocked }, 1],
])("a server that %s answers as usual from then on", async (_, setup, sockets) => {
  const { nf, far, ledger } = await speculating(setup);
  for (const chunks of [await read(nf), await read(nf)]) expect(shown(chunks)).toBe(ANSWER);
  expect([far.chats.length, Verifier.sockets.length, ledger.spent.requests]).toEqual([2, sockets, 2]);
  expect(far.bodies[0]).toEqual({
    model: "big",
    messages: MESSAGES,
    stream: true,
    stream_options: { include_usage: true },
  });
});

test("guesses that complete private text are not sent", async () => {
  const { nf } = await speculating({ policy: { private: { patterns: ["85"] } } });
  const { choices } = await nf.chat.completions.create({ messages: MESSAGES });
  expect(choices[0]?.message.content).toBe(ANSWER);
  const all = (await speculating()).nf;
  await all.chat.completions.create({ messages: MESSAGES });
  expect(nf.speculation?.drafted).toBeGreaterThan(0);
  expect(nf.speculation?.drafted).toBeLessThan(all.speculation?.drafted ?? 0);
});

test("guessing resumes once a missing server is back", async () => {
  const down = { is: true };
  class Sometimes extends Verifier {
    protected override connect(): void {
      if (down.is) this.onclose?.({ code: 1006 });
      else super.connect();
    }
  }
  const { nf, far } = await speculating({ WebSocket: Sometimes });
  far.reachable = false;
  expect((await nf.chat.completions.create({ messages: MESSAGES })).route).toMatchObject({
    side: "near",
    reason: "far_failed",
  });
  Object.assign(far, { reachable: true });
  down.is = false;
  expect((await nf.chat.completions.create({ messages: MESSAGES })).choices[0]?.message.content).toBe(ANSWER);
  expect(nf.speculation?.tokens).toBe(ANSWER.length);
});

const TOOLS = [{ type: "function" as const, function: { name: "add" } }];
test.each([
  ["tools", { tools: TOOLS }],
  ["JSON", { response_format: { type: "json_object" } }],
  ["log-probabilities", { logprobs: true }],
  ["a penalty", { frequency_penalty: 1 }],
  ["a bias", { logit_bias: { 1: 1 } }],
  [
    "an answer that is to go on",
    { messages: [...MESSAGES, { role: "assistant", content: "far" }], continue_final_message: true },
  ],
])("with %s far answers as usual", async (_, params) => {
  const { nf, far } = await speculating();
  expect(shown(await read(nf, params))).toBe(ANSWER);
  expect(far.requests.map(({ url }) => new URL(url).pathname)).toEqual(["/v1/nearfar/about", "/v1/chat/completions"]);
  expect(Verifier.sockets).toEqual([]);
  // It sends nothing about the next one.
  await read(nf);
  expect(Verifier.sockets.length).toBe(1);
});

test("nothing of a private request goes over a socket", async () => {
  const { nf, far } = await speculating();
  const before = far.requests.length;
  expect((await nf.chat.completions.create({ messages: MESSAGES, labels: ["private"] })).route).toMatchObject({
    side: "near",
    reason: "private",
  });
  expect([far.requests.length, Verifier.sockets.length]).toEqual([before, 0]);
});

test("near does not guess for a far side that takes over from it", async () => {
  const { nf, far, guesser } = await speculating({ policy: { mode: "prefer-near" } });
  guesser.failure = new DeviceError("lost");
  expect((await nf.chat.completions.create({ messages: MESSAGES })).route).toMatchObject({
    side: "far",
    reason: "near_failed",
  });
  expect([far.chats.length, Verifier.sockets.length]).toEqual([1, 0]);
});

test("near does not guess what it could not have answered", async () => {
  const { nf, far } = await speculating({ policy: { languages: { near: ["en"] } } });
  expect(shown(await read(nf, { language: "fr" }))).toBe(ANSWER);
  expect([far.chats.length, Verifier.sockets.length]).toEqual([1, 0]);
});

test("near does not guess if its device must be spared", async () => {
  const { nf, far } = await speculating({
    policy: { mode: "auto", device: { min_battery: 0.2 } },
    hints: { battery: 0.1, charging: false },
  });
  expect((await nf.chat.completions.create({ messages: MESSAGES })).route).toMatchObject({
    side: "far",
    reason: "battery",
  });
  expect([far.chats.length, Verifier.sockets.length]).toEqual([1, 0]);
});

test("if near cannot guess, the answer comes token by token", async () => {
  const { nf, guesser } = await speculating();
  guesser.failure = new DeviceError("lost");
  expect(shown(await read(nf))).toBe(ANSWER);
  expect(nf.speculation).toEqual({ rounds: ANSWER.length, drafted: 0, accepted: 0, tokens: ANSWER.length });
});

test.each<[string, SocketClass, object]>([
  ["has too much to do", refusing("queue_full", 429), { reason: "far_failed", switched_at: null }],
  ["breaks off", Breaking, { reason: "far_failed", switched_at: 4 }],
])("a server that %s has failed like any far side, and near goes on", async (_, WebSocket, route) => {
  const { nf, far } = await speculating({ WebSocket });
  expect((await nf.chat.completions.create({ messages: MESSAGES })).route).toMatchObject({ side: "near", ...route });
  expect(far.chats).toEqual([]);
});

test("an abort closes the socket", async () => {
  const controller = new AbortController();
  class Silent extends Verifier {
    override answer(message: Message): void {
      if (message.type === "draft") controller.abort(new Error("enough"));
      else super.answer(message);
    }
  }
  const { nf, far } = await speculating({ WebSocket: Silent });
  await expect(nf.chat.completions.create({ messages: MESSAGES }, { signal: controller.signal })).rejects.toThrow(
    "enough",
  );
  await turns();
  expect([Verifier.sockets[0]?.closed, far.chats]).toEqual([true, []]);
});
