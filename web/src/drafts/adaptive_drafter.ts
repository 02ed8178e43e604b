// Drafts from the text itself, only while they pay: if they are likely enough to be right for what a step with more rows
// costs on this device.
//
// How likely a guess is follows from the text alone: for each token of an answer, it is known what would have been
// guessed, whether or not the guess was checked. So a text without repetitions costs a few lookups per token, and no
// step of the model gets another row.

import type { Sequence } from "../engine/sequence.js";
import type { Drafter, Guess } from "../engine/speculation.js";
import type { DecodeTimes } from "../runtime/manifest.js";
import type { Occurrence } from "./ngram_drafter.js";
import { LONGEST, NgramIndex } from "./ngram_drafter.js";

// The weight of the last guess in the chance that the next one is right, and the chance of the first one. Simulated with
// diffs of source files, quotations and prose at four ratios of step times, weights of 1/2 to 1/16 and first chances of
// 0 and 0.3 differed by a few per cent.
const LATEST = 1 / 8;
const FIRST_CHANCE = 0.3;
/** Drafts must give this many times the tokens per millisecond, because the times of steps vary. */
const GAIN = 1.05;

export class AdaptiveDrafter implements Drafter {
  /** The text is what it guesses from. */
  readonly readsImages = true;
  readonly #texts = new Map<Sequence, Text>();

  constructor(private readonly times: DecodeTimes) {}

  pays(guesses: readonly Guess[], running: number): boolean {
    return this.#counts(guesses, running).size > 0;
  }

  draft(guesses: readonly Guess[], running: number): Promise<void> {
    const counts = this.#counts(guesses, running);
    for (const { sequence } of guesses) {
      const { end = 0 } = this.#texts.get(sequence)?.place ?? {};
      sequence.drafts = sequence.tokens.slice(end, end + (counts.get(sequence) ?? 0));
    }
    return Promise.resolve();
  }

  forget(sequence: Sequence): void {
    this.#texts.delete(sequence);
  }

  reset(): void {
    this.#texts.clear();
  }

  /** The number of drafts of each sequence that gets some, if ``running`` sequences decode. */
  #counts(guesses: readonly Guess[], running: number): ReadonlyMap<Sequence, number> {
    const all = guesses.flatMap(({ sequence, most }) =>
      this.#read(sequence)
        .chances(most)
        .map((chance) => ({ sequence, chance })),
    );
    // Of a sequence, later ones are no likelier than earlier ones.
    all.sort((a, b) => b.chance - a.chance);
    const chances = all.map(({ chance }) => chance);
    const counts = new Map<Sequence, number>();
    for (const { sequence } of all.slice(0, rowsThatPay(this.times, running, chances)))
      counts.set(sequence, (counts.get(sequence) ?? 0) + 1);
    return counts;
  }

  #read(sequence: Sequence): Text {
    const text = this.#texts.get(sequence) ?? new Text();
    this.#texts.set(sequence, text);
    text.read(sequence.tokens, sequence.prompt.length);
    return text;
  }
}

/** The text of a sequence, and how often guesses at its answer would have been right. */
class Text {
  /** Where its last tokens occurred before. */
  place: Occurrence | null = null;
  #length = 0;
  readonly #index = new NgramIndex();
  /** By the size of the run that a guess follows. */
  readonly #chances = new Array<number>(LONGEST + 1).fill(FIRST_CHANCE);

  /** Read the tokens that are new; those from ``first`` on are the answer. */
  read(tokens: readonly number[], first: number): void {
    for (let known = Math.max(this.#length, first); known < tokens.length; known++) {
      if (this.place !== null) {
        const { end, size } = this.place;
        const chance = this.#chances[size] ?? 0;
        this.#chances[size] = chance + LATEST * (Number(tokens[end] === tokens[known]) - chance);
      }
      // Without the last token; otherwise the end of the text would match itself.
      this.#index.extend(tokens, known);
      this.place = this.#index.follow(tokens, known + 1);
      this.#length = known + 1;
    }
  }

  /** For each of the next guesses, at most ``most``, the chance that it and all before it are right. */
  chances(most: number): readonly number[] {
    if (this.place === null) return [];
    const { end, size } = this.place;
    let chance = 1;
    return Array.from({ length: Math.min(most, this.#length - end) }, (_, index) => {
      // A guess that follows a right one follows a longer run.
      chance *= this.#chances[Math.min(size + index, LONGEST)] ?? 0;
      return chance;
    });
  }
}

/**
 * How many drafts, the likeliest first, give the most tokens per millisecond beside one row for each of ``running``
 * sequences; 0 if none of them pay.
 */
export function rowsThatPay(times: DecodeTimes, running: number, chances: readonly number[]): number {
  let count = 0;
  let tokens = running;
  let best = (GAIN * running) / (stepTime(times, running) - stepTime(times, 1) + times.ahead_ms);
  chances.forEach((chance, index) => {
    tokens += chance;
    const rate = tokens / stepTime(times, running + index + 1);
    if (rate > best) [count, best] = [index + 1, rate];
  });
  return count;
}

/** The milliseconds of a step of some rows, on a line between the sizes that were measured, or through the last two. */
function stepTime({ steps }: DecodeTimes, rows: number): number {
  const above = steps.findIndex((step) => step.rows >= rows);
  const upper = steps[above < 0 ? steps.length - 1 : Math.max(above, 1)];
  const lower = steps[above < 0 ? steps.length - 2 : Math.max(above, 1) - 1];
  if (upper === undefined || lower === undefined) return Infinity;
  return lower.ms + ((rows - lower.rows) * Math.max(upper.ms - lower.ms, 0)) / (upper.rows - lower.rows);
}
