// The far side by itself: what each kind of server gets, and how its responses are read.

import type { Server, ServerResponse } from "node:http";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";

import { expect, test, vi } from "vitest";

import type { Dialect } from "../../src/router/sides/dialect.js";
import { FarSide } from "../../src/router/sides/far.js";
import type { PlainParams } from "../../src/router/sides/sides.js";
import { events } from "../../src/router/sides/far_http.js";
import type { FarScript } from "./fakes.js";
import { FAR, FakeClock, FakeFar } from "./fakes.js";

const MESSAGES = [{ role: "user" as const, content: "hello" }];
const SIGNAL = new AbortController().signal;

async function exchange(dialect: Dialect, params: Partial<PlainParams>, scripts?: readonly FarScript[]) {
  const far = new FakeFar(scripts);
  const side = new FarSide({ baseURL: FAR, dialect }, far.fetch, new FakeClock());
  const chunks = [];
  for await (const chunk of side.answer({
    params: { messages: MESSAGES, ...params },
    from: null,
    logprobs: null,
    signal: SIGNAL,
  }))
    chunks.push(chunk);
  return { body: far.bodies[0], chunks, requests: far.requests };
}

const PLAIN = { model: "big", messages: MESSAGES, stream: true, stream_options: { include_usage: true } };

test.each<[Dialect, Partial<PlainParams>, object]>([
  [
    "nearfar",
    { top_k: 5, priority: 2, max_completion_tokens: 9, store: false },
    { top_k: 5, priority: 2, max_completion_tokens: 9 },
  ],
  ["openai", { temperature: 0, priority: 2, max_completion_tokens: 9 }, { temperature: 0, max_tokens: 9 }],
  [
    "vllm",
    { top_k: 5, response_format: { type: "regex", pattern: "a+" } },
    { top_k: 5, structured_outputs: { regex: "a+" } },
  ],
  [
    "sglang",
    { top_k: 5, max_completion_tokens: 9, response_format: { type: "regex", pattern: "a+" } },
    { top_k: 5, max_tokens: 9, regex: "a+" },
  ],
  [
    "sglang",
    { response_format: { type: "grammar", grammar: 'root ::= "a"' }, include_stop_str_in_output: true },
    { ebnf: 'root ::= "a"', no_stop_trim: true },
  ],
  ["sglang", { continue_final_message: true, return_token_ids: false }, { continue_final_message: true, return_token_ids: false }],
  ["vllm", { continue_final_message: true }, { continue_final_message: true, add_generation_prompt: false }],
])("a server of dialect %s gets %j under its own names", async (dialect, params, rest) => {
  const { body, requests } = await exchange(dialect, params);
  expect(body).toEqual({ ...PLAIN, ...rest });
  expect(requests[0]?.url).toBe(
    dialect === "nearfar" ? "http://far.test/v1/nearfar/about" : "http://far.test/v1/models",
  );
});

test.each([{ prompt_logprobs: 0 }, { return_token_ids: true }, { thinking_token_budget: 0 }])(
  "SGLang lacks %j, which it would drop silently",
  async (params) => {
    const [param = ""] = Object.keys(params);
    await expect(exchange("sglang", params)).rejects.toMatchObject({ details: { param } });
  },
);

test("an answer that the server breaks off is an error", async () => {
  const data = [chunk("a"), JSON.stringify({ choices: [{ index: 0, delta: {}, finish_reason: "abort" }] })];
  await expect(exchange("sglang", {}, [{ data }])).rejects.toMatchObject({ code: "unavailable" });
});

const chunk = (content: string): string =>
  JSON.stringify({ choices: [{ index: 0, delta: { content }, finish_reason: null }] });
const textOf = (
  chunks: readonly { readonly choices: readonly { readonly delta: { readonly content?: string | null } }[] }[],
) => chunks.map(({ choices }) => choices[0]?.delta.content ?? "").join("");

test("after a broken connection, our server sends the rest of the same answer", async () => {
  const { chunks, requests } = await exchange("nearfar", {}, [
    { data: ["a", "b"].map(chunk), first: 1, then: "break" },
    { data: ["c"].map(chunk), first: 3, then: "break" },
    { data: ["d"].map(chunk), first: 4 },
  ]);
  expect(textOf(chunks)).toBe("abcd");
  const asked = requests.slice(1);
  expect(asked.map(({ headers }) => headers["Last-Event-ID"])).toEqual([undefined, "2", "3"]);
  expect(new Set(asked.map(({ headers, body }) => `${String(headers["Idempotency-Key"])} ${body}`)).size).toBe(1);
});

