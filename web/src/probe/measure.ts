// Measures the steps of a probe's layers, and from them those of the complete model: each list of variants as often as
// the complete plan has it.

import type { Batch } from "../runtime/batch.js";
import { dimsOf } from "../runtime/batch.js";
import type { Choices } from "../runtime/choices.js";
import { arrange, variantName } from "../runtime/choices.js";
import type { Manifest } from "../runtime/manifest.js";
import { PREFILL_CHUNK } from "../runtime/memory.js";
import { planOf } from "../runtime/plan.js";
import type { Runner } from "../runtime/runner.js";
import { chooseRow } from "../runtime/variants.js";
import { CLOCK_MS, lastTokens } from "../tuning/batches.js";
import type { Point, Span, StepTimes } from "./predict.js";
import { exactly, scale, sum } from "./predict.js";

/** The interface of a runner for these measurements. */
export type MeasuredRunner = Pick<
  Runner,
  "manifest" | "rows" | "limits" | "info" | "stepsInFlight" | "submit" | "time"
>;

export interface MeasureOptions {
  readonly choices: Choices;
  readonly signal: AbortSignal;
  /** The time for everything that a prediction can do without. */
  readonly budgetMs?: number;
  /** The bytes that the device copies in a second; null if it was not measured. */
  readonly copyBytesPerSecond: number | null;
  readonly now?: () => number;
}

export interface MeasuredSteps {
  readonly times: StepTimes;
  /** The weights of a token's step, divided by its time. */
  readonly weightBytesPerSecond: number;
  readonly hostUsPerDispatch: number;
  readonly roundTripMs: number;
  /** The speed at the end of the measurement, relative to that at its start. */
  readonly sustained: number;
}

const BUDGET_MS = 1200;
/** A run on the device of about this length is measured, after one that warms up. */
const SLICE_MS = 6;
const MOST_STEPS = 64;
const SHORT = 16;
const CONTEXT = 256;
/** The contexts at which attention is measured besides; pages for the longest one are allocated. */
export const LONG_CONTEXT = 1024;
/** The steps that are submitted before the first of them is read. */
const AHEAD = 5;
const ROUNDS = 3;
const SLOW_STEP_MS = 40;
const SUSTAINED_MS = 150;
const SUSTAINED_RUNS = 12;

/** How often a plan has each list. ``head``: behind the layers. */
interface Counts {
  readonly layers: ReadonlyMap<string, number>;
  readonly head: ReadonlyMap<string, number>;
}

/** Throws what the runner throws, and the signal's reason. ``complete`` is the manifest of the complete model. */
export async function measureSteps(
  runner: MeasuredRunner,
  complete: Manifest,
  options: MeasureOptions,
): Promise<MeasuredSteps> {
  const { now = () => performance.now(), budgetMs = BUDGET_MS, signal } = options;
  const start = now();
  const isLate = (): boolean => now() - start > budgetMs;
  const lists = new Lists(runner, options);
  const steps = new Steps(runner, signal);
  const [ofModel, ofProbe] = [countLists(complete), countLists(runner.manifest)];
  const { context: most, tokens: mostTokens } = runner.limits;
  const usual = Math.min(CONTEXT, most);
  const chunk = Math.min(PREFILL_CHUNK, most, mostTokens);
  const body = [...ofModel.layers.keys()];

  // A token: the layers, and the head.
  const one = await lists.times([...body, ...ofModel.head.keys()], 1, usual);
  const [ahead, host] = await steps.ahead(1, usual, true);
  const alone = await steps.alone(usual);
  const inKernels = total(ofProbe.layers, one).ms + total(ofProbe.head, one).ms;
  const calm = Math.min(1, ahead / inKernels);
  const least = options.copyBytesPerSecond === null ? NO_FLOORS : floors(complete, options.copyBytesPerSecond);
  const layers = (times: ReadonlyMap<string, Span>, factor: number, floor = NO_FLOORS): Span =>
    total(ofModel.layers, scaled(times, factor, floor));
  const token: Point[] = [{ at: usual, span: layers(one, calm, least) }];
  const head = total(ofModel.head, scaled(one, calm, least));

  // Tokens of a prompt: the layers.
  const besides = Math.max(0, ahead - inKernels);
  const prompt: Point[] = [{ at: 1, span: sum([layers(one, calm, least), exactly(besides)]) }];
  const measured = new Map<number, { readonly times: ReadonlyMap<string, Span>; readonly factor: number }>();
  for (const tokens of new Set([chunk, SHORT].filter((each) => each > 1 && each <= chunk))) {
    if (tokens !== chunk && isLate()) continue;
    const times = await lists.times(body, tokens, tokens);
    const [step] = await steps.ahead(tokens, tokens, false);
    const factor = step / total(ofProbe.layers, times).ms;
    // What a step takes besides its kernels does not grow with the layers.
    const more = Math.max(0, step - total(ofProbe.layers, times).ms);
    measured.set(tokens, { times, factor: Math.min(1, factor) });
    prompt.push({ at: tokens, span: sum([layers(times, Math.min(1, factor)), exactly(more)]) });
  }
  prompt.sort((a, b) => a.at - b.at);

  // Other lists than those of attention do not depend on the context.
  const attending = lists.ofContext();
  const far = async (
    tokens: number,
    times: ReadonlyMap<string, Span>,
    factor: number,
    floor = NO_FLOORS,
  ): Promise<Span> => layers(new Map([...times, ...(await lists.times(attending, tokens, most))]), factor, floor);
  if (most > usual) token.push({ at: most, span: await far(1, one, calm, least) });
  const full = measured.get(chunk);
  let chunkPerContext = exactly(0);
  if (full !== undefined && most > chunk) {
    const more = (await far(chunk, full.times, full.factor)).ms - layers(full.times, full.factor).ms;
    chunkPerContext = exactly(Math.max(0, more) / (most - chunk));
  }
  const dispatches = Math.max(1, runner.info.dispatchesPerToken);
  const deviceMs = (token[0]?.span.ms ?? 0) + head.ms;
  return {
    times: {
      token,
      prompt,
      chunkPerContext,
      head,
      between: besides,
      latency: Math.max(0, alone - ahead),
      host: (host * sizeOf(ofModel)) / sizeOf(ofProbe),
    },
    weightBytesPerSecond: (1000 * bytesOf(complete)) / Math.max(CLOCK_MS, deviceMs),
    hostUsPerDispatch: Math.max((1000 * host) / dispatches, 0.1),
    roundTripMs: Math.max(CLOCK_MS, alone - Math.min(inKernels, ahead)),
    sustained: isLate() ? 1 : await lists.sustained(one, usual, now),
  };
}

