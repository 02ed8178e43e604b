// Drafts from a smaller model with the same tokens. It has its own pages and states, and samples with the large model's
// settings and random numbers, so that both choose the same token as often as possible.

import type { Holder } from "../engine/cache_kind.js";
import { PageTable, Pages } from "../engine/pages.js";
import { drawAt } from "../engine/resolved_sampling.js";
import type { Sequence } from "../engine/sequence.js";
import type { Drafter, Guess } from "../engine/speculation.js";
import { ImageRows } from "../engine/step_batch.js";
import type { StepRunner } from "../engine/step_runner.js";
import type { OpenBatch } from "../runtime/batch.js";
import { addTokens, emptyBatch, settingsRow } from "../runtime/batch.js";
import type { PagesByGroup } from "../runtime/page_groups.js";
import type { StepResult } from "../runtime/results.js";

/** What the small model has of a sequence: its pages hold ``computed`` known tokens, followed by most of ``guessed``. */
export class Draft implements Holder {
  readonly tables: readonly PageTable[];
  computed = 0;
  guessed: readonly number[] = [];

  constructor(
    readonly slot: number,
    groups: number,
  ) {
    this.tables = Array.from({ length: groups }, () => new PageTable());
  }

  /**
   * Count accepted guesses as computed, of the tokens from the ``first`` one on; the others will be overwritten. The last
   * guess was not computed.
   */
  learn(tokens: readonly number[], first: number): void {
    for (const guess of this.guessed.slice(0, -1)) {
      // The last token is always computed again, because its logits are needed.
      if (first + this.computed + 1 >= tokens.length || tokens[first + this.computed] !== guess) break;
      this.computed++;
    }
    this.guessed = [];
  }
}

interface Ready {
  readonly guess: Guess;
  readonly draft: Draft;
}

export type DraftRunner = Pick<StepRunner, "limits" | "submit" | "stepsInFlight" | "chunk">;

/** The runner's pages must hold all sequences that speculate at once; a sequence without room gets no drafts. */
export class DraftModel implements Drafter {
  /** Another model's tower makes other features. */
  readonly readsImages: boolean = false;
  /** The first token of a sequence that it reads. */
  protected readonly firstToken: number = 0;
  #kinds: readonly Pages[] = [];
  #slots: number[] = [];
  readonly #drafts = new Map<Sequence, Draft>();
  /** A model with states has two slots for each sequence: after its known tokens, and after its guesses. */
  readonly #isRecurrent: boolean;
  /** Sequences that have ended while their drafts were made, whose pages are still written. Null between drafts. */
  #ended: Sequence[] | null = null;

  constructor(protected readonly runner: DraftRunner) {
    this.#isRecurrent = (runner.limits.states ?? 0) > 0;
    this.reset();
  }

  reset(): void {
    const { groups, context, pageSize, tokens: maxTokens, sequences } = this.runner.limits;
    this.#kinds = groups.map((group, index) => new Pages(index, group, { context, pageSize, maxTokens }));
    this.#slots = Array.from({ length: sequences }, (_, slot) => slot);
    this.#drafts.clear();
  }

  /**
   * A sequence gets no drafts until the small model has read it completely; it reads one batch of prompts at a time.
   */
  async draft(guesses: readonly Guess[]): Promise<void> {
    const ended: Sequence[] = (this.#ended = []);
    try {
      await this.#draft(guesses);
    } finally {
      this.#ended = null;
      for (const sequence of ended) this.forget(sequence);
    }
  }

  async #draft(guesses: readonly Guess[]): Promise<void> {
    const ready: Ready[] = [];
    const [batch, seen] = [emptyBatch(), new ImageRows()];
    let room = this.#chunk;
    for (const guess of guesses) {
      const { sequence, most } = guess;
      const { tokens } = sequence;
      const first = this.firstToken;
      const readable = tokens.length - first;
      const own = this.#drafts.get(sequence);
      const isRead = own?.computed === readable;
      // Nothing was checked since the last guesses.
      sequence.drafts = isRead ? own.guessed.slice(0, most) : [];
      if (isRead || room === 0 || readable <= 0 || this.canRead?.(sequence) === false) continue;
      const draft = this.draftOf(guess);
      if (draft === null) continue;
      if (this.readsAgain) draft.guessed = [];
      draft.learn(tokens, first);
      const part = tokens.slice(first + draft.computed, first + draft.computed + room);
      room -= part.length;
      this.#add(batch, seen, guess, draft, part, draft.computed, 0, draft.computed + part.length === readable);
      draft.computed += part.length;
      if (draft.computed === readable) ready.push({ guess, draft });
    }
    if (batch.token_ids.length === 0) return;
    // Sampled tokens stay on the device until all steps are submitted, unless the runner waits for each step.
    const results = [this.runner.submit(seen.in(batch), { notNumbers: true })];
    for (let index = 1; ready.some(({ guess }) => guess.most > index); index++) {
      const earlier = ready.filter(({ guess }) => guess.most > index - 1);
      const known = this.runner.stepsInFlight === 1 ? (await results.at(-1))?.tokenIds : undefined;
      // Guesses follow all images.
      const next = emptyBatch();
      earlier.forEach(({ guess, draft }, row) => {
        // A token that could not be computed ends the draft, whatever follows it.
        const token = known === undefined ? -1 - draft.slot : Math.max(known[row] ?? 0, 0);
        if (guess.most > index) this.#add(next, seen, guess, draft, [token], draft.computed + index - 1, index, true);
      });
      results.push(this.runner.submit(next, { notNumbers: true }));
    }
    const read = await allOf(results);
    read.forEach(({ tokenIds }, index) => {
      ready
        .filter(({ guess }) => guess.most > index)
        .forEach(({ guess, draft }, row) => {
          const { sequence } = guess;
          const token = tokenIds[row] ?? -1;
          if (token >= 0 && sequence.drafts.length === index) sequence.drafts = [...sequence.drafts, token];
          draft.guessed = sequence.drafts;
        });
    });
  }

