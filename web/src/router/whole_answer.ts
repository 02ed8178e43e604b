// An answer that comes at once, such as vectors, a ranking or decisions, over two sides: by the rules of chats, and a
// side's complete answer counts as one token.

import type { ChatCompletionChunk, Route } from "../api/types.js";
import { Unavailable } from "../errors.js";
import type { Side } from "../shared/decision/decision.js";
import type { Policy } from "../shared/decision/policy.js";
import type { Rules } from "../shared/router/answer_machine.js";
import type { Routing } from "./routing.js";
import type { Side as AnsweringSide } from "./sides/sides.js";

export interface Counted {
  readonly usage?: { readonly prompt_tokens?: number };
}

/** Asks one side. */
export type Ask<A extends Counted> = (side: Side, signal: AbortSignal) => Promise<A>;

/** ``choice`` has a side. Throws what the sides throw, Unavailable, or the signal's reason. */
export async function wholeAnswer<A extends Counted>(
  routing: Routing,
  choice: Parameters<Routing["run"]>[0],
  ask: Ask<A>,
  rules: Rules,
  signal: AbortSignal,
): Promise<{ readonly answer: A; readonly route: Route }> {
  const answers: Partial<Record<Side, A>> = {};
  const answering = (side: Side): AnsweringSide => ({
    answer: async function* ({ signal: until }) {
      const answer = (answers[side] = await ask(side, until));
      yield chunkOf(answer);
    },
  });
  const items = routing.run(
    choice,
    {
      params: { messages: [] },
      rules,
      sides: { near: answering("near"), far: answering("far") },
      warm: () => Promise.resolve(),
      watch: null,
      logprobs: { near: null, far: null },
      shownAlternatives: null,
      signal,
    },
    () => false,
  );
  let route: Route | undefined;
  for await (const item of items) if (item.type === "chunk") route = item.chunk.route ?? route;
  const answer = route && answers[route.side];
  if (route === undefined || answer === undefined) throw new Unavailable("No side has answered", { retryable: true });
  return { answer, route };
}

/** The time for an answer grows with its ``parts``, such as the texts of a request. */
export function wholeAnswerRules(
  { timeouts, retries, fallback }: Pick<Policy, "timeouts" | "retries" | "fallback">,
  parts: number,
  isPrivate: boolean,
): Rules {
  const more = timeouts.between_tokens_ms * Math.max(parts - 1, 0);
  return {
    ...timeouts,
    ...fallback,
    near_first_token_ms: timeouts.near_first_token_ms + more,
    far_first_token_ms: timeouts.far_first_token_ms + more,
    hedge_after_ms: null,
    then: "never",
    warm: "never",
    retries,
    private: isPrivate,
    resumes: [],
    json: null,
  };
}

function chunkOf({ usage }: Counted): ChatCompletionChunk {
  const tokens = usage?.prompt_tokens ?? 0;
  return {
    id: "",
    object: "chat.completion.chunk",
    created: 0,
    model: "",
    choices: [{ index: 0, delta: { content: " " }, logprobs: null, finish_reason: "stop" }],
    usage: { prompt_tokens: tokens, completion_tokens: 0, total_tokens: tokens },
  };
}
