// The journal of an answer of two sides, and how a later page goes on with it: near exactly, by its tokens; far by the
// stream that its server has kept; or either side after the text.

import type { ChatCompletionChunk } from "../api/types.js";
import type { BegunAnswer } from "../engine/request.js";
import { NearfarError } from "../errors.js";
import type { AnswerItem } from "../router/answer/running_answer.js";
import type { FarContinuation, HybridJournal, NearContinuation, ShownBefore } from "../router/hybrid_journal.js";
import type { SituatedChoice } from "../router/routing.js";
import type { NearSide } from "../router/sides/near.js";
import type { Side as AnsweringSide } from "../router/sides/sides.js";
import type { OpenJournal } from "./open_journal.js";
import type { KeptFar } from "./record.js";
import { modelOf, sameModel, shownChunks } from "./record.js";

type Near = Pick<NearSide, "answer" | "info">;
type WholeRequest = Parameters<HybridJournal["overFar"]>[1];

/** ``tokens``: near's. ``far``: the stream that is received again. ``isSame``: the side that wrote goes on. */
interface GoingOn {
  readonly tokens: BegunAnswer | undefined;
  readonly far: KeptFar | null;
  readonly isSame: boolean;
}

export class SidesJournal implements HybridJournal {
  /** What earlier pages have shown and not withdrawn. */
  readonly #chunks: readonly ChatCompletionChunk[];
  #items = 0;
  #goingOn: GoingOn = { tokens: undefined, far: null, isSame: true };

  constructor(
    private readonly journal: OpenJournal,
    private readonly keepPrivate: boolean,
  ) {
    this.#chunks = shownChunks(journal.before.items);
  }

