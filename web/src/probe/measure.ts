// Measures the steps of a complete model on the weights of a few layers, within a time: all of its layers if they are
// fast enough, else as many as there is time for.

import type { Batch } from "../runtime/batch.js";
import { emptyBatch } from "../runtime/batch.js";
import { PREFILL_CHUNK } from "../runtime/memory.js";
import type { RunnerLimits } from "../runtime/memory.js";
import type { Runner } from "../runtime/runner.js";
import { addText } from "../runtime/sequence_batch.js";
import { CLOCK_MS, lastTokens } from "../tuning/batches.js";
import type { Point, Span, StepTimes } from "./predict.js";
import { atLeast, atMost, exactly, scale, spanOf, sum } from "./predict.js";
import type { ReportTime } from "./schema.js";

/** The interface of a runner for these measurements. ``listen`` runs the first steps of the complete model. */
export type MeasuredRunner = Pick<Runner, "limits" | "submit" | "listen">;

export interface MeasureOptions {
  readonly signal: AbortSignal;
  /** The time by ``now`` at which it should end. */
  readonly until: number;
  /** By a number of layers, the steps that compute them. */
  readonly ends: readonly number[];
  /** The least ms of all layers of a token, for their weights; 0 if it is not known. */
  readonly floorMs: number;
  /**
   * Whether the host's processor is the device. Then neither long contexts nor large batches are measured, because kernels
   * compile for long and nobody waits for such answers; and a token's way to the host takes time from the next step.
   */
  readonly onCpu: boolean;
  readonly now?: () => number;
}

export interface MeasuredSteps {
  readonly times: StepTimes;
  /** The host's ms for a step of the plan. */
  readonly hostMs: number;
  readonly roundTripMs: number;
  /** The speed at the end of the measurement, relative to that at its start. */
  readonly sustained: number;
  readonly spent: readonly ReportTime[];
}

const SHORT = 16;
const CONTEXT = 256;
/** The contexts at which attention is measured besides; pages for the longest one are allocated. */
export const LONG_CONTEXT = 1024;
/** Batches of an encoder: texts, and the tokens of each. */
const TEXTS = [
  [1, 16],
  [1, 128],
  [4, 128],
] as const;
/** Runs on the device of about this length are measured, after one that warms up. */
const SLICE_MS = 6;
const ROUND_TRIPS = 6;
const MOST_AHEAD = 8;
const MOST_RUNS = 5;
/** Fewer layers are not measured, because a cache may hold them, and what precedes them counts too. */
const LEAST_LAYERS = 2;
/** Of a time that follows from that of a few layers, or from one run, which warmed up too. */
const OF_FEW: readonly [low: number, high: number] = [0.85, 1.15];
const OF_ONE: readonly [low: number, high: number] = [0.5, 1.2];
/** Drivers for CPUs take seconds to compile a kernel, in its first run; a run that takes so often the expected time is not one of a step. */
const MOST_LIKELY = 2;

/** So many rows take about as long as one, where they take the least. */
const ROWS_AT_ONCE = 8;
/** A chunk or texts, of a few layers, that take at most as long are measured although the time is spent. */
const SLOW_BATCH_MS = 1000;
/** A step of a few layers that is expected to take at most as long is measured although the time is spent. */
const CHEAP_MS = 200;

interface Measured {
  readonly span: Span;
  readonly layers: number;
}

/** The batches whose steps are measured. ``onCpu``: see `MeasureOptions`. */
export function batchesOf(limits: RunnerLimits, onCpu: boolean): readonly Batch[] {
  const { short, chunk, usual, other } = sizesOf(limits, onCpu);
  if (limits.splitsTexts === false) return textBatches(limits, onCpu).map(({ batch }) => batch);
  return [
    tokensOf(limits, 1, usual, true),
    tokensOf(limits, short, short),
    tokensOf(limits, chunk, chunk),
    tokensOf(limits, 1, other, true),
    tokensOf(limits, chunk, Math.max(other, usual)),
  ];
}

/** ``other``: a second context, shorter or longer than the ``usual`` one. */
function sizesOf({ context, tokens }: RunnerLimits, onCpu: boolean) {
  const usual = Math.min(CONTEXT, context);
  const chunk = Math.min(PREFILL_CHUNK, usual, tokens);
  const short = Math.min(SHORT, chunk);
  return { usual, chunk, short, other: !onCpu && context > usual ? Math.min(LONG_CONTEXT, context) : short };
}