const NO_FLOORS: ReadonlyMap<string, number> = new Map<string, number>();

/** Times that are multiplied, and at least the ``floor`` of their list. */
function scaled(
  times: ReadonlyMap<string, Span>,
  factor: number,
  floor: ReadonlyMap<string, number>,
): ReadonlyMap<string, Span> {
  return new Map(
    [...times].map(([list, span]) => {
      const { ms, low, high } = scale(span, factor);
      const least = floor.get(list) ?? 0;
      return [list, { ms: Math.max(ms, least), low: Math.max(low, least), high: Math.max(high, least) }];
    }),
  );
}

/** The time of all steps of these lists. */
function total(counts: ReadonlyMap<string, number>, times: ReadonlyMap<string, Span>): Span {
  return sum([...counts].map(([list, count]) => scale(times.get(list) ?? exactly(0), count)));
}

function sizeOf({ layers, head }: Counts): number {
  return [...layers.values(), ...head.values()].reduce((all, count) => all + count, 0);
}

/** Behind the layers come the steps that read which rows are sampled. */
function countLists(manifest: Pick<Manifest, "plans" | "embedding" | "classifier">): Counts {
  const { steps } = planOf(manifest);
  const first = steps.findIndex(({ inputs }) => Object.values(inputs).includes("sample_rows"));
  const count = (part: typeof steps): Map<string, number> => {
    const counts = new Map<string, number>();
    for (const { variants } of part) counts.set(variants, (counts.get(variants) ?? 0) + 1);
    return counts;
  };
  return { layers: count(steps.slice(0, first)), head: count(steps.slice(first)) };
}

/** The bytes of the weights that a token's step reads: all but those of which it looks up rows. */
function bytesOf(manifest: Manifest): number {
  const read = new Set(
    planOf(manifest).steps.flatMap(({ op, inputs }) => (op === "embed" ? [] : Object.values(inputs))),
  );
  return Object.entries(manifest.weights)
    .filter(([name]) => read.has(name))
    .reduce((all, [, { planes }]) => all + planes.reduce((part, { size }) => part + size, 0), 0);
}

/** Times complete steps of the probe's layers, as an engine submits them. */
class Steps {
  constructor(
    private readonly runner: MeasuredRunner,
    private readonly signal: AbortSignal,
  ) {}

  /** The ms of a step that is submitted before earlier ones are read, and of the host's part of it. */
  async ahead(tokens: number, context: number, sample: boolean): Promise<readonly [step: number, host: number]> {
    const batch = batchOf(this.runner, tokens, context, sample);
    const count = Math.min(AHEAD, this.runner.stepsInFlight);
    const [first] = await this.#time(batch, 1);
    // A device that is slow shows it in fewer steps.
    const several = first > SLOW_STEP_MS ? Math.min(2, count) : count;
    const times: number[] = [];
    const hosts: number[] = [];
    for (let round = 0; round < ROUNDS; round++) {
      const [alone] = several === 1 ? [0] : await this.#time(batch, 1);
      const [together, host] = await this.#time(batch, several);
      times.push(several === 1 ? together : (together - alone) / (several - 1));
      hosts.push(host);
    }
    return [Math.max(median(times), 0), Math.min(...hosts)];
  }