  forget(sequence: Sequence): void {
    const draft = this.#drafts.get(sequence);
    if (draft === undefined) return;
    if (this.#ended !== null) {
      this.#ended.push(sequence);
      return;
    }
    this.#drafts.delete(sequence);
    this.#slots.push(draft.slot);
    for (const kind of this.#kinds) kind.drop(draft);
  }

  /** The most tokens of prompts that it reads at once. */
  get #chunk(): number {
    return this.runner.chunk ?? this.runner.limits.tokens;
  }

  /** Whether accepted guesses are read again as known tokens: a state cannot go back to the last accepted guess. */
  protected get readsAgain(): boolean {
    return this.#isRecurrent;
  }

  /** Whether the known tokens of a sequence can be read now; always by default. */
  protected canRead?(sequence: Sequence): boolean;

  /** Add what is read beside a sequence's tokens at some positions, which are known ones or guesses; by default nothing. */
  protected addInputs?(
    batch: OpenBatch,
    seen: ImageRows,
    sequence: Sequence,
    draft: Draft,
    positions: readonly number[],
    isKnown: boolean,
  ): void;

  /** The pages that the rows of a sequence see, in each page group. */
  protected pagesOf(_sequence: Sequence, { tables }: Draft): PagesByGroup {
    return tables.map((table) => table.pages);
  }

  /** The position of the row that follows ``start`` rows. */
  protected positionOf(_sequence: Sequence, start: number): number {
    return start;
  }

  /** What the small model has of a sequence, with pages for its next guesses; null if there is no room for them. */
  protected draftOf({ sequence, most }: Guess): Draft | null {
    const { context } = this.runner.limits;
    const length = sequence.tokens.length - this.firstToken + most - 1;
    const [slot] = this.#slots;
    const known = this.#drafts.get(sequence);
    if (length > context || (known === undefined && slot === undefined)) return null;
    const draft = known ?? new Draft(slot ?? -1, this.#kinds.length);
    const start = draft.computed;
    // The tokens of a long prompt are read in several batches.
    const end = Math.min(length, start + this.#chunk + most - 1);
    for (const kind of this.#kinds) kind.trim(draft, start);
    if (this.#kinds.some((kind) => kind.missing(draft, start, end) > kind.free)) return null;
    for (const kind of this.#kinds) kind.reserve(draft, start, end);
    if (known === undefined) {
      this.#slots.shift();
      this.#drafts.set(sequence, draft);
    }
    return draft;
  }

  /** Add tokens of a sequence; if ``samples``, the last row is sampled like token ``index`` of the answer from now on. */
  #add(
    batch: OpenBatch,
    seen: ImageRows,
    { sequence, sampling }: Guess,
    draft: Draft,
    tokenIds: readonly number[],
    start: number,
    index: number,
    samples: boolean,
  ): void {
    const { slot } = draft;
    const { pageSize, sequences } = this.runner.limits;
    const first = this.positionOf(sequence, start);
    addTokens(batch, tokenIds, first, this.pagesOf(sequence, draft), pageSize);
    const guessed = slot + sequences;
    if (this.#isRecurrent) batch.state_slots.push(index > 1 ? guessed : slot, index > 0 ? guessed : slot);
    const positions = tokenIds.map((_, row) => first + row);
    this.addInputs?.(batch, seen, sequence, draft, positions, index === 0);
    if (!samples) return;
    batch.sample_rows.push(batch.token_ids.length - 1);
    batch.sample_slots.push(slot, 0);
    batch.sample_settings.push(
      ...settingsRow({ ...sampling, draw: drawAt(sampling.seed, sequence.generated + index) }),
    );
  }
}

/** All results. If one fails, the others are awaited too, so that nothing is under way any more. */
async function allOf(results: readonly Promise<StepResult>[]): Promise<readonly StepResult[]> {
  await Promise.allSettled(results);
  return Promise.all(results);
}