test.each<[string, FarScript[], Dialect]>([
  [
    "nothing more arrives",
    [
      { data: [chunk("a")], first: 1, then: "break" },
      { data: [], then: "break" },
    ],
    "nearfar",
  ],
  ["the answer is not kept", [{ data: [chunk("a")], first: 1, then: "break" }, { status: 409 }], "nearfar"],
  ["the server is gone", [{ data: [chunk("a")], first: 1, then: "break" }, "refused"], "nearfar"],
  ["events have no number", [{ data: [chunk("a")], then: "break" }], "nearfar"],
  [
    "an event comes again",
    [
      { data: [chunk("a")], first: 1, then: "break" },
      { data: [chunk("a")], first: 1 },
    ],
    "nearfar",
  ],
  [
    "an event is missing",
    [
      { data: [chunk("a")], first: 1, then: "break" },
      { data: [chunk("c")], first: 3 },
    ],
    "nearfar",
  ],
  ["numbers end", [{ data: [chunk("a")], first: 1, then: "break" }, { data: [chunk("b")] }], "nearfar"],
])("a connection that broke is an error if %s", async (_, scripts, dialect) => {
  await expect(exchange(dialect, {}, scripts)).rejects.toMatchObject({ code: "unavailable" });
});

test("an answer of another's server is not continued, whatever numbers its events have", async () => {
  const far = new FakeFar([
    { data: [chunk("a")], first: 1, then: "break" },
    { data: [chunk("a")], first: 2 },
  ]);
  const side = new FarSide({ baseURL: FAR, dialect: "openai" }, far.fetch, new FakeClock());
  const chunks = side.answer({ params: { messages: MESSAGES }, from: null, logprobs: null, signal: SIGNAL });
  expect((await chunks.next()).value).toMatchObject({ choices: [{ delta: { content: "a" } }] });
  await expect(chunks.next()).rejects.toMatchObject({ code: "unavailable" });
  expect([far.chats.length, far.requests.filter(({ url }) => url.endsWith("/cancel"))]).toEqual([1, []]);
});

test("an answer that is aborted before its first event ends at our server too", async () => {
  const far = new FakeFar([{ data: [], then: "hang" }]);
  const side = new FarSide({ baseURL: FAR }, far.fetch, new FakeClock());
  const controller = new AbortController();
  const { signal } = controller;
  const first = side.answer({ params: { messages: MESSAGES }, from: null, logprobs: null, signal }).next();
  await vi.waitFor(() => {
    expect(far.chats).toHaveLength(1);
  });
  // The status has arrived: our server sends it with the first comment of a long silence.
  await new Promise((resolve) => setImmediate(resolve));
  controller.abort();
  await expect(first).rejects.toThrow();
  expect(far.requests.at(-1)?.url).toBe("http://far.test/v1/cancel");
});

test("an answer that is left ends at our server too", async () => {
  const far = new FakeFar([{ data: ["a", "b"].map(chunk), first: 1, then: "hang" }]);
  const side = new FarSide({ baseURL: FAR }, far.fetch, new FakeClock());
  for await (const _ of side.answer({ params: { messages: MESSAGES }, from: null, logprobs: null, signal: SIGNAL }))
    break;
  const [, chat, cancel] = far.requests;
  expect(cancel?.url).toBe("http://far.test/v1/cancel");
  expect(cancel?.headers["Idempotency-Key"]).toBe(chat?.headers["Idempotency-Key"]);
});

