// Trials: finds the variants that compute wrongly on this device, by a function that measures the error of a test.
//
// Every variant takes part in a trial, many of them at a time: first the variants that the device runs by default, then
// round by round the next row of every list. If a round is wrong, it is halved until the wrong variant is found. A device
// that computes nothing right would be searched for long, so a search for right variants ends when its time is over.

import type { Choices, Front } from "./choices.js";

/**
 * A short trial runs the test's input once; a full trial also runs it in the other ways in which the engine does, such
 * as token by token.
 */
export type TrialKind = "short" | "full";

/** The interface of a test on a runner. */
export interface Measurable {
  /** The error of the results, relative to the largest expected ones; infinite if they are not numbers. */
  deviation(kind: TrialKind): Promise<number>;
  choose(choices: Choices): void;
}

export interface TrialOptions {
  /** The largest allowed error. */
  readonly tolerance: number;
  /** By list, the names of the variants that can run, first choice first. */
  readonly variants: ReadonlyMap<string, readonly string[]>;
  /** The rows that are tried first on a device that has passed. */
  readonly front: Front;
  readonly watch: TrialWatch;
}

/** What watches the trials. */
export interface TrialWatch {
  /** Whether the time for searches is over. A device that passes its first trials needs no search. */
  isOver(): boolean;
  /** Called before each trial. */
  onTrial(): void;
}

export interface Verdict {
  /** Whether the runner now computes correctly. */
  readonly passed: boolean;
  /** Variants that compute wrongly; the runner does not use them. */
  readonly off: ReadonlySet<string>;
  /**
   * The largest error of the trials that passed; if none passed, the smallest error. Infinite if logits are not
   * numbers.
   */
  readonly deviation: number;
  /** Whether a search ended early because its time was over. */
  readonly isCut: boolean;
}

type Chosen = readonly [list: string, variant: string];

/** Throws what the test throws. */
export async function tryVariants(test: Measurable, options: TrialOptions): Promise<Verdict> {
  const trials = new Trials(test, options);
  const { variants, front } = options;
  let background: readonly Chosen[] = [];
  if (!(await trials.passes("full", background))) {
    const passing = await trials.firstThatPasses(backgrounds(variants));
    if (passing === null) return { passed: false, off: new Set(), deviation: trials.least, isCut: trials.isCut };
    background = passing;
  }
  const off = new Set<string>();
  const rounds = Math.max(
    0,
    ...[...variants.values()].filter((names) => names.length > 1).map((names) => names.length),
  );
  for (let round = 0; round < rounds; round++) {
    for (const name of await trials.wrong(
      background,
      rowsOf(variants, (names) => names[round]),
    ))
      off.add(name);
  }
  // A search that was cut leaves variants that were not tried alone, and a list may have no others.
  const { isCut } = trials;
  if (isCut) return { passed: false, off: new Set(), deviation: trials.least, isCut };
  const passed = off.size === 0 || (await trials.passes("full", [], off));
  test.choose({ off, front });
  return { passed, off, deviation: passed ? trials.largest : trials.least, isCut };
}

/**
 * Candidates if the first choice is wrong: the last row of every list, which is the plainest, then the rows before it;
 * then the plainest rows with another row in one list. If these fail too, two plain rows are wrong: such a device is not
 * searched further.
 */
function* backgrounds(variants: ReadonlyMap<string, readonly string[]>): Generator<readonly Chosen[]> {
  const most = Math.max(...[...variants.values()].map((names) => names.length));
  const rounds = Array.from({ length: most }, (_, back) =>
    rowsOf(variants, (names) => names[Math.max(names.length - 1 - back, 0)]),
  );
  yield* rounds;
  const [plain = []] = rounds;
  for (const [list, current] of plain) {
    for (const name of variants.get(list) ?? [])
      if (name !== current) yield plain.map((chosen) => (chosen[0] === list ? [list, name] : chosen));
  }
}

function rowsOf(
  variants: ReadonlyMap<string, readonly string[]>,
  pick: (names: readonly string[]) => string | undefined,
): readonly Chosen[] {
  return [...variants].flatMap(([list, names]) => {
    const name = pick(names);
    return name === undefined ? [] : [[list, name] as const];
  });
}

/** The trials of one test, each with some variants. */
class Trials {
  largest = 0;
  least = Infinity;
  isCut = false;

  constructor(
    private readonly test: Measurable,
    private readonly options: TrialOptions,
  ) {}

  async firstThatPasses(candidates: Iterable<readonly Chosen[]>): Promise<readonly Chosen[] | null> {
    for (const candidate of candidates) {
      if (await this.passes("short", candidate)) return candidate;
      if (this.#cuts()) return null;
    }
    return null;
  }

  /**
   * The names of the variants in ``chosen`` that compute wrongly. ``background`` contains correct variants for the
   * other steps.
   */
  async wrong(background: readonly Chosen[], chosen: readonly Chosen[]): Promise<readonly string[]> {
    if (chosen.length === 0 || (await this.passes("short", [...chosen, ...background]))) return [];
    if (chosen.length === 1 || this.#cuts()) return chosen.map(([, name]) => name);
    const half = Math.ceil(chosen.length / 2);
    return [
      ...(await this.wrong(background, chosen.slice(0, half))),
      ...(await this.wrong(background, chosen.slice(half))),
    ];
  }

  /** Run the test with these variants first, and the others in the order of their lists. */
  async passes(kind: TrialKind, chosen: readonly Chosen[], off: ReadonlySet<string> = new Set()): Promise<boolean> {
    const { tolerance, front: usual } = this.options;
    const front: Record<string, Front[string]> = { ...usual };
    for (const [list, variant] of [...chosen].reverse())
      front[list] = [{ when: null, variant }, ...(front[list] ?? [])];
    this.test.choose({ off, front });
    this.options.watch.onTrial();
    const deviation = await this.test.deviation(kind);
    this.least = Math.min(this.least, deviation);
    if (deviation > tolerance) return false;
    this.largest = Math.max(this.largest, deviation);
    return true;
  }

  #cuts(): boolean {
    this.isCut ||= this.options.watch.isOver();
    return this.isCut;
  }
}