  /** The ms of a step of one token until its token is on the host. */
  async alone(context: number): Promise<number> {
    const batch = batchOf(this.runner, 1, context, true);
    const times: number[] = [];
    for (let round = 0; round < ROUNDS; round++) times.push((await this.#time(batch, 1))[0]);
    return median(times);
  }

  async #time(batch: Batch, count: number): Promise<readonly [all: number, host: number]> {
    this.signal.throwIfAborted();
    const start = performance.now();
    // What is in the pages means nothing.
    const steps = Array.from({ length: count }, () => this.runner.submit(batch, { notNumbers: true }));
    const host = (performance.now() - start) / count;
    await Promise.all(steps);
    return [performance.now() - start, host];
  }
}

function median(values: readonly number[]): number {
  return [...values].sort((a, b) => a - b)[Math.floor(values.length / 2)] ?? 0;
}

/** No sequence runs, so that the first page of each group, and the first slot, are free. */
function batchOf(runner: MeasuredRunner, tokens: number, context: number, sample = true): Batch {
  const { pageSize, groups } = runner.limits;
  return lastTokens(tokens, context, pageSize, groups, new Array<number>(groups.length + 1).fill(0), sample);
}

/** Times lists of steps by the variants that run by default. */
class Lists {
  constructor(
    private readonly runner: MeasuredRunner,
    private readonly options: MeasureOptions,
  ) {}

  /** Of one step of each list. */
  async times(lists: readonly string[], tokens: number, context: number): Promise<ReadonlyMap<string, Span>> {
    const batch = batchOf(this.runner, tokens, context);
    const found = new Map<string, Span>();
    for (const list of new Set(lists)) found.set(list, await this.#time(batch, list));
    return found;
  }

  /** The lists whose rows or work depend on the context. */
  ofContext(): readonly string[] {
    const paged = planOf(this.runner.manifest).steps.filter(({ inputs }) => "page_ids" in inputs || "kv" in inputs);
    return [...new Set(paged.map(({ variants }) => variants))];
  }

  /** The speed of the list that takes longest at the end of a short run, relative to that at its start. */
  async sustained(times: ReadonlyMap<string, Span>, context: number, now: () => number): Promise<number> {
    const batch = batchOf(this.runner, 1, context);
    const [longest] = [...times].sort(([, a], [, b]) => b.ms - a.ms);
    if (longest === undefined) return 1;
    const [list, { ms }] = longest;
    const count = Math.min(MOST_STEPS, Math.max(1, Math.round(SLICE_MS / Math.max(ms, CLOCK_MS))));
    const found: number[] = [];
    const start = now();
    while (now() - start < SUSTAINED_MS && found.length < SUSTAINED_RUNS)
      found.push(await this.runner.time(batch, list, this.#variant(batch, list), count));
    const half = Math.floor(found.length / 2);
    const least = (part: readonly number[]): number => Math.max(Math.min(...part), CLOCK_MS / count);
    return half === 0 ? 1 : least(found.slice(0, half)) / least(found.slice(half));
  }

  async #time(batch: Batch, list: string): Promise<Span> {
    const { runner, options } = this;
    const variant = this.#variant(batch, list);
    const run = async (count: number): Promise<number> => {
      options.signal.throwIfAborted();
      return (await runner.time(batch, list, variant, count)) / count;
    };
    const first = await run(1);
    const count = Math.min(MOST_STEPS, Math.max(1, Math.round(SLICE_MS / Math.max(first, CLOCK_MS / 4))));
    const all = [await run(count), await run(count)];
    return { ms: all.reduce((sum, ms) => sum + ms, 0) / all.length, low: Math.min(...all), high: Math.max(...all) };
  }

  #variant(batch: Batch, list: string): string {
    const { rows, limits } = this.runner;
    const [P = 0, PW = 0] = limits.groups.map(({ pages }) => pages);
    const own = rows.get(list) ?? [];
    return variantName(chooseRow(arrange(own, list, this.options.choices), dimsOf(batch, { P, PW }, false)));
  }
}

/**
 * The least time of a step by list, from the bytes of its weights: those of a few layers may be in a cache, but those of
 * all are not.
 */
function floors(manifest: Manifest, bytesPerSecond: number): ReadonlyMap<string, number> {
  const found = new Map<string, number>();
  for (const { op, variants, inputs } of planOf(manifest).steps) {
    if (op === "embed" || op === "expert_linear") continue;
    const weights = Object.values(inputs).map((name) => manifest.weights[name]);
    const bytes = weights.reduce(
      (all, weight) => all + (weight?.planes.reduce((part, { size }) => part + size, 0) ?? 0),
      0,
    );
    found.set(variants, Math.max(found.get(variants) ?? 0, (1000 * bytes) / bytesPerSecond));
  }
  return found;
}