test("a redirect is not followed: nothing reaches its target", async () => {
  const reached: string[] = [];
  const listening = async (answer: (url: string, response: ServerResponse) => void): Promise<Server> => {
    const server = createServer((request, response) => {
      answer(request.url ?? "", response);
    });
    await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
    return server;
  };
  const urlOf = (server: Server): string => `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  const target = await listening((url, response) => {
    reached.push(url);
    response.end();
  });
  const redirecting = await listening((url, response) => {
    if (url.endsWith("/about")) response.end(JSON.stringify({ api_version: 1, models: [{ id: "big" }] }));
    else response.writeHead(307, { Location: `${urlOf(target)}${url}` }).end();
  });
  try {
    const side = new FarSide({ baseURL: urlOf(redirecting) }, globalThis.fetch, new FakeClock());
    const asking = side.answer({ params: { messages: MESSAGES }, from: null, logprobs: null, signal: SIGNAL }).next();
    await expect(asking).rejects.toMatchObject({
      code: "unavailable",
      message: expect.stringContaining("answers with a redirect, which is not followed") as string,
      details: { retryable: false },
    });
    expect(reached).toEqual([]);
  } finally {
    target.close();
    redirecting.close();
  }
});

test("an opaque redirect response is reported as a redirect", async () => {
  // A page's fetch gives an opaque response, whose status is 0.
  const opaque = { ok: false, status: 0, type: "opaqueredirect", headers: new Headers() } as Response;
  const side = new FarSide({ baseURL: FAR }, () => Promise.resolve(opaque), new FakeClock());
  await expect(side.reach(SIGNAL)).rejects.toThrow("answers with a redirect");
});

test("an extension that the server lacks is an error before the request is sent", async () => {
  await expect(exchange("openai", { top_k: 5 })).rejects.toMatchObject({ code: "request_error", param: "top_k" });
});

test("other servers' forms become OpenAI's form", async () => {
  const { chunks } = await exchange("openai", {}, [
    {
      deltas: [{ role: "model", content: "a", tool_calls: null }],
      finish: "eos_token",
      usage: { prompt_tokens: 3, completion_tokens: 1, prompt_tokens_details: { cached_tokens: 2 } },
    },
  ]);
  expect(chunks.map(({ choices }) => choices[0]?.delta)).toEqual([
    { role: "assistant", content: "" },
    { role: "assistant", content: "a" },
    {},
    undefined,
  ]);
  expect(chunks[2]?.choices[0]?.finish_reason).toBe("stop");
  expect(chunks[3]?.usage).toEqual({
    prompt_tokens: 3,
    completion_tokens: 1,
    total_tokens: 4,
    prompt_tokens_details: { cached_tokens: 2 },
  });
});

test("the server's last report of its queue is valid for 30 s", async () => {
  const far = new FakeFar();
  const clock = new FakeClock();
  const side = new FarSide({ baseURL: FAR }, far.fetch, clock);
  const ask = async (queue?: string): Promise<number> => {
    far.headers = queue === undefined ? {} : { "X-Nearfar-Queue-Ms": queue };
    for await (const chunk of side.answer({
      params: { messages: MESSAGES },
      from: null,
      logprobs: null,
      signal: SIGNAL,
    }))
      expect(chunk.model).toBe("big");
    return side.queueSeconds;
  };
  far.headers = { "X-Nearfar-Queue-Ms": "250" };
  await side.reach(SIGNAL);
  expect(side.queueSeconds).toBe(0.25);
  expect([await ask("1500"), await ask(), await ask("soon"), await ask("-1"), await ask("9".repeat(400))]).toEqual([
    1.5, 1.5, 1.5, 1.5, 1.5,
  ]);
  await clock.pass(30_000);
  expect(side.queueSeconds).toBe(1.5);
  await clock.pass(1);
  expect(side.queueSeconds).toBe(0);
  expect([await ask("40"), await ask("0")]).toEqual([0.04, 0]);
});

test.each([
  ['{"message":"too many","type":"rate_limit_error"}', 429],
  ['{"message":"shutting down","type":"server_error","code":"unavailable"}', 503],
])("an error in the middle of a stream becomes one of ours: %s", async (error, status) => {
  const far = new FakeFar();
  const fetch = (url: string, init: RequestInit): Promise<Response> =>
    url.endsWith("completions")
      ? Promise.resolve(new Response(`: keep-alive\n\ndata: {"error":${error}}\n\n`))
      : far.fetch(url, init);
  const side = new FarSide({ baseURL: FAR }, fetch, new FakeClock());
  const chunks = side.answer({ params: { messages: MESSAGES }, from: null, logprobs: null, signal: SIGNAL });
  await expect(chunks.next()).rejects.toMatchObject({ code: "unavailable", details: { status, retryable: true } });
});

test("events are complete however their bytes are cut, and an event cut off by the end is left out", async () => {
  const bytes = new TextEncoder().encode(
    ": hi\r\nid: 7\r\ndata: ä\u2028b\r\n\r\n: keep-alive\n\nevent: x\ndata:1\ndata: 2\n\nid: 9\ndata: cut",
  );
  for (const size of [1, 2, 7, bytes.length]) {
    const parts = Array.from({ length: Math.ceil(bytes.length / size) }, (_, index) =>
      bytes.slice(index * size, (index + 1) * size),
    );
    const body = new ReadableStream<Uint8Array>({
      pull(controller) {
        const part = parts.shift();
        if (part === undefined) controller.close();
        else controller.enqueue(part);
      },
    });
    const found = [];
    for await (const event of events(body)) found.push(event);
    expect(found).toEqual([
      { id: 7, data: "ä\u2028b" },
      { id: null, data: "1\n2" },
    ]);
  }
});