/** No sequence runs, so that the first page of each group, and the first slot, are free. */
function tokensOf({ pageSize, groups }: RunnerLimits, tokens: number, context: number, sample = false): Batch {
  return lastTokens(tokens, context, pageSize, groups, new Array<number>(groups.length + 1).fill(0), sample);
}

/** Batches of complete texts, by their tokens together, the fewest first. */
function textBatches(
  { context, tokens, sequences }: RunnerLimits,
  onCpu: boolean,
): readonly { readonly at: number; readonly batch: Batch }[] {
  const found = new Map<number, Batch>();
  for (const [texts, length] of TEXTS.slice(0, onCpu ? 2 : 3)) {
    const own = Math.min(length, context);
    const batch = emptyBatch();
    for (let text = 0; text < Math.min(texts, sequences, Math.floor(tokens / own)); text++)
      addText(batch, new Array<number>(own).fill(0));
    found.set(batch.token_ids.length, batch);
  }
  return [...found].map(([at, batch]) => ({ at, batch })).sort((a, b) => a.at - b.at);
}

/** Throws what the runner throws, and the signal's reason. For a model that generates text. */
export async function measureSteps(runner: MeasuredRunner, options: MeasureOptions): Promise<MeasuredSteps> {
  const { limits } = runner;
  const { usual, other, short, chunk } = sizesOf(limits, options.onCpu);
  const meter = new Meter(runner, options);
  const fewOf = ({ ms }: Span): number => (LEAST_LAYERS * ms) / options.ends.length;
  const one = tokensOf(limits, 1, usual, true);
  await meter.roundTrip(one);
  const token = await meter.layers("token", one, 0.3);
  const few = await meter.head(one);
  const headOf = (span: Span, layers: number): Span =>
    // A step of all layers had the head already.
    layers < options.ends.length ? { ms: span.ms + few, low: span.low + few, high: span.high + few } : span;
  const whole = atLeast(headOf(token.span, token.layers), options.floorMs);
  const body = scale(whole, Math.max(0.1, (whole.ms - few) / Math.max(whole.ms, CLOCK_MS)));
  const prompt: Point[] = [{ at: 1, span: body }];
  let exact = token.layers === options.ends.length;
  const isSlow = (meter.fewMs * chunk) / ROWS_AT_ONCE > Math.max(meter.left, SLOW_BATCH_MS);
  // A chunk says more than a few tokens. On a slow device, there is no time for both, or only for those.
  const sizes = isSlow ? [short] : [chunk, short];
  let expected = 0;
  for (const tokens of new Set(sizes.filter((each) => each > 1))) {
    const name = tokens === chunk ? "prompt" : "short prompt";
    const found = await meter.layers(name, tokensOf(limits, tokens, tokens), 0.4, expected);
    if (found !== null) prompt.push({ at: tokens, span: found.span });
    exact &&= found !== null && found.layers === options.ends.length;
    // Kernels pad a short prompt: it takes less than a chunk, and more than its share of it.
    expected = found === null ? 0 : fewOf(found.span) / 2;
  }
  if (isSlow) exact = false;
  prompt.sort((a, b) => a.at - b.at);
  const points: Point[] = [{ at: usual, span: whole }];
  if (other !== usual) {
    const found = await meter.layers("context", tokensOf(limits, 1, other, true), 0.4, fewOf(whole));
    if (found !== null) {
      const span = headOf(found.span, found.layers);
      // More keys do not take less time.
      const bounded = other > usual ? atLeast(span, whole.ms) : atMost(span, whole.ms);
      points.push({ at: other, span: atLeast(bounded, options.floorMs) });
      points.sort((a, b) => a.at - b.at);
    }
  }
  const near = prompt.at(-1);
  const most = Math.max(other, usual);
  let chunkPerContext = exactly(0);
  if (most > chunk && near?.at === chunk && chunk > 1) {
    const far = await meter.layers("context", tokensOf(limits, chunk, most), 0.6, fewOf(near.span));
    if (far !== null) chunkPerContext = exactly(Math.max(0, far.span.ms - near.span.ms) / (most - chunk));
    exact &&= far !== null;
  }
  const way = exactly(options.onCpu ? meter.roundTripMs : 0);
  const tokens = points.map(({ at, span }) => ({ at, span: sum([span, way]) }));
  return {
    times: { token: tokens, prompt, chunkPerContext, head: exactly(few), latency: meter.roundTripMs, exact },
    ...meter.result(await meter.sustained(one)),
  };
}

