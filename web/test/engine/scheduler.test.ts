// Tests the scheduler's decisions with traces that all runtimes share, and its invariants with random traces.

import fc from "fast-check";
import { readFileSync, writeFileSync } from "node:fs";
import { expect, test } from "vitest";

import { pageTables } from "../../src/engine/pages.js";
import { Scheduler } from "../../src/engine/scheduler.js";
import type { PlacedImages } from "../../src/engine/sequence.js";
import { PLAIN, Sequence } from "../../src/engine/sequence.js";
import { StateTable } from "../../src/engine/states.js";
import type { Step } from "../../src/engine/step.js";
import { samplesAnswer } from "../../src/engine/step.js";
import { promptKeys } from "../../src/images/placed_images.js";
import { pagesOfSequence } from "../../src/runtime/page_groups.js";
import { runs } from "../exhaustive.js";
import type { BuiltRow, TraceConfig } from "./cells.js";
import { Cells, groupsOf, requireThat } from "./cells.js";
import { STOP, VOCAB, answerOf, nextToken } from "./fake_model.js";

interface TraceRequest {
  readonly at: number;
  readonly prompt: readonly number[];
  readonly max_tokens: number;
  readonly priority?: number | undefined;
  readonly prompt_logprobs?: number | undefined;
  /** [offset, length] of each picture in the prompt. */
  readonly pictures?: readonly (readonly [number, number])[] | undefined;
  /** In turn, how many drafts the sequence gets before a step, and how many of the first ones are right. */
  readonly drafts?: readonly (readonly number[])[] | undefined;
  /** The tick at which it is aborted. */
  readonly abort?: number | undefined;
}

interface StepRecord {
  /** [request, first position, positions, 1 if the next token is sampled] */
  readonly rows: readonly (readonly number[])[];
  /** The pages of each row's sequence, and those of the second group. */
  readonly pages: readonly (readonly number[])[];
  readonly window_pages?: readonly (readonly number[])[];
  /** [read, write] of each row, the slots of its states. */
  readonly states?: readonly (readonly number[])[];
  /** [request, cached tokens] */
  readonly admitted: readonly (readonly number[])[];
  readonly preempted: readonly number[];
  /** For each row, the positions that give log-probabilities of the prompt. Steps without any omit it. */
  readonly prompt_logprobs?: readonly number[];
  /** The drafts of each row. Steps without any omit it. */
  readonly drafts?: readonly (readonly number[])[];
}

interface Trace {
  readonly name: string;
  readonly config: TraceConfig;
  readonly requests: readonly TraceRequest[];
  readonly steps: readonly StepRecord[];
  readonly outputs: readonly { readonly tokens: readonly number[]; readonly finish: string }[];
}

interface TraceFile {
  readonly file: URL;
  readonly about: string;
  readonly traces: readonly Trace[];
}

const FILES = ["scheduler.json", "scheduler_windows.json", "scheduler_states.json", "scheduler_drafts.json"].map(
  (name): TraceFile => {
    const file = new URL(`../../../tests/conformance/${name}`, import.meta.url);
    return { file, ...(JSON.parse(readFileSync(file, "utf8")) as Omit<TraceFile, "file">) };
  },
);

/** The pictures of requests differ in their lengths alone. */
function placed(prompt: readonly number[], pictures: readonly (readonly [number, number])[]): PlacedImages {
  const images = pictures.map(([offset, length]) => ({ offset, length, key: "ab".repeat(32) }));
  return { keys: promptKeys(prompt, images), end: (_, stop) => stop, between: () => [] };
}

function schedulerOf(config: TraceConfig): Scheduler {
  const { page_size, max_tokens, max_sequences, max_rows = max_sequences, context, states = 0 } = config;
  return new Scheduler({
    pageSize: page_size,
    groups: groupsOf(config),
    maxTokens: max_tokens,
    maxSequences: max_sequences,
    maxRows: max_rows,
    context,
    states,
  });
}

