// The variants: measures which one of each list is fastest on this device, and returns the rows to try before the list's
// own rows.
//
// It measures with the bundle's own weights, one layer after the other, so that caches have the same effect as in a
// forward. Each slice of work on the device is short, so that answers and the page's drawing can run in between.

import type { Batch } from "../runtime/batch.js";
import { dimsOf } from "../runtime/batch.js";
import { arrange, structural, variantName } from "../runtime/choices.js";
import { holds } from "../runtime/expr.js";
import type { Condition, Manifest, TunedRow, VariantEntry } from "../runtime/manifest.js";
import type { RunnerLimits } from "../runtime/memory.js";
import { PREFILL_CHUNK } from "../runtime/memory.js";
import { planOf } from "../runtime/plan.js";
import { chooseRow } from "../runtime/variants.js";
import type { TuneOptions } from "./batches.js";
import { CLOCK_MS, allSampled, lastTokens } from "./batches.js";

/** The interface of a runner for tuning. */
export interface TimedRunner {
  readonly manifest: Pick<Manifest, "plans" | "embedding" | "classifier" | "context" | "page_size">;
  readonly rows: ReadonlyMap<string, readonly VariantEntry[]>;
  readonly limits: Pick<RunnerLimits, "groups" | "rows" | "sequences">;
  /** The number of tokens of a prompt in a step. */
  readonly chunk: number;
  time(batch: Batch, list: string, variant: string, count: number): Promise<number>;
}

/** A size at which variants are compared, and the condition under which the fastest one is then preferred. */
interface Point {
  readonly order: number;
  readonly tokens: number;
  readonly context: number;
  readonly when: Condition;
}

/** The total time on the device. */
const BUDGET_MS = 5000;
const SLICE_MS = 10;
const MOST_STEPS = 256;
/** A variant must be faster by this factor; smaller differences may be chance. */
const GAIN = 0.95;
/** A variant that takes this many times as long in its first run is not measured again. */
const HOPELESS = 4;
const SHORT_CONTEXT = 256;
/** The most rows of a step that checks drafts. */
const FEW_ROWS = 8;
/** The number of tokens of a question. */
const SHORT_TEXT = 16;

/**
 * Throws what the runner throws, and the signal's reason. Lists that have not been measured within the budget are not
 * changed.
 */
export async function fastestVariants(
  runner: TimedRunner,
  options: TuneOptions,
): Promise<Readonly<Record<string, readonly TunedRow[]>>> {
  const tuned: Record<string, TunedRow[]> = {};
  const stopwatch = new Slices(runner, options);
  const work = [...runner.rows].flatMap(([list, rows]) =>
    points(runner, list, rows).map((point) => ({ list, rows, point })),
  );
  // Single tokens first, because they take most of the time; then prompts, and few rows last.
  work.sort((a, b) => a.point.order - b.point.order);
  for (const { list, rows, point } of work) {
    if (stopwatch.spentMs > BUDGET_MS) break;
    const variant = await fastest(stopwatch, list, rows, point, runner, options);
    if (variant !== null) (tuned[list] ??= []).push({ when: point.when, variant });
  }
  return tuned;
}

/** The variant that is faster at this point than the default one, or null. */
async function fastest(
  stopwatch: Slices,
  list: string,
  rows: readonly VariantEntry[],
  point: Point,
  { manifest, limits }: TimedRunner,
  { choices, pages: own }: TuneOptions,
): Promise<string | null> {
  const { groups, rows: most = limits.sequences } = limits;
  const last = lastTokens(point.tokens, point.context, manifest.page_size, groups, own);
  const batch = point.tokens <= FEW_ROWS ? allSampled(last, most) : last;
  const [P = 0, PW = 0] = groups.map(({ pages }) => pages);
  const dims = dimsOf(batch, { P, PW }, false);
  const usual = variantName(chooseRow(arrange(rows, list, choices), dims));
  const others = rows.filter((row) => holds(structural(row.when), dims)).map(variantName);
  const names = [...new Set([usual, ...others])].filter((name) => !choices.off.has(name));
  if (names.length < 2) return null;
  const times = new Map<string, number>();
  for (const name of names) {
    // The first run warms up, and shows how many runs fit into a slice.
    const once = await stopwatch.perStep(batch, list, name, 1);
    if (once <= HOPELESS * Math.max(Math.min(...times.values()), CLOCK_MS)) times.set(name, once);
  }
  for (let round = 0; round < 2; round++) {
    for (const [name, time] of times) {
      const count = Math.min(Math.max(Math.floor(SLICE_MS / Math.max(time, SLICE_MS / MOST_STEPS)), 1), MOST_STEPS);
      times.set(name, await stopwatch.perStep(batch, list, name, count, round === 0 ? Infinity : time));
    }
  }
  const [best] = [...times].sort(([, a], [, b]) => a - b);
  return best !== undefined && best[0] !== usual && best[1] < GAIN * (times.get(usual) ?? Infinity) ? best[0] : null;
}

