// Fakes for the router's tests: a clock that only tests advance, a far server that records every byte and fails by a
// script, and engines with scripted answers.

import type { EngineApi } from "../../src/api/engine_api.js";
import type { ChatCompletionMessageParam } from "../../src/api/types.js";
import type { AnswerEnd, GeneratedToken, TokenRequest, TokenSource } from "../../src/engine/request.js";
import type { Clock } from "../../src/router/sides/clock.js";
import type { Ledger } from "../../src/router/budget.js";
import type { Spent } from "../../src/shared/decision/costs.js";
import { fakeEngine, modelOf } from "../api/fake_model.js";

export class FakeClock implements Clock {
  #now = 0;
  readonly #timers = new Set<{ readonly at: number; readonly then: () => void }>();

  /** The time that every look at the clock takes. */
  stride = 0;

  now(): number {
    return (this.#now += this.stride);
  }

  date(): number {
    return Date.UTC(2026, 0, 1) + this.#now;
  }

  after(milliseconds: number, then: () => void): () => void {
    const timer = { at: this.#now + milliseconds, then };
    this.#timers.add(timer);
    return () => {
      this.#timers.delete(timer);
    };
  }

  /** Advances the time and runs the timers that become due. */
  async pass(milliseconds: number): Promise<void> {
    const until = this.#now + milliseconds;
    for (;;) {
      await turns();
      const due = [...this.#timers].filter(({ at }) => at <= until).sort((a, b) => a.at - b.at)[0];
      if (due === undefined) break;
      this.#timers.delete(due);
      this.#now = Math.max(this.#now, due.at);
      due.then();
    }
    this.#now = until;
    await turns();
  }
}

/** Runs turns of the event loop: everything that was started proceeds as far as it can without time. */
export async function turns(count = 30): Promise<void> {
  for (let turn = 0; turn < count; turn++) await new Promise((resolve) => setImmediate(resolve));
}

/**
 * How the far server answers a chat. ``then`` follows the texts: the end, a broken connection, or nothing at all.
 * ``data``: raw events to send instead.
 */
export type FarScript =
  | {
      readonly texts?: readonly string[];
      readonly deltas?: readonly object[];
      readonly then?: "end" | "break" | "hang";
      readonly usage?: object;
      readonly finish?: string;
      readonly data?: readonly string[];
      /** The number of the first event; by default, events have none. */
      readonly first?: number;
      /** What the server has generated when the stream is received again; by default it has not kept it. */
      readonly later?: readonly string[];
      readonly receipts?: readonly object[];
    }
  | { readonly status: number; readonly error?: object; readonly headers?: Readonly<Record<string, string>> }
  | "refused"
  | "silent";

export interface FarRequest {
  readonly url: string;
  readonly method: string;
  readonly headers: Readonly<Record<string, string>>;
  readonly body: string;
  /** The client hung up. */
  aborted: boolean;
}

export const FAR = "http://far.test/v1";

export class FakeFar {
  readonly requests: FarRequest[] = [];
  reachable = true;
  about: object = {
    api_version: 1,
    models: [{ id: "big", context: 4096, tokenizer_sha256: null, vocab_size: 512, tools: true, verify: false }],
  };
  key: string | null = null;
  /** The token ids of any chat's prompt. */
  promptIds: readonly number[] = [1, 2, 3];
  /** The headers of its successful answers. */
  headers: Readonly<Record<string, string>> = {};
  /** The streams that it keeps, by their keys. */
  readonly #kept = new Map<string, { readonly body: string; readonly script: FarScript }>();

  /** Chats are answered in turn, and by the last script from then on. */
  constructor(private readonly scripts: readonly FarScript[] = [{ texts: ["far", " away"] }]) {}

  /** All requests as one text. */
  get sent(): string {
    return JSON.stringify(this.requests);
  }

  get chats(): readonly FarRequest[] {
    return this.requests.filter((request) => request.url.endsWith("/completions") && !isReceivedAgain(request));
  }

  /** The requests for streams that were begun before. */
  get receivedAgain(): readonly FarRequest[] {
    return this.requests.filter(isReceivedAgain);
  }

  /** The bodies of the chats. */
  get bodies(): readonly {
    readonly [key: string]: unknown;
    readonly messages?: readonly { readonly role: string; readonly content: string }[];
  }[] {
    return this.chats.map(({ body }) => JSON.parse(body) as Record<string, never>);
  }

  readonly fetch = async (url: string, init: RequestInit): Promise<Response> => {
    const { signal, method = "GET", body, headers } = init;
    const request: FarRequest = {
      url,
      method,
      headers: headers as Record<string, string>,
      body: typeof body === "string" ? body : "",
      get aborted() {
        return signal?.aborted === true;
      },
    };
    this.requests.push(request);
    await Promise.resolve();
    signal?.throwIfAborted();
    if (!this.reachable) throw new TypeError("fetch failed");
    if (this.key !== null && request.headers.Authorization !== `Bearer ${this.key}`)
      return json({ error: { message: "bad key", type: "invalid_request_error" } }, 401);
    if (url.endsWith("/v1/nearfar/about")) return json(this.about, 200, this.headers);
    if (url.endsWith("/v1/models")) return json({ data: [{ id: "big", max_model_len: 4096 }] });
    if (url.endsWith("/tokenize"))
      return json({ tokens: this.promptIds, count: this.promptIds.length, max_model_len: 4096 });
    const key = request.headers["Idempotency-Key"] ?? "";
    const kept = this.#kept.get(key);
    if (isReceivedAgain(request) && (kept === undefined || !("later" in Object(kept.script))))
      return json({ error: { message: "not kept", code: "answer_not_kept" } }, 409);
    if (isReceivedAgain(request) && kept?.body !== request.body)
      return json({ error: { message: "another request", code: "idempotency_key_reused" } }, 409);
    const script =
      (isReceivedAgain(request) ? kept?.script : undefined) ??
      this.scripts[Math.min(this.chats.length, this.scripts.length) - 1] ??
      "refused";
    if (!isReceivedAgain(request)) this.#kept.set(key, { body: request.body, script: completed(script) });
    if (script === "refused") throw new TypeError("fetch failed");
    if (script === "silent")
      return new Promise((_, reject) =>
        signal?.addEventListener("abort", () => {
          reject(signal.reason as Error);
        }),
      );
    if ("status" in script)
      return json({ error: { message: `status ${script.status}`, ...script.error } }, script.status, script.headers);
    return new Response(stream(script, url.endsWith("/v1/completions"), signal ?? new AbortController().signal), {
      headers: { "Content-Type": "text/event-stream", ...this.headers },
    });
  };
}

const isReceivedAgain = ({ headers }: FarRequest): boolean => headers["Last-Event-ID"] === "0";

/** A script as the stream is when it is received again. */
function completed(script: FarScript): FarScript {
  if (typeof script === "string" || "status" in script || script.later === undefined) return script;
  const { texts = [], later } = script;
  return { ...script, texts: [...texts, ...later], then: "end" };
}

function json(value: object, status = 200, headers: Readonly<Record<string, string>> = {}): Response {
  return new Response(JSON.stringify(value), { status, headers });
}

function stream(
  {
    texts = [],
    deltas = texts.map((content) => ({ content })),
    then = "end",
    usage,
    finish = "stop",
    data,
    first,
    receipts,
  }: Exclude<FarScript, string | { status: number }>,
  plain: boolean,
  signal: AbortSignal,
): ReadableStream<Uint8Array> {
  const head = { id: "chatcmpl-far", object: "chat.completion.chunk", created: 1, model: "theirs" };
  const fieldsOf = (delta: { readonly content?: string }) => (plain ? { text: delta.content ?? "" } : { delta });
  const choice = (delta: object, end: string | null = null): object => ({
    ...head,
    choices: [{ index: 0, ...fieldsOf(delta), finish_reason: end }],
  });
  const counted = usage ?? { prompt_tokens: 20, completion_tokens: deltas.length };
  const values = [
    choice({ role: "assistant", content: "" }),
    ...deltas.map((delta) => choice(delta)),
    ...(then === "end" ? [choice({}, finish), { ...head, choices: [], usage: counted, receipts }] : []),
  ];
  const events = [...(data ?? values.map((value) => JSON.stringify(value))), ...(then === "end" ? ["[DONE]"] : [])].map(
    (value, index) => `${first === undefined ? "" : `id: ${first + index}\n`}data: ${value}\n\n`,
  );
  return new ReadableStream({
    start(controller) {
      signal.addEventListener("abort", () => {
        controller.error(signal.reason);
      });
    },
    async pull(controller) {
      // As over a network, an event takes a turn of the event loop.
      await new Promise((resolve) => setImmediate(resolve));
      if (signal.aborted) return;
      const event = events.shift();
      if (event !== undefined) controller.enqueue(new TextEncoder().encode(event));
      else if (then === "hang")
        await new Promise<void>((resolve) => {
          signal.addEventListener("abort", () => {
            resolve();
          });
        });
      else if (then === "break") controller.error(new TypeError("terminated"));
      else controller.close();
    },
  });
}

/** How the engine answers: tokens with their log-probabilities; then the end, an error, or nothing. */
export interface NearScript {
  readonly text: string;
  /** The log-probability of each byte's token; the last one applies to all later tokens. Default: -0.1. */
  readonly logprobs?: readonly number[];
  /** The prompt's log-probabilities, if they are requested. Default: none. */
  readonly promptLogprobs?: readonly number[];
  readonly then?: "end" | "hang" | Error;
}

export class ScriptedSource implements TokenSource {
  readonly requests: TokenRequest[] = [];
  running = 0;

  constructor(private readonly scripts: readonly NearScript[]) {}

  async *generateTokens(request: TokenRequest): AsyncGenerator<GeneratedToken, AnswerEnd, undefined> {
    const {
      text,
      logprobs = [-0.1],
      promptLogprobs,
      then = "end",
    } = this.scripts[Math.min(this.requests.length, this.scripts.length - 1)] ?? { text: "" };
    this.requests.push(request);
    this.running++;
    const ids = new TextEncoder().encode(text);
    const { signal, promptIds, maxTokens = Infinity } = request;
    let completionTokens = 0;
    try {
      if (promptLogprobs !== undefined)
        request.onPromptLogprobs?.(promptLogprobs.map((logprob) => ({ tokenId: 0, logprob, alternatives: [] })));
      for (const [index, tokenId] of ids.entries()) {
        await new Promise((resolve) => setImmediate(resolve));
        signal?.throwIfAborted();
        if (completionTokens >= maxTokens) break;
        completionTokens++;
        const logprob = logprobs[Math.min(index, logprobs.length - 1)] ?? 0;
        yield {
          tokenId,
          logprob: request.logprobs === undefined ? null : logprob,
          alternatives: request.logprobs === undefined ? [] : [{ tokenId, logprob }].slice(0, request.logprobs),
        };
      }
      if (then instanceof Error) throw then;
      if (then === "hang")
        await new Promise((_, reject) =>
          signal?.addEventListener("abort", () => {
            reject(signal.reason as Error);
          }),
        );
      return {
        finishReason: completionTokens >= maxTokens ? "length" : "stop",
        promptTokens: promptIds.length,
        cachedTokens: 0,
        completionTokens,
      };
    } finally {
      this.running--;
    }
  }
}

export function near(...scripts: readonly NearScript[]): {
  readonly engine: EngineApi;
  readonly source: ScriptedSource;
} {
  const source = new ScriptedSource(scripts);
  const engine = fakeEngine(modelOf(source, { name: "small" }));
  return { engine: { ...engine, info: { ...engine.info, tokenizerSha256: "abc" } }, source };
}

/** As `near`, with a transcriber that writes down what ``hear`` returns. */
export function withEars(hear: (sound: unknown) => string, ...scripts: readonly NearScript[]): ReturnType<typeof near> {
  const source = new ScriptedSource(scripts);
  const transcribe = ((sound: unknown) =>
    Promise.resolve({ task: "transcribe", language: "en", duration: 1, text: hear(sound), segments: [] })) as never;
  const engine = fakeEngine(modelOf(source, { name: "small", transcribe }));
  return { engine: { ...engine, info: { ...engine.info, sound: true } }, source };
}

/** An engine that says that it reads pictures, of which it takes nothing but the text beside them. */
export function withEyes(engine: EngineApi): EngineApi {
  const { completions } = engine.chat;
  const blind = (part: { readonly text?: unknown }): object =>
    typeof part.text === "string" ? part : { type: "text", text: "*" };
  const read = (message: ChatCompletionMessageParam): ChatCompletionMessageParam =>
    Array.isArray(message.content) ? { ...message, content: message.content.map(blind) as never } : message;
  const create = (params: { readonly messages: readonly ChatCompletionMessageParam[] }, options: object) =>
    completions.create({ ...params, messages: params.messages.map(read) } as never, options);
  return {
    ...engine,
    info: { ...engine.info, images: true },
    chat: { completions: { ...completions, create: create as typeof completions.create } },
  };
}

export class MemoryLedger implements Ledger {
  spent: Spent = { usd: 0, requests: 0 };

  today(): Spent {
    return this.spent;
  }

  add({ usd = 0, requests = 0 }: Partial<Spent>): Spent {
    this.spent = { usd: this.spent.usd + usd, requests: this.spent.requests + requests };
    return this.spent;
  }
}

/** An engine whose grammar constrains nothing. */
export function lawless(...scripts: readonly NearScript[]): EngineApi {
  const grammar = {
    constraint: () =>
      Promise.resolve({
        mask: () => null,
        accept: () => undefined,
        finished: false,
        complete: false,
        dispose: () => undefined,
      }),
  };
  return fakeEngine(modelOf(new ScriptedSource(scripts), { name: "small", grammar }));
}
