// Answers of all kinds that pages break off at random points, until one of them completes it: the answer is the one
// that a single page gives.

import { expect, test } from "vitest";

import { foldChat } from "../../src/api/chat_completions.js";
import { foldCompletion } from "../../src/api/completions.js";
import type { ChatCompletionChunk, CompletionChunk } from "../../src/api/types.js";
import { journalled } from "../../src/journal/index.js";
import type { ResumedAnswer } from "../../src/journal/index.js";
import { mulberry32 } from "../engine/mulberry32.js";
import { memoryDisk } from "../store/memory_folder.js";
import { pageEngine, pageStore, raise } from "./pages.js";

const ANSWERS = Number(process.env.NEARFAR_FAULTS ?? 6);
const TOOL = {
  type: "function",
  function: {
    name: "find",
    parameters: { type: "object", properties: { word: { type: "string" } }, required: ["word"] },
  },
} as const;
const SCHEMA = {
  type: "json_schema",
  json_schema: {
    name: "n",
    schema: {
      type: "object",
      properties: {
        name: { type: "string", maxLength: 30 },
        ages: { type: "array", items: { type: "integer" }, maxItems: 4 },
      },
      required: ["name", "ages"],
    },
  },
} as const;

/** Each is what a request has besides its messages. */
const CHATS: readonly object[] = [
  { temperature: 0 },
  { temperature: 0.8 },
  { temperature: 0.7, seed: 5, frequency_penalty: 0.5, presence_penalty: 0.2 },
  { temperature: 1, response_format: SCHEMA },
  { temperature: 1, tools: [TOOL], tool_choice: "required" },
  { temperature: 1, n: 3 },
  { temperature: 0.9, logprobs: true, top_logprobs: 3, return_token_ids: true },
  { temperature: 0.9, stop: ["a", "b", "cd"] },
  { temperature: 0.5, logit_bias: { 70: 2 }, n: 2, response_format: { type: "regex", pattern: "[a-f ]{20,60}" } },
  { temperature: 0.8, prompt_logprobs: 2, return_token_ids: true },
];

interface Asked {
  readonly api: "chat" | "completions" | "generate" | "tokens";
  readonly args: readonly [never, never?];
}

function asked(index: number, draw: () => number): Asked {
  const text = `question ${Math.floor(draw() * 1e6)}`;
  // The shortest call of the tool has 67 tokens.
  const max = 67 + Math.floor(draw() * 57);
  const kind = index % 14;
  if (kind === 10)
    return {
      api: "completions",
      args: [{ prompt: [text, "other"], n: 2, max_tokens: max, stream: true, stop: "q" } as never],
    };
  if (kind === 11)
    return {
      api: "completions",
      args: [{ prompt: text, echo: true, logprobs: 2, max_tokens: max, stream: true } as never],
    };
  // The answer outgrows the context again and again.
  if (kind === 12)
    return {
      api: "generate",
      args: [text as never, { maxTokens: 400, temperature: 0.8, whenFull: { keep: 6 } } as never],
    };
  if (kind === 13)
    return {
      api: "tokens",
      args: [
        {
          promptIds: [...new TextEncoder().encode(text)],
          maxTokens: max,
          sampling: { temperature: 1, logitBias: new Map([[65, 3]]) },
        } as never,
      ],
    };
  const params = { messages: [{ role: "user", content: text }], max_tokens: max, stream: true, ...CHATS[kind] };
  return { api: "chat", args: [params as never] };
}

type Kept = ReturnType<typeof page>["kept"];

function page(disk: ReturnType<typeof memoryDisk>, flushTokens: number) {
  const store = pageStore(disk);
  const { engine, runner } = pageEngine(undefined);
  return { store, runner, kept: journalled(engine, { store, flushTokens, flushMs: 1e6, onError: raise }) };
}