function run(
  { config, requests }: Pick<Trace, "config" | "requests">,
  check: (scheduler: Scheduler) => void = () => undefined,
): Pick<Trace, "steps" | "outputs"> {
  const scheduler = schedulerOf(config);
  const pages = new Cells(config);
  const sequences = requests.map(
    ({ prompt, max_tokens, priority, prompt_logprobs = 0, pictures, drafts }, id) =>
      new Sequence(
        id,
        prompt,
        {
          ...PLAIN,
          stopTokenIds: new Set([STOP]),
          maxTokens: max_tokens,
          promptLogprobs: prompt_logprobs,
          lockstep: drafts !== undefined,
          images: pictures === undefined ? null : placed(prompt, pictures),
        },
        priority,
      ),
  );
  const draftsOf = requests.map(({ drafts }) => [...(drafts ?? [])]);
  const logprobs = new Map(sequences.map((sequence) => [sequence, [] as number[]]));
  const open: { step: Step; rows: readonly BuiltRow[] }[] = [];
  const steps: StepRecord[] = [];
  const last = Math.max(0, ...requests.map(({ at, abort = 0 }) => Math.max(at, abort)));
  for (
    let tick = 0;
    tick <= last || open.length > 0 || scheduler.waiting.length + scheduler.running.length > 0;
    tick++
  ) {
    requests.forEach(({ at, abort }, id) => {
      const sequence = sequences[id];
      if (sequence === undefined) return;
      if (at === tick) scheduler.add(sequence);
      if (abort === tick && at < tick) scheduler.finish(sequence, "stop");
    });
    while (open.length < config.depth) {
      for (const sequence of scheduler.running) guess(sequence, draftsOf[sequence.id] ?? [], config.context);
      const step = scheduler.next(config.budgets?.[steps.length % config.budgets.length]);
      if (step === null) break;
      const sampled = step.rows.reduce((sum, row) => sum + row.numSampled, 0);
      requireThat(
        sampled <= (config.max_rows ?? config.max_sequences),
        "a step samples no more rows than the device has",
      );
      const rows = step.rows.map((row) => {
        const { tokens, tables } = row.sequence;
        const last = tables.at(-1);
        return {
          row,
          known: [...tokens.slice(0, row.start + row.length), ...row.drafts],
          tables: pageTables(row.sequence).map(({ pages: [...own] }) => own),
          state: last instanceof StateTable ? last.pair(row.start) : null,
        };
      });
      requireSlots(rows);
      requireOwnPages(scheduler, step);
      open.push({ step, rows });
      steps.push({
        rows: step.rows.map((row) => [row.sequence.id, row.start, row.length, samplesAnswer(row) ? 1 : 0]),
        pages: rows.map(({ tables }) => tables[0] ?? []),
        ...(config.window_pages === undefined ? {} : { window_pages: rows.map(({ tables }) => tables[1] ?? []) }),
        ...(config.states === undefined ? {} : { states: rows.map(({ state }) => state ?? []) }),
        admitted: step.admitted.map(({ id, cachedTokens }) => [id, cachedTokens]),
        preempted: step.preempted.map(({ id }) => id),
        ...(step.rows.some(({ promptLogprobs }) => promptLogprobs > 0)
          ? { prompt_logprobs: step.rows.map(({ promptLogprobs }) => promptLogprobs) }
          : {}),
        ...(step.rows.some(({ drafts }) => drafts.length > 0) ? { drafts: step.rows.map(({ drafts }) => drafts) } : {}),
      });
      check(scheduler);
    }
    const first = open.shift();
    if (first !== undefined) {
      for (const event of scheduler.commit(first.step, pages.run(first.step.copies, first.rows))) {
        if (event.type === "prompt_logprob") logprobs.get(event.sequence)?.push(event.tokenId);
        // All log-probabilities of the prompt arrive before the first token.
        if (event.type === "token" && event.sequence.generated === 1)
          expect(logprobs.get(event.sequence)).toEqual(tokensWithLogprobs(event.sequence));
      }
    }
    check(scheduler);
    if (tick > 10_000) throw new Error("the trace does not end");
  }
  const outputs = sequences.map(({ tokens, prompt, finishReason }) => ({
    tokens: tokens.slice(prompt.length),
    finish: finishReason ?? "none",
  }));
  return { steps, outputs };
}

/** Give a sequence its next drafts if it can use any: ``turns`` are used in turn. */
function guess(sequence: Sequence, turns: (readonly number[])[], context: number): void {
  const [turn = []] = turns;
  const [count = 0, right = 0] = turn;
  const useful = sequence.inFlight > 0 ? 0 : sequence.useful(count, { context });
  if (useful === 0) return;
  turns.push(...turns.splice(0, 1));
  const tokens = [...sequence.tokens];
  for (let index = 0; index < useful; index++)
    tokens.push(index < right ? nextToken(tokens) : (nextToken(tokens) + 1) % VOCAB);
  sequence.drafts = tokens.slice(sequence.tokens.length);
}

