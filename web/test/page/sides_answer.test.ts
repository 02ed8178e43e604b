import { describe, expect, test } from "vitest";

import type { AnswerEnd, ChatMessage, Piece, Side } from "../../page/model.js";
import { withLock } from "../../page/policy.js";
import type { SidesAnswerOptions } from "../../page/sides_answer.js";
import { answerFromSides } from "../../page/sides_answer.js";
import { splitThinking } from "../../page/thinking.js";
import type { ChatCompletionChunk } from "../../src/api/types.js";
import { Unavailable } from "../../src/index.js";
import type { HybridParamsStreaming } from "../../src/router/request.js";
import { setUp } from "../router/hybrid_set_up.js";

interface Answer {
  readonly side: Side;
  readonly deltas: readonly { readonly content?: string; readonly reasoning_content?: string }[];
  readonly finish: "stop" | "length";
  readonly tokens: number;
  readonly switchedAt?: number;
}

const CONTEXT = 100;
const CHAT: readonly ChatMessage[] = [
  message("user", "one"),
  message("assistant", "1"),
  message("user", "two"),
  message("assistant", "2"),
  message("user", "three"),
];

function message(role: ChatMessage["role"], content: string, secret = false): ChatMessage {
  return { role, content, private: secret };
}

/**
 * Scripted answers from two sides. This device's model reads 100 tokens: 15 for each message, and one for each
 * character.
 */
async function answer(
  answers: readonly Answer[],
  { messages = CHAT, maxTokens = null as number | null, pin = null as Side | null, policy = {} } = {},
) {
  const requests: HybridParamsStreaming[] = [];
  // oxlint-disable-next-line typescript/require-await
  const create = async (params: HybridParamsStreaming): Promise<AsyncIterable<ChatCompletionChunk>> => {
    const script = answers[requests.length];
    requests.push(params);
    if (script === undefined) throw new Error("a request that the test does not expect");
    return chunks(script);
  };
  const pieces: Piece[] = [];
  const running = answerFromSides({
    hybrid: { chat: { completions: { create } } } as unknown as SidesAnswerOptions["hybrid"],
    policy: withLock({ version: 1, mode: "prefer-near", ...policy }),
    near: Promise.resolve({
      info: { context: CONTEXT },
      countTokens: (some) =>
        Promise.resolve(
          (some as readonly { content: string }[]).reduce((sum, { content }) => sum + 15 + content.length, 0),
        ),
    }),
    messages,
    settings: { temperature: 0, maxTokens, seed: null },
    pin,
    signal: new AbortController().signal,
  });
  let end: AnswerEnd;
  for (;;) {
    const { done, value } = await running.next();
    if (done === true) {
      end = value;
      break;
    }
    pieces.push(value);
  }
  return {
    requests,
    end,
    text: pieces.map((piece) => (piece.type === "text" ? piece.text : "")).join(""),
    dropped: pieces.flatMap((piece) => (piece.type === "dropped" ? [piece.turns] : [])),
    routes: pieces.filter(({ type }) => type === "route").length,
  };
}

// oxlint-disable-next-line typescript/require-await
async function* chunks({ side, deltas, finish, tokens, switchedAt }: Answer): AsyncGenerator<ChatCompletionChunk> {
  const chunk = (delta: object, end: string | null, route?: object): object => ({
    choices: [{ index: 0, delta, finish_reason: end }],
    ...(route === undefined ? {} : { route }),
  });
  yield chunk({}, null, { side, reason: "prefer", switched_at: switchedAt ?? null }) as ChatCompletionChunk;
  for (const delta of deltas) yield chunk(delta, null) as ChatCompletionChunk;
  yield chunk({}, finish) as ChatCompletionChunk;
  yield { choices: [], usage: { prompt_tokens: 90, completion_tokens: tokens } } as unknown as ChatCompletionChunk;
}

const contents = (request: HybridParamsStreaming | undefined) => request?.messages.map(({ content }) => content) ?? [];

describe("an answer of this device whose context becomes full", () => {
  const cut: Answer = { side: "near", deltas: [{ content: "a b" }], finish: "length", tokens: 2 };
  const rest: Answer = { side: "near", deltas: [{ content: " c" }], finish: "stop", tokens: 1 };

  test("continues without the oldest turns", async () => {
    const { requests, text, dropped, end, routes } = await answer([cut, rest]);
    expect(text).toBe("a b c");
    expect(requests[1]).toMatchObject({ continue_final_message: true, pin: "near" });
    expect(contents(requests[1])).toEqual(["two", "2", "three", "a b"]);
    expect(dropped).toEqual([1]);
    expect(end).toMatchObject({ finishReason: "stop", completionTokens: 3 });
    // The page pins near for the rest, which is not shown as the user's choice.
    expect(routes).toBe(1);
  });

  test("ends with the reason context if only the last question remains", async () => {
    const { requests, end } = await answer([cut], { messages: [message("user", "three")] });
    expect(requests).toHaveLength(1);
    expect(end.finishReason).toBe("context");
  });

  test("ends after all older turns are dropped", async () => {
    const { end, dropped } = await answer([cut, { ...cut, deltas: [{ content: "x".repeat(20) }] }, cut]);
    expect(dropped).toEqual([1, 2]);
    expect(end.finishReason).toBe("context");
  });

  test("does not continue past the longest answer", async () => {
    const { requests, end } = await answer([cut], { maxTokens: 2 });
    expect(requests).toHaveLength(1);
    expect(end.finishReason).toBe("length");
  });

  test("requests only the remaining tokens", async () => {
    const { requests } = await answer([cut, rest], { maxTokens: 9 });
    expect(requests.map(({ max_tokens: tokens }) => tokens)).toEqual([9, 7]);
  });
});

