// An engine whose answers are written down, and an agent over it.

import type { ChatSource } from "../../src/api/chat_source.js";
import type { ChatCompletionChunk } from "../../src/api/types.js";
import type { AgentEvent, AgentOptions } from "../../src/agent/index.js";
import { Agent } from "../../src/agent/index.js";
import { FakeClock } from "../router/fakes.js";

export type Call = readonly [name: string, values: unknown];
/** Calls, a text, what else is in the answer, or a function of the request that waits. */
export type Script =
  | readonly Call[]
  | string
  | { readonly text: string; readonly finish: "length" }
  | ((signal: AbortSignal) => Promise<never>);

export interface Asked {
  readonly messages: readonly {
    readonly role: string;
    readonly content: string | null;
    readonly labels?: readonly string[];
  }[];
  readonly tools: readonly { readonly function: { readonly name: string } }[];
  readonly tool_choice: unknown;
  readonly max_tokens: number;
  readonly [key: string]: unknown;
}

export class ScriptedEngine implements ChatSource {
  readonly info = { model: "scripted" };
  readonly asked: Asked[] = [];
  readonly chat: ChatSource["chat"];

  constructor(private readonly scripts: readonly Script[]) {
    const create = (params: unknown, options?: { readonly signal?: AbortSignal }) => this.#answer(params, options);
    this.chat = { completions: { create } } as unknown as ChatSource["chat"];
  }

  async #answer(
    params: unknown,
    options: { readonly signal?: AbortSignal } = {},
  ): Promise<AsyncIterable<ChatCompletionChunk>> {
    const step = this.asked.length;
    // As it is now: the agent goes on with its list.
    this.asked.push(structuredClone(params) as Asked);
    const script = this.scripts[Math.min(step, this.scripts.length - 1)] ?? "";
    if (typeof script === "function") return script(options.signal ?? new AbortController().signal);
    const calls = Array.isArray(script) ? (script as readonly Call[]) : [];
    const text = typeof script === "string" ? script : "text" in script ? script.text : null;
    const finish = typeof script === "object" && "finish" in script ? script.finish : "stop";
    const written = calls.map(([name, values], index) => ({
      id: `call_${step}_${index}`,
      type: "function" as const,
      function: { name, arguments: typeof values === "string" ? values : JSON.stringify(values) },
    }));
    // In the pieces of a stream: a text in two, the arguments of a call in two, then the end and the usage.
    const halves = (whole: string) => [whole.slice(0, 3), whole.slice(3)];
    const deltas: object[] = text === null ? [] : halves(text).map((content) => ({ content }));
    written.forEach(({ id, type, function: { name, arguments: given } }, index) => {
      const [first, rest] = halves(given);
      deltas.push({ tool_calls: [{ index, id, type, function: { name, arguments: first } }] });
      deltas.push({ tool_calls: [{ index, function: { arguments: rest } }] });
    });
    const usage = { prompt_tokens: 10, completion_tokens: 5, total_tokens: 15 };
    const chunks = [
      ...deltas.map((delta) => ({ choices: [{ index: 0, delta, logprobs: null, finish_reason: null }] })),
      { choices: [{ index: 0, delta: {}, logprobs: null, finish_reason: finish }] },
      { choices: [], usage },
    ];
    return Promise.resolve(streamOf(chunks as unknown as readonly ChatCompletionChunk[]));
  }
}

async function* streamOf<T>(items: readonly T[]): AsyncGenerator<T, void, undefined> {
  for (const item of items) yield await Promise.resolve(item);
}

export function agentOf(scripts: readonly Script[], options: Omit<AgentOptions, "engine">) {
  const engine = new ScriptedEngine(scripts);
  const clock = new FakeClock();
  return { engine, clock, agent: new Agent({ engine, clock, ...options }) };
}

export async function eventsOf(events: AsyncIterable<AgentEvent>): Promise<readonly AgentEvent[]> {
  const all: AgentEvent[] = [];
  for await (const event of events) all.push(event);
  return all;
}