  get whole(): AsyncIterable<AnswerItem> | null {
    return this.journal.before.done ? itemsOf(this.#chunks) : null;
  }

  get begun(): HybridJournal["begun"] {
    const written = (key: "content" | "reasoning_content"): string =>
      this.#chunks.map(({ choices: [each] }) => each?.delta[key] ?? "").join("");
    const [text, reasoning] = [written("content"), written("reasoning_content")];
    return text + reasoning === "" ? null : { text, reasoning };
  }

  async decided(hasPrivate: boolean): Promise<void> {
    if (hasPrivate && !this.keepPrivate) await this.journal.forget();
    else await this.journal.begin();
  }

  shown(item: AnswerItem): void {
    // This page first shows what is recorded.
    if (this.#items++ >= this.#chunks.length) this.journal.record({ items: [withoutHead(item)] });
  }

  /** The side that wrote goes on if it still may; otherwise the side that is chosen now. Near's signals were read before. */
  goOn(choice: SituatedChoice, engine: Near): NearContinuation {
    const { near, choices, far } = this.journal.before;
    const [answer] = choices;
    if (this.#chunks.length === 0 && answer === undefined && far === null)
      return { choice, near: this.#recordedNear(engine) };
    const { decision, standby } = choice;
    const wrote = this.#route?.side ?? (answer === undefined && far !== null ? "far" : "near");
    const isSame = decision.side === wrote || standby;
    const side = isSame ? wrote : decision.side;
    const reason = ((isSame ? this.#route?.reason : undefined) ?? decision.reason) as typeof decision.reason;
    this.#goingOn = {
      tokens: side === "near" && wrote === "near" && sameModel(near, engine.info) ? answer : undefined,
      far: side === "far" && wrote === "far" ? far : null,
      isSame,
    };
    return {
      choice: { ...choice, wants_signals: false, decision: { ...decision, side, reason } },
      near: this.#recordedNear(engine),
    };
  }

  async overFar(far: AnsweringSide, request: WholeRequest, late: AbortSignal): Promise<FarContinuation> {
    const { tokens, far: kept } = this.#goingOn;
    const recorded = this.#recordedFar(far);
    if (tokens !== undefined) return { far: recorded, shown: null, replays: "near" };
    const again = kept === null ? null : await receivedAgain(far, kept, request, late);
    return again === null || kept === null
      ? { far: recorded, shown: this.#shownBefore(this.#chunks), replays: null }
      : {
          far: firstFrom(again, recorded),
          shown: this.#shownBefore(this.#chunks.slice(0, kept.from?.chunks ?? 0)),
          replays: "far",
        };
  }

  get #route(): ChatCompletionChunk["route"] {
    return this.#chunks.findLast((chunk) => chunk.route !== undefined)?.route;
  }

  #shownBefore(chunks: readonly ChatCompletionChunk[]): ShownBefore | null {
    if (chunks.length === 0) return null;
    const deltas = chunks.flatMap(({ choices: [each] }) => (each === undefined ? [] : [each.delta]));
    const text = deltas.map(({ content }) => content ?? "").join("");
    return {
      chunks,
      text,
      toolCalls: deltas.some(({ tool_calls: calls }) => calls !== undefined),
      reasoning: deltas.some(({ reasoning_content: thought }) => Boolean(thought)),
      switchedAt: this.#goingOn.isSame ? (this.#route?.switched_at ?? null) : Array.from(text).length,
    };
  }

  /** Near, which goes on after its tokens. */
  #recordedNear(near: Near): Pick<NearSide, "answer"> {
    return {
      answer: (request, promptLogprobs) => {
        // A receipt is of what this page has computed, which is the same again.
        const begun = request.params.receipt === true ? undefined : this.#goingOn.tokens;
        const model = request.from === null ? near.info && modelOf(near.info) : null;
        this.journal.nearAsked(model, begun !== undefined);
        const onGenerated = this.journal.generated.bind(null, 0);
        const rest = model === null ? {} : { begun, onGenerated };
        return near.answer({ ...request, ...rest }, promptLogprobs);
      },
    };
  }

  #recordedFar(far: AnsweringSide): AnsweringSide {
    return {
      answer: (request) => {
        const { from } = request;
        // A page that ends once it has shown some text has stored the key by which the next one gets the rest.
        const onKey = (key: string): Promise<void> => {
          this.journal.record({ far: { key, from } });
          return this.journal.flush();
        };
        return far.answer({ ...request, kept: { onKey } });
      },
    };
  }
}

/** The chunks of a stream that far has kept, from its first one on; null if it has not. Throws the signal's reason. */
async function receivedAgain(
  far: AnsweringSide,
  { key, from }: KeptFar,
  { signal, ...request }: WholeRequest,
  late: AbortSignal,
): Promise<((until: AbortSignal) => AsyncGenerator<ChatCompletionChunk, void, undefined>) | null> {
  const controller = new AbortController();
  const stop = controller.abort.bind(controller);
  const follow = (until: AbortSignal): void => {
    until.addEventListener("abort", () => {
      stop(until.reason);
    });
  };
  follow(signal);
  follow(late);
  const answer = far.answer({ ...request, from, signal: controller.signal, kept: { key } });
  const chunks = answer[Symbol.asyncIterator]();
  const first = await chunks.next().catch((error: unknown) => {
    signal.throwIfAborted();
    if (error instanceof NearfarError) return null;
    throw error;
  });
  if (first === null) return null;
  return async function* (until) {
    follow(until);
    try {
      until.throwIfAborted();
      for (let next = first; next.done !== true; next = await chunks.next()) yield next.value;
    } finally {
      await chunks.return?.();
    }
  };
}

/** Far, whose first answer is that one. */
function firstFrom(
  answer: (until: AbortSignal) => AsyncGenerator<ChatCompletionChunk, void, undefined>,
  far: AnsweringSide,
): AnsweringSide {
  let isUsed = false;
  return {
    answer: (request) => {
      if (isUsed) return far.answer(request);
      isUsed = true;
      return answer(request.signal);
    },
  };
}

// oxlint-disable-next-line typescript/require-await
async function* itemsOf(chunks: readonly ChatCompletionChunk[]): AsyncGenerator<AnswerItem, void, undefined> {
  for (const chunk of chunks) yield { type: "chunk", chunk };
}

/** The journal has the answer's id and time. */
function withoutHead(item: AnswerItem): AnswerItem {
  if (item.type === "withdraw") return item;
  const { id: _, created: __, ...chunk } = item.chunk;
  return { type: "chunk", chunk: chunk as typeof item.chunk };
}
