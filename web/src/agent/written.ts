// What a model writes in one step, from the chunks of its answer.

import { isWithdrawal } from "../api/chat_source.js";
import type { ChatCompletionChunk, ChatCompletionMessageToolCall, Route } from "../api/types.js";
import { unlessAborted } from "../runtime/abort.js";
import { answerBegun } from "../shared/agent/loop.js";
import { ANSWER } from "../shared/agent/tools.js";

type Piece =
  | { readonly type: "text"; readonly tool: string | null; readonly text: string }
  | { readonly type: "reasoning"; readonly text: string }
  | { readonly type: "withdrawn" };

export class Written {
  text = "";
  readonly calls: ChatCompletionMessageToolCall[] = [];
  finish_reason = "stop";
  /** Null if a server does not count them. */
  tokens: number | null = null;
  route: Route | null = null;

  /** The pieces that a chunk adds. */
  *add(chunk: ChatCompletionChunk): Generator<Piece, void, undefined> {
    if (isWithdrawal(chunk) && (this.text !== "" || this.calls.length > 0)) {
      this.text = "";
      this.calls.length = 0;
      yield { type: "withdrawn" };
    }
    const { route, usage } = chunk;
    this.route = route ?? this.route;
    this.tokens = usage?.completion_tokens ?? this.tokens;
    const [choice] = chunk.choices;
    if (choice === undefined) return;
    const { content, reasoning_content: thought, tool_calls: deltas } = choice.delta;
    this.finish_reason = choice.finish_reason ?? this.finish_reason;
    if (thought) yield { type: "reasoning", text: thought };
    if (content) {
      this.text += content;
      yield { type: "text", tool: null, text: content };
    }
    for (const { index, id = "", function: written = {} } of deltas ?? []) {
      const call = (this.calls[index] ??= { id, type: "function", function: { name: "", arguments: "" } });
      const { function: made } = call;
      made.name = written.name ?? made.name;
      const before = made.arguments;
      made.arguments += written.arguments ?? "";
      const isAnswer = made.name === ANSWER;
      const text = isAnswer ? answerBegun(made.arguments).slice(answerBegun(before).length) : written.arguments;
      if (text) yield { type: "text", tool: isAnswer ? null : made.name, text };
    }
  }
}

/** The chunks until the signal aborts, also of an engine that does not listen to it. Throws the signal's reason. */
export async function* untilAborted<T>(
  chunks: AsyncIterable<T>,
  signal: AbortSignal,
): AsyncGenerator<T, void, undefined> {
  const iterator = chunks[Symbol.asyncIterator]();
  let ended = false;
  try {
    for (;;) {
      const next = await unlessAborted(iterator.next(), signal);
      ended = next.done === true;
      if (next.done === true) return;
      yield next.value;
    }
  } finally {
    // It may never return.
    if (!ended) void iterator.return?.().then(undefined, () => undefined);
  }
}
