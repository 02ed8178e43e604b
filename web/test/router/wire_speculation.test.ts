// A near model that guesses and a fake server that checks: the answers are the server's, whatever near guesses.

import { expect, test } from "vitest";

import type { AnswerEnd, GeneratedToken, TokenRequest } from "../../src/engine/request.js";
import { DeviceError } from "../../src/errors.js";
import type { NearTokens } from "../../src/router/sides/near_drafts.js";
import type { SocketClass } from "../../src/router/sides/verify_socket.js";
import { WireSpeculation } from "../../src/router/sides/wire_speculation.js";
import type { Message } from "./fake_socket.js";
import { FakeSocket } from "./fake_socket.js";

const PROMPT = [3, 1, 4];
const TOKENS = 20;

/** The far model's next token: it depends on all tokens before it. */
function nextToken(tokens: readonly number[]): number {
  return tokens.reduce((value, token) => (value * 31 + token + 1) % 65_521, 0) % 16;
}

function answerOf(prompt: readonly number[], count: number): number[] {
  const tokens = [...prompt];
  while (tokens.length < prompt.length + count) tokens.push(nextToken(tokens));
  return tokens.slice(prompt.length);
}

/** Guesses right unless ``wrongAt`` is true; ``requests`` has its requests. */
class FakeNear implements NearTokens {
  readonly info: { readonly context: number };
  readonly requests: TokenRequest[] = [];
  running = 0;

  constructor(
    private readonly wrongAt: (length: number) => boolean = () => false,
    context = 512,
    private readonly failAt = Infinity,
  ) {
    this.info = { context };
  }

  async *generateTokens(request: TokenRequest): AsyncGenerator<GeneratedToken, AnswerEnd, undefined> {
    this.requests.push(request);
    this.running += 1;
    const tokens = [...request.promptIds];
    try {
      for (let count = 0; count < (request.maxTokens ?? Infinity); count++) {
        await Promise.resolve();
        request.signal?.throwIfAborted();
        if (this.requests.length > this.failAt) throw new DeviceError("lost");
        const token = nextToken(tokens);
        tokens.push(this.wrongAt(tokens.length) ? (token + 1) % 16 : token);
        yield { tokenId: tokens[tokens.length - 1] ?? 0, logprob: null, alternatives: [] };
      }
      return { finishReason: "length", promptTokens: request.promptIds.length, cachedTokens: 0, completionTokens: 0 };
    } finally {
      this.running -= 1;
    }
  }
}

/** The server's side of one connection. ``sockets`` has all that were opened. */
class Server extends FakeSocket {
  static sockets: Server[] = [];
  #tokens: number[] = [];
  #left = 0;

  constructor(...given: ConstructorParameters<SocketClass>) {
    super(...given);
    Server.sockets.push(this);
  }

