// The parts of an answer with receipts: what each side received, wrote and signed. hybrid.js loads this file with the
// first request that wants a receipt.

import type { AnswerPart, ChatCompletionChunk, SignedReceipt } from "../api/types.js";
import type { Side } from "../shared/decision/decision.js";
import type { AnswerItem } from "./answer/running_answer.js";
import type { ShownBefore } from "./hybrid_journal.js";
import type { MaskedRequest } from "./masks.js";
import type { SideRequest } from "./sides/sides.js";

type Changed = NonNullable<AnswerPart["changed"]>;

/** One request to a side. */
interface Attempt {
  readonly side: Side;
  /** The text of the answer that it continues. */
  readonly before: string;
  text: string;
  request: AnswerPart["request"];
  receipt: SignedReceipt | null;
  readonly ended: Promise<void>;
}

/** ``More``: what else a side's `answer` takes. */
interface Asked<More extends unknown[], Chunks = AsyncIterable<ChatCompletionChunk>> {
  answer(request: SideRequest, ...more: More): Chunks;
}

export class Parts {
  readonly #attempts: Attempt[] = [];

  /** ``masked`` is what far receives in place of the request, and ``descriptions`` what both have in place of media. */
  constructor(
    private readonly masked: Pick<MaskedRequest, "left"> | null,
    private readonly descriptions: readonly object[],
  ) {}

  /** What earlier pages have shown of the answer, and this one has no receipt of. */
  goOnAfter({ text, chunks }: ShownBefore): void {
    const side = chunks.findLast(({ route }) => route !== undefined)?.route?.side ?? "near";
    this.#attempts.push({ side, before: "", text, request: null, receipt: null, ended: Promise.resolve() });
  }

  /** ``inner``, whose attempts are noted. */
  over<More extends unknown[]>(
    side: Side,
    inner: Asked<More>,
  ): Asked<More, AsyncGenerator<ChatCompletionChunk, void, undefined>> {
    return { answer: (request, ...more) => this.#noted(side, (asked) => inner.answer(asked, ...more), request) };
  }

  /** The items of the answer, the last of which has the receipts and the parts. */
  async *stated(items: AsyncIterable<AnswerItem>): AsyncGenerator<AnswerItem, void, undefined> {
    let side: Side = "near";
    for await (const item of items) {
      if (item.type === "withdraw") {
        yield item;
        continue;
      }
      side = item.chunk.route?.side ?? side;
      const isLast = item.chunk.choices.length === 0;
      yield isLast ? { ...item, chunk: { ...item.chunk, ...(await this.#signed(side)) } } : item;
    }
  }

  async *#noted(
    side: Side,
    ask: (request: SideRequest) => AsyncIterable<ChatCompletionChunk>,
    request: SideRequest,
  ): AsyncGenerator<ChatCompletionChunk, void, undefined> {
    let end: () => void = () => undefined;
    const ended = new Promise<void>((resolve) => (end = resolve));
    const before = request.from?.text ?? "";
    const attempt: Attempt = { side, before, text: "", request: null, receipt: null, ended };
    this.#attempts.push(attempt);
    const onSent = (body: object): void => {
      // As JSON, which is what the receipt covers.
      attempt.request = JSON.parse(JSON.stringify(body)) as NonNullable<AnswerPart["request"]>;
    };
    const onReceipt = (receipt: SignedReceipt): void => {
      attempt.receipt = receipt;
    };
    try {
      for await (const chunk of ask({ ...request, onSent, onReceipt })) {
        // Several are of a pair of sides behind the far side, whose requests are not this one.
        const [receipt, ...others] = chunk.receipts ?? [];
        if (receipt !== undefined && others.length === 0) onReceipt(receipt);
        attempt.text += chunk.choices[0]?.delta.content ?? "";
        yield chunk;
      }
    } finally {
      end();
    }
  }

  /** ``side`` has ended the answer. */
  async #signed(side: Side): Promise<Pick<ChatCompletionChunk, "receipts" | "parts">> {
    const writers = this.#writersUntil(side);
    // A side that was broken off signs its part while it ends.
    await Promise.all(writers.map(({ ended }) => ended));
    const receipts: SignedReceipt[] = [];
    const described: Changed = this.descriptions.length > 0 ? ["described"] : [];
    const parts = writers.map(({ side: own, before, request, receipt }): AnswerPart => {
      const number = receipt === null ? null : receipts.push(receipt) - 1;
      const isMasked = own === "far" && (this.masked?.left.length ?? 0) > 0;
      const changes: Changed = [...(isMasked ? ["masked" as const] : []), ...described];
      return {
        side: own,
        start: Array.from(before).length,
        receipt: number,
        request,
        ...(changes.length > 0 && { changed: changes }),
      };
    });
    return { receipts, parts };
  }

  /** The attempts that wrote the answer, from its start: each continues the text of the one before. */
  #writersUntil(side: Side): readonly Attempt[] {
    const writers: Attempt[] = [];
    let writer = this.#attempts.findLast((attempt) => attempt.side === side);
    while (writer !== undefined) {
      writers.unshift(writer);
      const { before } = writer;
      if (before === "") break;
      const earlier = this.#attempts.slice(0, this.#attempts.indexOf(writer));
      writer = earlier.findLast(
        (each) => each.before.length < before.length && (each.before + each.text).startsWith(before),
      );
    }
    return writers;
  }
}