/** As `measureSteps`, for an encoder: the times of batches, by their tokens. */
export async function measureTexts(
  runner: MeasuredRunner,
  options: MeasureOptions,
): Promise<Omit<MeasuredSteps, "times"> & { readonly texts: readonly Point[]; readonly exact: boolean }> {
  const { limits } = runner;
  const meter = new Meter(runner, options);
  const { usual } = sizesOf(limits, options.onCpu);
  const batches =
    limits.splitsTexts === false
      ? textBatches(limits, options.onCpu)
      : [...new Set([SHORT, 128].map((tokens) => Math.min(tokens, usual, limits.tokens)))].map((at) => ({
          at,
          batch: tokensOf(limits, at, at, true),
        }));
  const [first] = batches;
  if (first === undefined) throw new Error("no batch fits");
  await meter.roundTrip(first.batch);
  const texts: Point[] = [];
  let exact = true;
  for (const { at, batch } of batches) {
    const before = texts.at(-1);
    const share = Math.min(1, LEAST_LAYERS / options.ends.length);
    const expected = before === undefined ? 0 : (share * before.span.ms * at) / before.at;
    const found = await meter.layers("texts", batch, 0.5, expected > SLOW_BATCH_MS ? expected : 0);
    if (found !== null) texts.push({ at, span: found.span });
    exact &&= found !== null && found.layers === options.ends.length;
  }
  return { texts, exact, ...meter.result(await meter.sustained(first.batch)) };
}

/** Times steps, and counts the time. */
class Meter {
  roundTripMs = 0;
  readonly #now: () => number;
  readonly #spent: ReportTime[] = [];
  #hostMs = Infinity;
  #first: { readonly end: number | undefined; readonly ms: number } | null = null;
  #few = 0;

  /** The ms of a token's step of a few layers. */
  get fewMs(): number {
    return this.#few;
  }

  /** The ms that are left. */
  get left(): number {
    return this.options.until - this.#now();
  }

  constructor(
    private readonly runner: MeasuredRunner,
    private readonly options: MeasureOptions,
  ) {
    this.#now = options.now ?? (() => performance.now());
  }

  result(sustained: number): Omit<MeasuredSteps, "times"> {
    return {
      roundTripMs: this.roundTripMs,
      hostMs: Math.max(this.#hostMs, CLOCK_MS / 1e4),
      sustained,
      spent: this.#spent,
    };
  }

  /** The least ms of a submission without work: other programs only lengthen it, and it is subtracted from short steps. */
  async roundTrip(batch: Batch): Promise<void> {
    await this.#spend("round trip", async () => {
      const times: number[] = [];
      for (let run = 0; run < ROUND_TRIPS; run++) times.push(await this.#once(batch, 0, 1));
      this.roundTripMs = Math.max(Math.min(...times), CLOCK_MS / 10);
      return times.length;
    });
  }