test.each([
  ["is pinned", CHAT, "near", {}],
  ["is locked", [...CHAT.slice(0, -1), message("user", "three", true)], null, {}],
  ["matches a pattern", [...CHAT.slice(0, -1), message("user", "quokka")], null, { private: { patterns: ["quokka"] } }],
  ["may not leave", CHAT, null, { mode: "near-only" }],
] as const)("a message that %s leaves room for its answer in advance", async (_, messages, pin, policy) => {
  const done: Answer = { side: "near", deltas: [{ content: "ok" }], finish: "stop", tokens: 1 };
  const { requests, dropped } = await answer([done], { messages, pin, policy });
  expect(dropped).toEqual([1]);
  expect(contents(requests[0]).slice(0, 2)).toEqual(["two", "2"]);
});

test("an answer that the server cuts off has the reason server", async () => {
  const { end } = await answer([{ side: "far", deltas: [{ content: "a" }], finish: "length", tokens: 1 }]);
  expect(end.finishReason).toBe("server");
});

test("a server's reasoning becomes the answer's thinking block", async () => {
  const deltas = [{ reasoning_content: "Hm" }, { reasoning_content: "." }, { content: "Two" }, { content: "." }];
  const { text } = await answer([{ side: "far", deltas, finish: "stop", tokens: 4 }]);
  expect(splitThinking(text)).toEqual({ thinking: "Hm.", ended: true, answer: "Two." });
});

test("reasoning without an answer is closed at the end", async () => {
  const { text } = await answer([{ side: "far", deltas: [{ reasoning_content: "Hm" }], finish: "length", tokens: 1 }]);
  expect(splitThinking(text)).toEqual({ thinking: "Hm", ended: true, answer: "" });
});

test("an answer that continues in its reasoning has one thinking block", async () => {
  const { text, requests } = await answer([
    { side: "near", deltas: [{ reasoning_content: "Hm" }], finish: "length", tokens: 1 },
    { side: "near", deltas: [{ reasoning_content: "." }, { content: "Two." }], finish: "stop", tokens: 2 },
  ]);
  expect(contents(requests[1]).at(-1)).toBe("<think>Hm");
  expect(splitThinking(text)).toEqual({ thinking: "Hm.", ended: true, answer: "Two." });
});

test("a message that only this device may answer is refused in plain words without its model", async () => {
  const { problemOf } = await import("../../page/problem_words.js");
  const { nf } = await setUp({ near: null, policy: { private: { patterns: ["quokka"] } } });
  const refused = await nf.chat.completions
    .create({ messages: [{ role: "user", content: "quokka" }] })
    .catch((error: unknown) => error);
  expect(refused).toBeInstanceOf(Unavailable);
  expect(problemOf(refused).what).toContain("This message was not sent: it is private");
});

describe("an answer that was interrupted", () => {
  const begun = [...CHAT, message("assistant", "<think>a")];
  const rest: Answer = {
    side: "far",
    deltas: [{ reasoning_content: "b" }, { content: "c" }],
    finish: "stop",
    tokens: 2,
  };

  test("continues its text, also inside its reasoning, at the side that the policy chooses", async () => {
    const { requests, text } = await answer([rest], { messages: begun });
    expect(requests[0]).toMatchObject({ continue_final_message: true, pin: null });
    expect(contents(requests[0]).at(-1)).toBe("<think>a");
    expect(`<think>a${text}`).toBe("<think>ab</think>\n\nc");
  });

  test("is written once if the context of this device becomes full again", async () => {
    const cut: Answer = { side: "near", deltas: [{ content: " d" }], finish: "length", tokens: 1 };
    const messages = [...CHAT, message("assistant", "x")];
    const { requests } = await answer([cut, { ...cut, finish: "stop" }], { messages });
    expect(contents(requests[1])).toEqual(["two", "2", "three", "x d"]);
  });

  test("keeps its start if another side writes the rest again", async () => {
    const again: Answer = { ...rest, switchedAt: 0, deltas: [{ content: "c" }] };
    expect((await answer([again], { messages: [...CHAT, message("assistant", "x")] })).text).toBe("xc");
  });

  test("has the rest of its longest length", async () => {
    const { requests } = await answer([rest], { messages: [...CHAT, message("assistant", "x")], maxTokens: 20 });
    // 15 tokens of the message, and one of its text.
    expect(requests[0]?.max_tokens).toBe(4);
  });
});