/** What a request with an id returns, item by item, and last how a generator ends. */
async function* begin(kept: Kept, { api, args: [first, second] }: Asked): AsyncGenerator {
  const id = { id: "a/b c" };
  if (api === "chat") yield* (await kept.chat.completions.create(first, id)) as unknown as AsyncIterable<unknown>;
  else if (api === "completions")
    yield* (await kept.completions.create(first, id)) as unknown as AsyncIterable<unknown>;
  else if (api === "generate") yield* kept.generate(first, { ...(second as object | undefined), ...id });
  else yield yield* kept.generateTokens(first, id);
}

async function* goOn({ answer }: ResumedAnswer): AsyncGenerator {
  const end = yield* answer as AsyncGenerator<unknown, unknown>;
  if (end !== undefined) yield end;
}

/** The parts of an answer that must be the same. */
async function essence(api: Asked["api"], items: readonly unknown[]): Promise<unknown> {
  const answer =
    api === "chat"
      ? await foldChat(items as ChatCompletionChunk[])
      : api === "completions"
        ? await foldCompletion(many(items as CompletionChunk[]))
        : items;
  const changing = new Set(["id", "created", "timings", "usage", "cachedTokens", "passes"]);
  return JSON.parse(JSON.stringify(answer, (key, value: unknown) => (changing.has(key) ? undefined : value)));
}

// oxlint-disable-next-line typescript/require-await
async function* many<T>(items: readonly T[]): AsyncGenerator<T> {
  yield* items;
}

test(`${ANSWERS} answers are the same after crashes at random points`, { timeout: 600_000 }, async () => {
  const draw = mulberry32(7);
  const below = (end: number): number => Math.floor(draw() * end);
  let crashes = 0;
  let resumed = 0;
  for (let index = 0; index < ANSWERS; index++) {
    const disk = memoryDisk();
    const request = asked(index, draw);
    const flushTokens = 1 + below(12);
    let items: unknown[] = [];
    for (let round = 0; ; round++) {
      const { kept, store } = page(disk, flushTokens);
      items = [];
      const stored = (await kept.journals.list()).length > 0;
      if (round > 0) resumed++;
      // A crash before anything was stored leaves nothing to go on with.
      const answer = stored && below(3) > 0 ? goOn(await kept.journals.resume("a/b c")) : begin(kept, request);
      const until = round < 3 && below(4) > 0 ? below(90) : Infinity;
      for (;;) {
        const next: IteratorResult<unknown, unknown> = await answer.next();
        if (next.done === true || items.length > until) break;
        items.push(next.value);
        // The page's writes happen between its tokens.
        if (below(3) === 0) await new Promise((resolve) => setImmediate(resolve));
      }
      if (items.length <= until) break;
      crashes++;
      // Some pages leave the loop, and write what they have not written yet; the others just end.
      if (below(4) === 0) await answer.return(undefined);
      else store.crash(disk, below(3) === 0);
    }
    expect(await page(disk, 1).kept.journals.list()).toMatchObject([{ id: "a/b c", api: request.api, done: true }]);
    // The journal drew the seed of a request without one.
    const alone = page(memoryDisk(), 1).kept;
    const seeded: Asked = { ...request, args: withSeed(request, disk) };
    const expected: unknown[] = [];
    for await (const item of begin(alone, seeded)) expected.push(item);
    expect(await essence(request.api, items), `answer ${index} (${request.api})`).toEqual(
      await essence(request.api, expected),
    );
  }
  // How many depends on what a busy machine has stored in time.
  expect(crashes).toBeGreaterThan(ANSWERS / 4);
  expect(resumed).toBe(crashes);
});

function withSeed({ api, args }: Asked, disk: ReturnType<typeof memoryDisk>): Asked["args"] {
  const path = [...disk.files.keys()].find((name) => name.endsWith("/request")) ?? "";
  const { seed } = JSON.parse(new TextDecoder().decode(disk.files.get(path))) as { seed: number };
  const [first, second] = args as readonly [object, object?];
  if (api === "generate") return [first, { ...second, seed }] as never;
  if (api === "tokens") return [{ ...first, sampling: { ...(first as { sampling: object }).sampling, seed } }] as never;
  return [{ ...first, seed }] as never;
}