  /**
   * The time of all layers, and of what follows them if all of them run, in ``share`` of the remaining time. With
   * ``expected``, the ms of its first run: null if there is no time for it and it is not cheap. A first run that takes
   * longer has compiled kernels, and is followed by another one.
   */
  layers(step: ReportTime["step"], batch: Batch, share: number): Promise<Measured>;
  layers(step: ReportTime["step"], batch: Batch, share: number, expected: number): Promise<Measured | null>;
  async layers(step: ReportTime["step"], batch: Batch, share: number, expected = 0): Promise<Measured | null> {
    const { ends, until } = this.options;
    const start = this.#now();
    const left = until - start;
    if (expected > Math.max(left, CHEAP_MS)) {
      this.#spent.push({ step, ms: 0, runs: 0 });
      return null;
    }
    const end = start + share * left;
    const all = ends.length;
    const least = Math.min(all, LEAST_LAYERS);
    let found: Measured | undefined;
    await this.#spend(step, async () => {
      const endOf = (layers: number): number | undefined => (layers === all ? undefined : ends[layers - 1]);
      // The first run of a kernel may take longer.
      const first = await this.#several(batch, endOf(least), SLICE_MS);
      if (all === least) {
        const [times, runs] = await this.#runs(batch, undefined, first, end);
        found = { span: spanOf(times.length > 0 ? times : [first]), layers: all };
        this.#first ??= { end: undefined, ms: found.span.ms };
        if (step === "token") this.#few = found.span.ms;
        return runs + 1;
      }
      const compiles = first > MOST_LIKELY * expected;
      const again = compiles || this.#now() < end ? await this.#several(batch, endOf(least), first) : null;
      const few = again ?? first;
      if (step === "token") this.#few = few;
      const affordable = Math.floor((end - this.#now()) / (1.5 * Math.max(few / least, CLOCK_MS / all)));
      const layers = Math.max(least, Math.min(all, affordable));
      const [times, runs] =
        layers === least ? [[], 0] : await this.#runs(batch, endOf(layers), (few * layers) / least, end);
      if (times.length === 0) {
        const [low, high] = again === null ? OF_ONE : OF_FEW;
        const ms = (few * all) / least;
        found = { span: { ms, low: ms * low, high: ms * high }, layers: least };
      } else {
        const span = spanOf(times);
        const ofLayer = Math.max(0, span.ms - few) / (layers - least);
        const [low, high] = layers === all ? [1, 1] : OF_FEW;
        const ms = span.ms + ofLayer * (all - layers);
        found = {
          span: { ms, low: (low * ms * span.low) / span.ms, high: (high * ms * span.high) / span.ms },
          layers,
        };
        this.#first ??= { end: endOf(layers), ms: span.ms };
      }
      return 1 + Number(again !== null) + runs;
    });
    return found ?? null;
  }

  /** The ms of what follows the layers, and the choice of a token, by the probe's own plan. */
  async head(batch: Batch): Promise<number> {
    let ms = 0;
    await this.#spend("token", async () => {
      const times: number[] = [];
      for (let run = 0; run < 2; run++) {
        const start = this.#now();
        this.options.signal.throwIfAborted();
        // What is in the pages means nothing.
        await this.runner.submit(batch, { notNumbers: true });
        times.push(this.#now() - start - this.roundTripMs);
      }
      const { ends } = this.options;
      const body = await this.#several(batch, ends[Math.min(LEAST_LAYERS, ends.length) - 1], this.#few);
      ms = Math.max(0, Math.min(...times) - body);
      return times.length + 1;
    });
    return ms;
  }

  /** The speed now, relative to that of the first measurement. */
  async sustained(batch: Batch): Promise<number> {
    const first = this.#first;
    if (first === null || this.#now() + first.ms > this.options.until) return 1;
    let found = 1;
    await this.#spend("sustained", async () => {
      const [times, runs] = await this.#runs(batch, first.end, first.ms, this.options.until);
      if (times.length > 0) found = first.ms / Math.max(Math.min(...times), CLOCK_MS / 10);
      return runs;
    });
    return Math.max(found, 0.01);
  }

  /** Runs until a time, at least one. ``expected``: the ms of one. */
  async #runs(batch: Batch, steps: number | undefined, expected: number, until: number): Promise<[number[], number]> {
    const times: number[] = [];
    while (times.length < MOST_RUNS && (times.length === 0 || this.#now() + expected < until))
      times.push(await this.#several(batch, steps, expected));
    return [times, times.length];
  }

  /** The ms of one of several steps that are submitted at once, as an engine submits them. */
  async #several(batch: Batch, steps: number | undefined, expected: number): Promise<number> {
    const count = Math.min(MOST_AHEAD, Math.max(1, Math.round(SLICE_MS / Math.max(expected, CLOCK_MS / 4))));
    const all = await this.#once(batch, steps, count);
    return Math.max(all - this.roundTripMs, CLOCK_MS / 100) / count;
  }

  async #once(batch: Batch, steps: number | undefined, count: number): Promise<number> {
    this.options.signal.throwIfAborted();
    const start = this.#now();
    const running = Array.from({ length: count }, () => this.runner.listen(batch, steps));
    const number = steps ?? this.options.ends.at(-1) ?? 1;
    if (number > 0) this.#hostMs = Math.min(this.#hostMs, (this.#now() - start) / count / number);
    await Promise.all(running);
    return this.#now() - start;
  }

  async #spend(step: ReportTime["step"], work: () => Promise<number>): Promise<void> {
    const start = this.#now();
    const runs = await work();
    this.#spent.push({ step, ms: this.#now() - start, runs });
  }
}
