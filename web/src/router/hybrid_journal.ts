// What a Hybrid asks of the journal of an answer: to record it, and to go on with what an earlier page has begun of it.
// `journalled` implements it.

import type { ChatCompletionChunk } from "../api/types.js";
import type { Side } from "../shared/decision/decision.js";
import type { Begun } from "../shared/router/answer_machine.js";
import type { AnswerItem } from "./answer/running_answer.js";
import type { SituatedChoice } from "./routing.js";
import type { NearSide } from "./sides/near.js";
import type { AnswerSoFar, Side as AnsweringSide, SideRequest } from "./sides/sides.js";

export interface HybridJournal {
  /** All that was shown, if that is the complete answer; otherwise null. */
  readonly whole: AsyncIterable<AnswerItem> | null;
  /** What earlier pages have shown, after which a side may go on; null if they have shown nothing. */
  readonly begun: Required<Pick<AnswerSoFar, "text" | "reasoning">> | null;
  /** The decision was made, and nothing was sent yet. ``hasPrivate``: the request is private, or masked. Throws StorageError. */
  decided(hasPrivate: boolean): Promise<void>;
  /** Called before `overFar`. */
  goOn(choice: SituatedChoice, near: Pick<NearSide, "answer" | "info">): NearContinuation;
  /**
   * ``request``: for the whole answer. After ``late``, far's stream is not received again. Throws the reason of the
   * request's signal.
   */
  overFar(
    far: AnsweringSide,
    request: Pick<SideRequest, "params" | "logprobs" | "signal">,
    late: AbortSignal,
  ): Promise<FarContinuation>;
  /** Something was shown or withdrawn. */
  shown(item: AnswerItem): void;
}

/** How an answer goes on. Both sides are recorded. */
export interface NearContinuation {
  readonly choice: SituatedChoice;
  readonly near: Pick<NearSide, "answer">;
}

export interface FarContinuation {
  readonly far: AnsweringSide;
  /** What the sides go on after; null if they start, or begin with what they have generated before. */
  readonly shown: ShownBefore | null;
  /** The side that begins so: its time shows nothing about its speed, and far is not counted again. */
  readonly replays: Side | null;
}

export interface ShownBefore extends Begun {
  readonly chunks: readonly ChatCompletionChunk[];
}