/** No other sequence reads the pages that a step writes; one that is full of known tokens is in the cache already. */
function requireOwnPages({ kv, config: { pageSize } }: Scheduler, { rows }: Step): void {
  for (const { sequence } of rows) {
    const { computed, tokens } = sequence;
    pageTables(sequence).forEach(({ pages, dead }, group) => {
      requireThat(
        pages
          .slice(Math.max(dead, Math.floor(Math.min(computed, tokens.length) / pageSize)))
          .every((page) => kv.pages[group]?.users(page) === 1),
        "a page that is not full of known tokens has no other users",
      );
    });
  }
}

/** No row reads what another one writes. */
function requireSlots(rows: readonly BuiltRow[]): void {
  const pairs = rows.flatMap(({ state }) => (state === null ? [] : [state]));
  const writes = new Set(pairs.map(([, write]) => write));
  requireThat(writes.size === pairs.length, "no two rows write a slot");
  requireThat(
    pairs.every(([read, write]) => read === write || !writes.has(read)),
    "no row reads a slot that is written",
  );
}

/** The tokens of the prompt that get a log-probability. */
function tokensWithLogprobs({ prompt, params }: Sequence): readonly number[] {
  return prompt.slice(prompt.length - Math.min(params.promptLogprobs, prompt.length - 1));
}

// WRITE_TRACES=1 writes the scheduler's current decisions to the files, for review.
for (const { file, about, traces } of process.env.WRITE_TRACES === "1" ? FILES : []) {
  const written = traces.map(({ name, config: own, requests }) => ({
    name,
    config: own,
    requests,
    ...run({ config: own, requests }),
  }));
  const lines = written.map(
    ({ steps, ...rest }) =>
      `{"steps": [\n    ${steps.map((step) => JSON.stringify(step)).join(",\n    ")}],\n  ${JSON.stringify(rest).slice(1)}`,
  );
  writeFileSync(file, `{"about": ${JSON.stringify(about)},\n"traces": [\n  ${lines.join(",\n  ")}\n]}\n`);
}

test.each(FILES.flatMap(({ traces }) => traces.map((trace) => [trace.name, trace] as const)))("%s", (_, trace) => {
  const { steps, outputs } = run(trace);
  expect(steps).toEqual(trace.steps);
  expect(outputs).toEqual(trace.outputs);
});

const token = fc.integer({ min: 1, max: VOCAB - 1 });
const config = fc
  .record({
    page_size: fc.integer({ min: 1, max: 4 }),
    max_tokens: fc.integer({ min: 4, max: 12 }),
    budgets: fc.option(fc.array(fc.integer({ min: 4, max: 12 }), { minLength: 1, maxLength: 4 })),
    max_sequences: fc.integer({ min: 1, max: 4 }),
    spare_rows: fc.integer({ min: 0, max: 6 }),
    context: fc.integer({ min: 8, max: 32 }),
    depth: fc.integer({ min: 1, max: 4 }),
    spare: fc.integer({ min: 0, max: 12 }),
    window: fc.option(fc.integer({ min: 1, max: 12 })),
    window_spare: fc.option(fc.integer({ min: 0, max: 8 })),
    // How many snapshots of states there may be; null for a model without states.
    snapshots: fc.option(fc.integer({ min: 0, max: 6 })),
  })
  .map(({ snapshots, spare_rows, budgets, ...rest }) => ({
    ...rest,
    budgets: budgets?.map((budget) => Math.min(budget, rest.max_tokens)),
    max_rows: rest.max_sequences + spare_rows,
    ...(snapshots === null ? {} : { states: rest.max_sequences + snapshots }),
  }))
  .map(({ spare, window, window_spare, ...rest }) => {
    const { page_size: pageSize, max_tokens: maxTokens, context } = rest;
    const whole = Math.ceil(context / pageSize);
    if (window === null) return { ...rest, pages: whole + spare };
    const most = pagesOfSequence({ window }, { context, pageSize, maxTokens });
    if (window_spare === null) return { ...rest, window, pages: most + spare };
    return { ...rest, window, pages: whole + spare, window_pages: most + window_spare };
  });
// Few prefixes, so that prompts share them.
const prompt = fc
  .tuple(fc.constantFrom([1, 2, 3, 4, 5, 6, 7, 8], [1, 2, 3, 9], []), fc.array(token, { minLength: 1, maxLength: 8 }))
  .map(([head, tail]) => [...head, ...tail]);
