// A constraint for an answer that reasons first: it limits the reasoning, and a form constrains the content. Within the
// budget, any token is allowed. Then the tokens that end the reasoning are forced one by one. The server does the same
// (server_fallback/text/reasoning_constraint.py).

import type { Constraint } from "../engine/request.js";
import { RequestError } from "../errors.js";
import type { Reasoning, State } from "../text/reasoning.js";

/** An answer that begins with reasoning, or may. */
export interface ReasoningStart {
  readonly reasoning: Pick<Reasoning, "openId" | "closeId" | "endingIds" | "isBlank">;
  readonly state: State;
  /** The most tokens of the reasoning, without the markers; undefined sets no limit. */
  readonly budget: number | undefined;
}

export interface ReasoningLimits {
  /** The limit of the complete answer; Infinity for none. */
  readonly maxTokens: number;
  readonly vocabSize: number;
  readonly endTokenIds: readonly number[];
}

/**
 * With a form, which holds the content, the reasoning leaves room for the marker and the shortest content, and the
 * model's end tokens cannot end the answer before its content.
 */
export class ReasoningConstraint implements Constraint {
  private state: State;
  /** All tokens before the content, and those of the reasoning alone. */
  #spent = 0;
  #reasoned = 0;
  #forced: readonly number[] = [];
  /** The most tokens before the content, with the marker. */
  readonly #room: number;

  /** Throws RequestError if there is no room for the marker and the form, which is disposed of then. */
  constructor(
    private readonly start: ReasoningStart,
    private readonly limits: ReasoningLimits,
    private readonly form?: Constraint,
  ) {
    const { maxTokens } = limits;
    this.state = start.state;
    this.#room = maxTokens - start.reasoning.endingIds.length - (form?.needed ?? -Infinity);
    if (this.state === "reasoning" && this.#room < 0) {
      form?.dispose();
      throw new RequestError(
        `The end of the reasoning and the shortest answer found need ${maxTokens - this.#room} tokens, and ` +
          `max_tokens is ${maxTokens}; raise it`,
        { param: "max_tokens" },
      );
    }
  }

  mask(): Int32Array<ArrayBuffer> | null {
    const { form, state } = this;
    const { reasoning, budget = Infinity } = this.start;
    const { vocabSize, endTokenIds } = this.limits;
    const mask = new Int32Array(Math.ceil(vocabSize / 32));
    if (state === "reasoning" && this.#forced.length === 0 && (this.#reasoned >= budget || !this.fits))
      this.#forced = reasoning.endingIds;
    if (this.#forced.length > 0) return flip(mask, this.#forced.slice(0, 1));
    if (form === undefined) return null;
    if (state === "reasoning") return flip(mask.fill(-1), endTokenIds);
    const own = form.mask();
    const { openId } = reasoning;
    const isIn = own === null || ((own[openId >> 5] ?? 0) >>> (openId & 31)) & 1;
    return isIn || state === "content" || !this.fits ? own : flip(own.slice(), [openId]);
  }

  accept(tokenId: number): void {
    const { form } = this;
    const { reasoning } = this.start;
    if (this.#forced.length > 0 || this.state === "reasoning") {
      this.#spent++;
      this.#reasoned++;
      this.#forced = this.#forced.slice(1);
      if (tokenId === reasoning.closeId) this.state = "content";
      if (this.inContent) form?.spend?.(this.#spent);
    } else if (this.state === "start" && tokenId === reasoning.openId && this.fits) {
      this.#spent++;
      this.state = "reasoning";
    } else {
      form?.accept(tokenId);
      if (form !== undefined || !reasoning.isBlank(tokenId)) this.state = "content";
    }
  }

  get finished(): boolean {
    return this.inContent && this.form?.finished === true;
  }

  get complete(): boolean {
    return this.inContent && this.form?.complete === true;
  }

  dispose(): void {
    this.form?.dispose();
  }

  private get inContent(): boolean {
    return this.state === "content" && this.#forced.length === 0;
  }

  /** Whether there is room for one more token before the end of the reasoning. */
  private get fits(): boolean {
    return this.#spent < this.#room;
  }
}

function flip(mask: Int32Array<ArrayBuffer>, ids: readonly number[]): Int32Array<ArrayBuffer> {
  for (const id of new Set(ids)) mask[id >> 5] = (mask[id >> 5] ?? 0) ^ (1 << (id & 31));
  return mask;
}
