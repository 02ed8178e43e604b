// An answer of two sides that an earlier page has begun, and how a later one goes on with it: near exactly, by its
// tokens, or either side after the text.

import type { ChatCompletionChunk, Route } from "../api/types.js";
import type { AnswerEnd, BegunAnswer, GeneratedToken } from "../engine/request.js";
import type { Begun } from "../shared/router/answer_machine.js";
import type { AnswerItem } from "./answer/running_answer.js";
import type { SituatedChoice } from "./routing.js";
import type { NearSide } from "./sides/near.js";

/** The model whose token ids were recorded. */
export type TokenModel = Readonly<Record<"model" | "quantization", string>> & {
  readonly tokenizerSha256: string | null;
};

export interface BegunHybrid {
  /** Whether `chunks` are the complete answer. */
  readonly done: boolean;
  /** Of what was shown last; null if nothing was. */
  readonly route: Route | null;
  /** What was shown and not withdrawn. */
  readonly chunks: readonly ChatCompletionChunk[];
  /** All that near has generated of the answer; null if that is not known. */
  readonly near: { readonly model: TokenModel; readonly answer: BegunAnswer } | null;
}

/** Records an answer of two sides, so that a later page can go on with it. */
export interface HybridJournal {
  readonly begun: BegunHybrid | null;
  /** The decision was made, and nothing was sent yet. Throws StorageError. */
  decided(isPrivate: boolean): Promise<void>;
  /** Something was shown or withdrawn. */
  shown(item: AnswerItem): void;
  /** Near is asked. Null: not for the whole answer. ``continues``: it begins with the tokens of `begun`. */
  nearAsked(model: TokenModel | null, continues: boolean): void;
  readonly nearGenerated: (generated: GeneratedToken | AnswerEnd) => void;
}

/** How an answer goes on: near's tokens, or what it begins with; neither if it starts. */
export interface Continuation {
  readonly choice: SituatedChoice;
  readonly tokens: BegunAnswer | undefined;
  readonly shown: ShownBefore | null;
}

export interface ShownBefore extends Begun {
  readonly chunks: readonly ChatCompletionChunk[];
}

/**
 * The side that wrote goes on if it still may; otherwise the side that is chosen now. Near's signals were read before.
 */
export function continuation(choice: SituatedChoice, begun: BegunHybrid | null, near: NearSide): Continuation {
  if (begun === null) return { choice, tokens: undefined, shown: null };
  const { route, chunks } = begun;
  const wrote = route?.side ?? "near";
  const { decision, standby } = choice;
  const isSame = decision.side === wrote || standby;
  const side = isSame ? wrote : decision.side;
  const reason = ((isSame ? route?.reason : undefined) ?? decision.reason) as typeof decision.reason;
  const next = { ...choice, wants_signals: false, decision: { ...decision, side, reason } };
  if (side === "near" && wrote === "near" && begun.near !== null && sameModel(begun.near.model, near.info))
    return { choice: next, tokens: begun.near.answer, shown: null };
  if (chunks.length === 0) return { choice: next, tokens: undefined, shown: null };
  const deltas = chunks.flatMap(({ choices: [each] }) => (each === undefined ? [] : [each.delta]));
  const text = deltas.map(({ content }) => content ?? "").join("");
  return {
    choice: next,
    tokens: undefined,
    shown: {
      chunks,
      text,
      toolCalls: deltas.some(({ tool_calls: calls }) => calls !== undefined),
      reasoning: deltas.some(({ reasoning_content: thought }) => Boolean(thought)),
      switchedAt: isSame ? (route?.switched_at ?? null) : Array.from(text).length,
    },
  };
}

/** All that was shown. */
// oxlint-disable-next-line typescript/require-await
export async function* shownBefore({ chunks }: BegunHybrid): AsyncGenerator<AnswerItem, void, undefined> {
  for (const chunk of chunks) yield { type: "chunk", chunk };
}

/** Near, which goes on after ``tokens``, and whose tokens are recorded. */
export function recorded(
  near: NearSide,
  journal: HybridJournal,
  tokens: BegunAnswer | undefined,
): Pick<NearSide, "answer"> {
  return {
    answer: (request, promptLogprobs) => {
      const model = request.from === null ? near.info && modelOf(near.info) : null;
      journal.nearAsked(model, tokens !== undefined);
      const rest = model === null ? {} : { begun: tokens, onGenerated: journal.nearGenerated };
      return near.answer({ ...request, ...rest }, promptLogprobs);
    },
  };
}

export function modelOf({ model, quantization, tokenizerSha256 }: TokenModel): TokenModel {
  return { model, quantization, tokenizerSha256 };
}

/** Whether token ids of one model are those of the other, and what follows them is the same. */
export function sameModel(one: TokenModel | null, other: TokenModel | null): boolean {
  return (
    one !== null &&
    other !== null &&
    one.model === other.model &&
    one.quantization === other.quantization &&
    one.tokenizerSha256 === other.tokenizerSha256
  );
}