const request = fc.record({
  at: fc.integer({ min: 0, max: 12 }),
  prompt,
  max_tokens: fc.integer({ min: 1, max: 12 }),
  priority: fc.integer({ min: 0, max: 2 }),
  prompt_logprobs: fc.oneof(fc.constant(0), fc.integer({ min: 0, max: 9 })),
  drafts: fc.option(
    fc.array(fc.tuple(fc.integer({ min: 0, max: 4 }), fc.integer({ min: 0, max: 4 })), { minLength: 1, maxLength: 3 }),
    { nil: undefined },
  ),
  abort: fc.option(fc.integer({ min: 1, max: 30 }), { nil: undefined }),
});
const trace = fc.tuple(config, fc.array(request, { minLength: 1, maxLength: 7 })).map(([own, requests]) => ({
  config: own,
  requests: requests.map((one) => ({ ...one, prompt: one.prompt.slice(0, own.context) })),
}));

test("random traces: batched answers equal single ones, every request ends, no page is lost or shared wrongly", () => {
  fc.assert(
    fc.property(trace, ({ config: own, requests }) => {
      let scheduler: Scheduler | null = null;
      const { outputs } = run({ config: own, requests }, (current) => {
        scheduler = current;
        requirePages(current);
      });
      requests.forEach(({ prompt: promptIds, max_tokens, abort }, id) => {
        const alone = answerOf(promptIds, max_tokens, own.context);
        const { tokens, finish } = outputs[id] ?? { tokens: [], finish: "none" };
        if (abort === undefined) expect({ tokens, finish }).toEqual(alone);
        else expect(alone.tokens.slice(0, tokens.length)).toEqual(tokens);
        expect(finish).not.toBe("none");
      });
      const ended = scheduler as Scheduler | null;
      if (ended === null) return;
      for (const pool of ended.kv.pages) expect(pool.free + pool.idle.size).toBe(pool.size);
      const { states } = ended.kv;
      if (states !== null) expect(states.free + states.idle.size).toBe(states.size - own.max_sequences);
    }),
    { numRuns: runs(300, 1000) },
  );
});

/** The number of users of each page is correct, and no page within a window was freed. */
function requirePages(scheduler: Scheduler): void {
  const {
    running,
    config: { pageSize },
  } = scheduler;
  requireStates(scheduler);
  for (const [group, pool] of scheduler.kv.pages.entries()) {
    const tables = running.map((sequence) => ({ sequence, table: pageTables(sequence)[group] }));
    const holders = new Map<number, number>();
    for (const { table } of tables)
      for (const page of table?.live ?? []) holders.set(page, (holders.get(page) ?? 0) + 1);
    let used = 0;
    for (let page = 0; page < pool.size; page++) {
      if (pool.users(page) > 0) used++;
      const inCache = pool.users(page) - (holders.get(page) ?? 0);
      requireThat(inCache === 0 || inCache === 1, `page ${page} has the users that hold it, and the cache`);
    }
    requireThat(used + pool.free === pool.size, "each page is used or free");
    for (const {
      sequence: { computed, tokens },
      table,
    } of tables) {
      const { pages = [], dead = 0 } = table ?? {};
      const known = Math.min(computed, tokens.length);
      requireThat(pages.length >= Math.ceil(computed / pageSize), "what is computed has pages");
      requireThat(dead <= pool.unread(known), "no page within a window is given back");
      requireThat(
        pages.slice(0, dead).every((page) => page === 0),
        "pages that were given back are not named",
      );
    }
    requireThat(pool.idle.size <= used, "evictable pages are used pages");
  }
}

/** The number of users of each slot is correct, and no sequence's own slot has other users. */
function requireStates({ kv: { states }, running, config: { maxSequences } }: Scheduler): void {
  if (states === null) return;
  const tables = running.map(({ tables: own }) => own.at(-1)).filter((table) => table instanceof StateTable);
  const owned = tables.flatMap(({ slot }) => (slot < 0 ? [] : [slot]));
  requireThat(
    owned.every((slot) => states.users(slot) === 1 && !states.idle.has(slot)),
    "a sequence's own slot has no other users",
  );
  let used = 0;
  for (let slot = 0; slot < states.size; slot++) {
    const held = [...owned, ...tables.map(({ source }) => source)].filter((each) => each === slot).length;
    const inCache = states.users(slot) - held;
    requireThat(inCache === 0 || inCache === 1, `slot ${slot} has the users that hold it, and the cache`);
    if (states.users(slot) > 0) used++;
  }
  const snapshots = used - owned.length;
  requireThat(states.free === states.size - maxSequences - snapshots, "each slot is used or free");
  requireThat(states.free >= 0, "there is a slot for each sequence");
}

/** Fails without the cost of \`expect\`: random traces need a million checks. */