/** Runs of a list's steps on the device while it is idle. */
class Slices {
  spentMs = 0;

  constructor(
    private readonly runner: TimedRunner,
    private readonly options: TuneOptions,
  ) {}

  /** The milliseconds for one step: the minimum of this run and ``before``, the time of an earlier run. */
  async perStep(batch: Batch, list: string, variant: string, count: number, before = Infinity): Promise<number> {
    await this.options.idle();
    this.options.signal.throwIfAborted();
    const start = performance.now();
    const time = await this.runner.time(batch, list, variant, count);
    this.spentMs += performance.now() - start;
    return Math.min(time / count, before);
  }
}

/**
 * The points at which a list is measured: one token, a chunk, a short prompt if the chunk is longer, and few rows; and if
 * its rows depend on the context length, a short and the longest context.
 */
function points({ manifest, chunk: most }: TimedRunner, list: string, rows: readonly VariantEntry[]): readonly Point[] {
  if (new Set(rows.map(variantName)).size < 2) return [];
  const { context } = manifest;
  const plan = planOf(manifest);
  const steps = plan.steps.filter((step) => step.variants === list);
  // The lists of the model's own heads.
  if (steps.length === 0 && manifest.plans.draft !== undefined) return [];
  const leading = steps.flatMap(({ outputs }) =>
    Object.values(outputs).flatMap((name) => plan.buffers[name]?.shape[0] ?? []),
  )[0];
  const isPaged = plan.inputs.page_ids !== undefined;
  if (!isPaged) return leading === "S" ? ofTexts(context) : [];
  const [short, chunk] = [Math.min(PREFILL_CHUNK, context), Math.min(most, context)];
  const half = Math.ceil(chunk / 2);
  const from = (tokens: number): Condition => [">=", "S", tokens];
  const one = { order: 0, tokens: 1, when: ["<=", leading === "S" ? "S" : "R", 1] } as const;
  const prompts = [
    { order: 1, tokens: chunk, when: from(half) },
    { order: 2, tokens: short, when: ["and", from(Math.ceil(short / 2)), ["<", "S", half]] as const },
  ];
  const sizes: readonly Omit<Point, "context">[] =
    leading === "S" ? [one, ...prompts.slice(0, short < chunk ? 2 : 1), ...few("S")] : [one, ...few("R")];
  const byContext = context > SHORT_CONTEXT && JSON.stringify(rows.map(({ when }) => when)).includes('"T"');
  if (!byContext) return sizes.map((size) => ({ ...size, context: Math.min(SHORT_CONTEXT, context) }));
  return sizes.flatMap((size) => [
    { ...size, context: SHORT_CONTEXT, when: ["and", size.when, ["<=", "T", SHORT_CONTEXT]] as const },
    { ...size, context, when: ["and", size.when, [">=", "T", Math.ceil(context / 2)]] as const },
  ]);
}

/** The rows of steps that check drafts, or decode several sequences. */
function few(dim: "S" | "R"): readonly Omit<Point, "context">[] {
  return [
    { order: 3, tokens: 3, when: ["and", [">", dim, 1], ["<=", dim, 4]] },
    { order: 4, tokens: 6, when: ["and", [">", dim, 4], ["<=", dim, FEW_ROWS]] },
  ];
}

/** An encoder reads complete texts: a short one, and as many tokens as a batch of several texts has. */
function ofTexts(context: number): readonly Point[] {
  const [few, many] = [Math.min(SHORT_TEXT, context), Math.min(SHORT_CONTEXT, context)];
  return [
    { order: 0, tokens: few, context: few, when: ["<=", "S", 2 * SHORT_TEXT] },
    ...(many > few ? [{ order: 1, tokens: many, context: many, when: [">=", "S", SHORT_CONTEXT / 2] as const }] : []),
  ];
}