  protected override answer(message: Message): void {
    if (message.type === "open") {
      if (message.tokenizer_sha256 !== "5ha") {
        this.refuse("tokenizer_differs", 400);
        return;
      }
      this.#tokens = [...(message.prompt ?? [])];
      this.#left = message.max_tokens ?? TOKENS;
      this.reply({ type: "opened", version: 1, context: 512, max_drafts: 8 });
      return;
    }
    const accepted: number[] = [];
    for (const draft of [...(message.tokens ?? []), null]) {
      const token = nextToken(this.#tokens);
      this.#tokens.push(token);
      accepted.push(token);
      if (token !== draft || accepted.length === this.#left) break;
    }
    this.#left -= accepted.length;
    this.reply({
      type: "accepted",
      tokens: accepted,
      cached_tokens: 0,
      ...(this.#left === 0 ? { finish_reason: "length" } : {}),
    });
  }
}

/** Sends the scripted message instead of answering a message of this type. */
function socketThat(
  type: string,
  does: (socket: {
    reply: (message: unknown) => void;
    fail: (code: string, status: number) => void;
    drop: () => void;
  }) => void,
): typeof Server {
  return class extends Server {
    protected override answer(message: Message): void {
      if (message.type !== type) super.answer(message);
      else
        does({
          reply: (response) => {
            this.reply(response);
          },
          fail: (code, status) => {
            this.refuse(code, status);
          },
          drop: () => this.onclose?.({ code: 1006 }),
        });
    }
  };
}

function source(
  near: NearTokens,
  Socket: typeof Server = Server,
  tokenizerSha256 = "5ha",
  draftTokens = 4,
): WireSpeculation {
  Server.sockets = [];
  return new WireSpeculation(near, {
    baseURL: "http://far:8000/v1",
    apiKey: "sk-ключ",
    model: "m",
    tokenizerSha256,
    draftTokens,
    WebSocket: Socket,
  });
}

async function generated(
  from: WireSpeculation,
  request: Partial<TokenRequest> = {},
): Promise<{ tokens: number[]; end: AnswerEnd }> {
  const tokens: number[] = [];
  const answer = from.generateTokens({ promptIds: PROMPT, maxTokens: TOKENS, ...request });
  for (;;) {
    const { done, value } = await answer.next();
    if (done === true) return { tokens, end: value };
    tokens.push(value.tokenId);
  }
}

test.each([
  ["right", new FakeNear()],
  ["wrong now and then", new FakeNear((length) => length % 3 === 0)],
  ["always wrong", new FakeNear(() => true)],
  ["short of context", new FakeNear(() => false, PROMPT.length + 6)],
  ["failing", new FakeNear(() => false, 512, 1)],
])("a near model that is %s gives the far model's answer", async (_, near) => {
  const from = source(near);
  const { tokens, end } = await generated(from);
  expect(tokens).toEqual(answerOf(PROMPT, TOKENS));
  expect(end).toEqual({ finishReason: "length", promptTokens: 3, cachedTokens: 0, completionTokens: TOKENS });
  expect(from.counts.tokens).toBe(TOKENS);
  expect(Server.sockets.map(({ closed }) => closed)).toEqual([true]);
  expect(near.running).toBe(0);
});

test("tokens beyond the limit are cut", async () => {
  class Talkative extends Server {
    protected override answer(message: Message): void {
      super.answer({ ...message, max_tokens: 99 });
    }
  }
  const { tokens, end } = await generated(source(new FakeNear(), Talkative));
  expect([tokens, end.finishReason, end.completionTokens]).toEqual([answerOf(PROMPT, TOKENS), "length", TOKENS]);
});

test("guesses that may not be sent are not sent", async () => {
  Server.sockets = [];
  const from = new WireSpeculation(new FakeNear(), {
    baseURL: "http://far:8000/v1",
    model: "m",
    tokenizerSha256: "5ha",
    WebSocket: Server,
    maySend: (ids) => ids.length <= 4,
  });
  expect((await generated(from)).tokens).toEqual(answerOf(PROMPT, TOKENS));
  expect(from.counts).toEqual({ rounds: 16, drafted: 4, accepted: 4, tokens: TOKENS });
});

test("correct guesses take one round for five tokens, and none is made twice", async () => {
  const near = new FakeNear();
  const from = source(near);
  await generated(from);
  expect(from.counts).toEqual({ rounds: 4, drafted: 16, accepted: 16, tokens: TOKENS });
  expect(near.requests.map(({ promptIds, maxTokens }) => [promptIds.length - PROMPT.length, maxTokens])).toEqual([
    [0, 4],
    [4, 5],
    [9, 5],
    [14, 5],
  ]);
});

test("the key is sent as a protocol, in base64url", async () => {
  await generated(source(new FakeNear()));
  const [socket] = Server.sockets;
  expect(socket?.url).toBe("ws://far:8000/v1/nearfar/verify");
  expect(socket?.protocols[0]).toBe("nearfar.verify");
  const coded = socket?.protocols[1]?.replace(/^nearfar\.key\./, "") ?? "";
  expect(Buffer.from(coded, "base64url").toString()).toBe("sk-ключ");
});

test("a stop token of the request ends the answer", async () => {
  const expected = answerOf(PROMPT, TOKENS);
  const stop = expected[7] ?? 0;
  const { tokens, end } = await generated(source(new FakeNear()), { stopTokenIds: [stop] });
  expect(tokens).toEqual(expected.slice(0, expected.indexOf(stop)));
  expect(end.finishReason).toBe("stop");
});

test.each([
  [
    "another tokenizer",
    Server,
    "other",
    { code: "request_error", details: { code: "tokenizer_differs", status: 400 } },
  ],
  [
    "another version",
    socketThat("open", ({ reply }) => {
      reply({ type: "opened", version: 2, context: 1, max_drafts: 1 });
    }),
    "5ha",
    { code: "request_error", details: { code: "verify_version" } },
  ],
  [
    "a wrong key",
    socketThat("open", ({ fail }) => {
      fail("invalid_api_key", 401);
    }),
    "5ha",
    { code: "request_error", details: { code: "wrong_key", param: "far.apiKey", status: 401 } },
  ],
  [
    "a full server",
    socketThat("open", ({ fail }) => {
      fail("queue_full", 429);
    }),
    "5ha",
    { code: "unavailable", details: { status: 429, retryable: true } },
  ],
  [
    "a failing device",
    socketThat("draft", ({ fail }) => {
      fail("device_error", 500);
    }),
    "5ha",
    { code: "unavailable", details: { status: 500, retryable: false } },
  ],
  [
    "a connection that breaks",
    socketThat("draft", ({ drop }) => {
      drop();
    }),
    "5ha",
    { code: "unavailable", details: { retryable: true } },
  ],
  [
    "nonsense",
    socketThat("draft", ({ reply }) => {
      reply("{");
    }),
    "5ha",
    { code: "unavailable", details: { retryable: false } },
  ],
  [
    "a message out of turn",
    socketThat("draft", ({ reply }) => {
      reply({ type: "opened", version: 1, context: 1, max_drafts: 1 });
    }),
    "5ha",
    { code: "unavailable" },
  ],
])("%s is a typed error", async (_, Socket, sha256, error) => {
  const near = new FakeNear();
  await expect(generated(source(near, Socket, sha256))).rejects.toMatchObject(error);
  expect(near.running).toBe(0);
});

test("a missing server is Unavailable", async () => {
  class Refused extends Server {
    protected override connect(): void {
      this.onclose?.({ code: 1006 });
    }
  }
  await expect(generated(source(new FakeNear(), Refused))).rejects.toMatchObject({
    code: "unavailable",
    details: { retryable: true },
  });
});

test("the signal, and leaving the loop, end both sides", async () => {
  const near = new FakeNear();
  const controller = new AbortController();
  const silent = socketThat("draft", () => {
    controller.abort(new Error("enough"));
  });
  await expect(generated(source(near, silent), { signal: controller.signal })).rejects.toThrow("enough");
  expect(Server.sockets[0]?.closed).toBe(true);
  for await (const { tokenId } of source(near).generateTokens({ promptIds: PROMPT, maxTokens: TOKENS })) {
    expect(tokenId).toBe(answerOf(PROMPT, 1)[0]);
    break;
  }
  expect(Server.sockets[0]?.closed).toBe(true);
  expect(near.running).toBe(0);
});

test("parameters that drafts do not support are errors before anything is sent", async () => {
  const from = source(new FakeNear());
  for (const wrong of [{ sampling: { repetitionPenalty: 2 } }, { whenFull: { keep: 1 } }, { logprobs: 1 }]) {
    await expect(generated(from, wrong)).rejects.toMatchObject({ code: "request_error" });
  }
  expect(Server.sockets).toEqual([]);
});
