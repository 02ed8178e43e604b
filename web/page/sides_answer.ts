// One answer of the two sides. If only this device may answer, the page drops the oldest turns that do not fit its
// context. An answer of this device that is cut off because the context is full continues without the oldest turns.

import type { Engine } from "../src/index.js";
import type { ChatCompletionChunk } from "../src/api/types.js";
import type { Policy } from "../src/shared/decision/policy.js";
import { unlessAborted } from "../src/runtime/abort.js";
import { PrivateCheck } from "../src/shared/decision/privacy.js";
import type { JournalledHybrid, Journals } from "../src/journal/index.js";
import type { Kept } from "./kept_answer.js";
import { answerRoom, continues, fitMessages, promptTokens, remainingTokens, textOf } from "./fit_messages.js";
import type { AnswerEnd, ChatMessage, Piece, Settings, Side } from "./model.js";
import { labelsOf } from "./policy.js";
import { ThinkingTags } from "./thinking.js";

type NearEngine = Pick<Engine, "countTokens"> & { readonly info: Pick<Engine["info"], "context"> };
type Usage = NonNullable<ChatCompletionChunk["usage"]>;

export interface SidesAnswerOptions {
  readonly hybrid: Pick<JournalledHybrid, "chat"> & { readonly journals?: Pick<Journals, "resume"> };
  readonly policy: Policy;
  /** Resolves to this device's engine, or to null if its model did not load. */
  readonly near: Promise<NearEngine | null>;
  readonly messages: readonly ChatMessage[];
  readonly settings: Settings;
  /** The side that the user chose; null leaves the choice to the policy. */
  readonly pin: Side | null;
  readonly signal: AbortSignal;
  /** Its first request is kept for a later page. */
  readonly kept?: Kept | null;
}

/** Yields the pieces of an answer. Throws what the router throws, or the signal's reason. */
export async function* answerFromSides({
  hybrid,
  policy,
  near,
  messages: all,
  settings: { temperature, maxTokens: longest, seed },
  pin,
  signal,
  kept = null,
}: SidesAnswerOptions): AsyncGenerator<Piece, AnswerEnd, undefined> {
  const start = performance.now();
  let first: number | null = null;
  let usage: Usage | null = null;
  let count: number | null = 0;
  let finishReason = "stop";
  let side: Side | null = null;
  const begun = continues(all) ? textOf(all.at(-1)?.content ?? "") : "";
  let written = begun;
  let tags = new ThinkingTags(begun);
  let messages = all;
  let dropped = 0;
  // The engine if it is ready: only it can count the tokens of a start.
  const counting = await Promise.race([near, Promise.resolve(null)]);
  const maxTokens = counting === null ? longest : await remainingTokens(all, longest, promptTokens(counting));
  if (onlyNearAnswers(policy, all, pin)) {
    const engine = await unlessAborted(near, signal);
    if (engine !== null) {
      const room = answerRoom(engine.info.context, maxTokens);
      ({ messages, dropped } = await fitMessages(all, engine.info.context, room, promptTokens(engine)));
    }
    if (dropped > 0) yield { type: "dropped", turns: dropped };
  }
  for (let isRest = false; ; isRest = true) {
    const keptNow = isRest ? null : kept;
    const create = (): Promise<AsyncIterable<ChatCompletionChunk>> =>
      hybrid.chat.completions.create(
        {
          messages: messages.map(({ role, content, private: secret }) => ({
            role,
            content,
            labels: labelsOf(policy, secret),
          })),
          stream: true,
          stream_options: { include_usage: true },
          temperature,
          max_tokens: maxTokens === null ? null : maxTokens - (count ?? 0),
          seed,
          ...(continues(messages) ? { continue_final_message: true } : {}),
          pin: isRest ? "near" : pin,
        },
        { signal, ...(keptNow && { id: keptNow.id }) },
      );
    const resumed = keptNow?.resumes === true ? await hybrid.journals?.resume(keptNow.id, { signal }) : undefined;
    const stream = resumed?.api === "chat" ? resumed.answer : await create();
    for await (const { choices, route, usage: reported } of stream) {
      if (route !== undefined && (!isRest || route.side !== side)) {
        const startsOver = route.side !== side && route.switched_at === 0;
        side = route.side;
        yield { type: "route", route };
        if (startsOver) {
          tags = new ThinkingTags(begun);
          written = begun;
          // The page removes all text, but the other side continues the same start.
          if (begun !== "") yield { type: "text", text: begun };
        }
      }
      const [choice] = choices;
      const { content = "", reasoning_content: reasoning = "" } = choice?.delta ?? {};
      const text = tags.feed(reasoning, content) + (choice?.finish_reason === "stop" ? tags.end() : "");
      if (text !== "") {
        first ??= performance.now();
        written += text;
        yield { type: "text", text };
      }
      finishReason = choice?.finish_reason ?? finishReason;
      if (reported != null) {
        count = count === null ? null : count + reported.completion_tokens;
        usage ??= reported;
      }
    }
    signal.throwIfAborted();
    if (usage === null) count = null;
    if (finishReason !== "length" || (maxTokens !== null && (count === null || count >= maxTokens))) break;
    // Nothing but the context, or a limit of the server's own, has ended the answer.
    finishReason = side === "far" ? "server" : "context";
    const engine = side === "far" ? null : await near;
    if (engine === null) break;
    const fitted = await goOn(
      engine,
      continues(all) ? all.slice(0, -1) : all,
      written,
      maxTokens === null ? null : maxTokens - (count ?? 0),
    );
    if (fitted === null || fitted.dropped <= dropped) break;
    ({ messages, dropped } = fitted);
    yield { type: "dropped", turns: dropped };
  }
  const rest = tags.end();
  if (rest !== "") yield { type: "text", text: rest };
  const end = performance.now();
  return {
    finishReason,
    promptTokens: usage?.prompt_tokens ?? null,
    cachedTokens: usage?.prompt_tokens_details?.cached_tokens ?? 0,
    completionTokens: count,
    timeToFirstTokenMs: (first ?? end) - start,
    totalMs: end - start,
    tokensPerSecond: count === null || count < 2 || first === null ? null : ((count - 1) * 1000) / (end - first),
  };
}

/** Whether only this device may answer a conversation. */
function onlyNearAnswers(policy: Policy, messages: readonly ChatMessage[], pin: Side | null): boolean {
  if (policy.mode === "far-only") return false;
  // What is masked may leave.
  const check = PrivateCheck.of({ ...policy.private, masks: null });
  return (
    pin === "near" ||
    policy.mode === "near-only" ||
    messages.some((message) => message.private || check.matches(textOf(message.content)))
  );
}

/** The conversation and the answer so far, without the oldest turns; null if the last question alone leaves no room. */
async function goOn(
  engine: NearEngine,
  messages: readonly ChatMessage[],
  written: string,
  maxTokens: number | null,
): Promise<{ readonly messages: readonly ChatMessage[]; readonly dropped: number } | null> {
  const { context } = engine.info;
  const count = promptTokens(engine);
  const begun: ChatMessage = { role: "assistant", content: written, private: messages.at(-1)?.private ?? false };
  const fitted = await fitMessages([...messages, begun], context, answerRoom(context, maxTokens), count);
  return (await count(fitted.messages)) < context ? fitted : null;
}
