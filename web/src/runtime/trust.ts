// Opens a runner that computes correctly on this device: it has passed the bundle's self-test, now or on an earlier
// load. Variants that did not pass are switched off.

import type { EncodersModule } from "../encoders/index.js";
import { DeviceError } from "../errors.js";
import type { ImagesModule } from "../images/index.js";
import type { Fit } from "../probe/schema.js";
import { unlessAborted } from "./abort.js";
import type { TuningModule } from "../tuning/index.js";
import type { Bundle } from "./bundle.js";
import { bundleId } from "./bundle.js";
import type { Choices } from "./choices.js";
import { variantName } from "./choices.js";
import type { DeviceTest } from "./device_test.js";
import { deviceTest } from "./device_test.js";
import type { DeviceOptions, OpenDevice } from "./device.js";
import { adapterEntry, findAdapter, knownFeatures, openDevice } from "./device.js";
import type { AdapterEntry, Manifest, TuningEntry, VariantEntry } from "./manifest.js";
import { largestBuffer } from "./memory.js";
import { poolWithin } from "./memory_plan.js";
import type { Notes } from "./notes.js";
import { browserNotes } from "./notes.js";
import type { RunnerOptions } from "./runner_parts.js";
import { Runner } from "./runner.js";
import type { TrialWatch, Verdict } from "./trials.js";
import { shippedTuning } from "./shipped_tuning.js";
import type { ActivationDtype } from "./variants.js";

export interface TrustOptions extends DeviceOptions {
  /** When the self-test runs. By default it runs once for each bundle, adapter and browser version. */
  readonly selfTest?: "first-load" | "always" | "never" | undefined;
  /**
   * The time in milliseconds for the self-test's searches for variants that compute correctly on a device with wrong
   * ones; 60,000 by default. Each activation dtype of the bundle gets an equal share. A device without wrong variants
   * needs no search.
   */
  readonly selfTestLimitMs?: number | undefined;
  /**
   * Whether variants and chunks are timed in the background if the adapter has no record yet. By default true, except if
   * WebGPU runs on the CPU. `tuning` of tuning.js, for scripts that cannot import it later, is true too.
   */
  readonly tuning?: boolean | TuningModule | undefined;
  /** `encoders` of encoders.js, for scripts that cannot import it later. */
  readonly encoders?: EncodersModule | undefined;
  /** `images` of images.js, for scripts that cannot import it later. */
  readonly images?: ImagesModule | undefined;
  /** Where the results are stored; by default in the browser. */
  readonly notes?: Notes | undefined;
  /** `fit` of a probe's report: its dtype is tried first, prompts begin with its chunk, and its memory is the budget. */
  readonly fit?: Pick<Fit, "activation" | "prefill_chunk" | "memory_budget"> | undefined;
}

export interface SelfTestInfo {
  /** "untested": the bundle has no self-test, or it was switched off. */
  readonly state: "passed" | "passed-with-switched-off" | "untested";
  /**
   * Variants that this device computes wrongly or refuses, and "float16" or "int8" if such activations are always
   * wrong. They do not run.
   */
  readonly switchedOff: readonly string[];
  /**
   * The largest error of a logit, relative to the largest logit, or of a vector or of scores, relative to the longest;
   * null if nothing was tested.
   */
  readonly largestDeviation: number | null;
  readonly durationMs: number;
  /** Whether the test ran on an earlier load. */
  readonly remembered: boolean;
}

export interface TrustedRunner {
  readonly runner: Runner;
  readonly device: OpenDevice;
  readonly selfTest: SelfTestInfo;
  readonly choices: Choices;
  readonly tuning: TuningEntry | null;
  /** Where the device's tuning is stored; null if all of it is known, or none is to be measured. */
  readonly tuningNote: Note | null;
}

export interface Note {
  read(): Promise<unknown>;
  write(value: unknown): Promise<void>;
}

/** The stored result of a self-test. */
interface Remembered {
  readonly activation: ActivationDtype;
  /** Whether alternatives were tested too, which run only if tuning prefers them. */
  readonly complete: boolean;
  readonly switchedOff: readonly string[];
  readonly largestDeviation: number;
  readonly durationMs: number;
}

const SEARCH_LIMIT_MS = 60_000;
/** What the integer products of int8 need (W3C, WGSL, 4.1.2). */
const INTEGER_DOTS = "packed_4x8_integer_dot_product";

const UNTESTED: SelfTestInfo = {
  state: "untested",
  switchedOff: [],
  largestDeviation: null,
  durationMs: 0,
  remembered: false,
};

/**
 * ``onTest`` is called before each run of the self-test, with the number of earlier runs. Throws BundleError,
 * DeviceError (also if this device computes the bundle wrongly with all variants, or if no right ones were found in
 * time), or the signal's reason.
 */
export async function openTrusted(
  bundle: Bundle,
  options: TrustOptions,
  runnerOptions: RunnerOptions,
  onTest: (runs: number) => void,
): Promise<TrustedRunner> {
  const { manifest } = bundle;
  const { selfTest: when = "first-load", selfTestLimitMs = SEARCH_LIMIT_MS, notes = browserNotes() } = options;
  const { fit } = options;
  const test = when === "never" ? null : deviceTest(manifest, options);
  // Activation dtypes that this device computes wrongly, with their errors.
  const without = new Map<ActivationDtype, number>();
  let trustsNotes = when === "first-load" && test !== null;
  // Without tuning, only the variants that run by default are tested, and the others if those are wrong.
  let alternatives = false;
  const search = new Search(selfTestLimitMs, manifest.activations.length, onTest);
  for (let tries = 0; ; tries++) {
    // An adapter can open only one device, so each try has its own. The first try has counted the bytes.
    const adapter = tries === 0 && options.adapter !== undefined ? options.adapter : await findAdapter(options.gpu);
    const rest = tries === 0 ? runnerOptions : { ...runnerOptions, onBytes: nothing };
    const note = await noteOf(notes, manifest, adapterEntry(adapter.info));
    const tuningOf = async (activation: ActivationDtype): Promise<TuningEntry | null> => {
      const device = { activation, adapterEntry: adapterEntry(adapter.info) };
      // The record that an earlier load measured here.
      const measured = (await note(`tuned ${activation}`).read()) as TuningEntry | undefined;
      return measured ?? shippedTuning(manifest.tuning, device);
    };
    // Tuning has no sound to which the batches that it times could attend.
    const mayTune =
      manifest.speech === null && manifest.ctc === null && Boolean(options.tuning ?? !adapter.info.isFallbackAdapter);
    const known = knownFeatures(adapter, options.gpu);
    const noted = trustsNotes ? asRemembered(await note("self-test").read(), manifest, known) : null;
    // Tuning would choose among untested variants.
    const remembered =
      noted !== null && !noted.complete && mayTune && (await tuningOf(noted.activation)) === null ? null : noted;
    const dtypes = manifest.activations.map(({ dtype }) => dtype);
    const measured = fit !== undefined && dtypes.includes(fit.activation) && !without.has(fit.activation);
    const wanted = remembered?.activation ?? (measured ? fit.activation : null);
    const untrusted = new Set(dtypes.filter((dtype) => (wanted === null ? without.has(dtype) : dtype !== wanted)));
    const largest = (dtype: ActivationDtype): number =>
      largestBuffer(manifest, dtype, poolWithin(manifest, dtype, runnerOptions));
    const device = await openDevice(manifest, { gpu: options.gpu, adapter }, largest, untrusted);
    const { activation } = device;
    const tuning = await tuningOf(activation);
    const wantsTuning = tuning === null && mayTune;
    const before: Choices = { off: new Set(remembered?.switchedOff), front: tuning?.variants ?? {} };
    const complete = wantsTuning || alternatives;
    const isLast = manifest.activations.every(
      ({ dtype, needs }) => dtype === activation || without.has(dtype) || needs.some((need) => !known.has(need)),
    );
    let runner: Runner;
    try {
      runner = await Runner.create(bundle, device, {
        ...rest,
        choices: before,
        alternatives: complete,
        chunk: tuning?.steps?.chunk ?? fit?.prefill_chunk,
      });
    } catch (error) {
      const isRefusal = error instanceof DeviceError && "kernel" in error.details;
      if (!isRefusal || (complete && isLast)) throw error;
      // The device refused the variants that were to run, for example because of a new driver: others may run. Or it
      // refused all variants of a dtype.
      if (complete) without.set(activation, Infinity);
      trustsNotes = false;
      alternatives = true;
      continue;
    }
    const { tokens, chunk = tokens } = runner.limits;
    const lacksChunk = tokens > chunk && (tuning?.steps?.chunk ?? null) === null;
    // A runner for fixed drafts or none has left these times out.
    const lacksDecode = runner.mayDraft && (tuning?.steps?.decode ?? null) === null;
    const measures = mayTune && (tuning === null || lacksChunk || lacksDecode);
    const opened = { runner, device, tuning, tuningNote: measures ? note(`tuned ${activation}`) : null };
    if (test === null) return { ...opened, choices: before, selfTest: { ...UNTESTED, switchedOff: runner.refused } };
    if (remembered !== null) return { ...opened, choices: before, selfTest: infoOf(remembered, true) };

    const start = performance.now();
    search.begin(start, without.size);
    const { signal = new AbortController().signal } = runnerOptions;
    const verdict = await verdictOf(opened, test, before, search, signal);
    const off = new Set([...verdict.off, ...runner.refused]);
    if (verdict.passed && (isLast || !isHollow(activation, runner.rows, off))) {
      const switchedOff = [...without.keys(), ...off];
      const result: Remembered = {
        activation,
        complete,
        switchedOff,
        largestDeviation: verdict.deviation,
        durationMs: performance.now() - start,
      };
      await note("self-test").write(result);
      return { ...opened, choices: { off, front: before.front }, selfTest: infoOf(result, false) };
    }
    runner.destroy();
    trustsNotes = false;
    if (!complete) {
      alternatives = true;
      continue;
    }
    without.set(activation, verdict.deviation);
    if (isLast) throw wrongDevice(device, without, test, search);
  }
}

/**
 * Whether this device computes no integer product of int8 correctly: what its lists have besides them is slower than
 * the next dtype.
 */
function isHollow(activation: ActivationDtype, lists: Runner["rows"], off: ReadonlySet<string>): boolean {
  const remains = (row: VariantEntry): boolean => row.needs.includes(INTEGER_DOTS) && !off.has(variantName(row));
  return activation === "int8" && off.size > 0 && ![...lists.values()].flat().some(remains);
}

/** The time of one load's searches, which begins with its first test, and the count of all its trials. */
class Search implements TrialWatch {
  runs = 0;
  isCut = false;
  #start: number | null = null;
  #share = 0;

  constructor(
    readonly limitMs: number,
    private readonly numDtypes: number,
    private readonly onTest: (runs: number) => void,
  ) {}

  /** Test another runner, after ``tried`` activation dtypes. */
  begin(now: number, tried: number): void {
    this.#start ??= now;
    this.#share = (tried + 1) / this.numDtypes;
  }

  isOver(): boolean {
    const over = performance.now() - (this.#start ?? 0) >= this.limitMs * this.#share;
    this.isCut ||= over;
    return over;
  }

  onTrial(): void {
    this.onTest(this.runs++);
  }
}

/** Frees the runner if the test fails with an error. */
async function verdictOf(
  { runner, device }: Pick<TrustedRunner, "runner" | "device">,
  test: DeviceTest,
  { front }: Choices,
  watch: TrialWatch,
  signal: AbortSignal,
): Promise<Verdict> {
  try {
    return await unlessAborted(test.run(runner, device.activation, front, watch, signal), signal);
  } catch (error) {
    runner.destroy();
    throw error;
  }
}

function infoOf({ switchedOff, largestDeviation, durationMs }: Remembered, remembered: boolean): SelfTestInfo {
  return {
    state: switchedOff.length > 0 ? "passed-with-switched-off" : "passed",
    switchedOff,
    largestDeviation,
    durationMs,
    remembered,
  };
}

/** Null if the device, whose features are ``known``, does not run the dtype that was tested: flags switch features. */
function asRemembered(note: unknown, { activations }: Manifest, known: ReadonlySet<string>): Remembered | null {
  const remembered = note as Remembered | undefined;
  const tested = activations.find(({ dtype }) => dtype === remembered?.activation);
  return tested?.needs.every((need) => known.has(need)) === true ? (remembered ?? null) : null;
}

/**
 * Notes about one bundle on one adapter in one version of the browser. A new driver usually changes one of these, and a
 * new bundle always does.
 */
export async function noteOf(
  notes: Notes,
  manifest: Manifest,
  adapter: AdapterEntry,
): Promise<(subject: string) => Note> {
  const bundle = await bundleId(manifest);
  const browser = typeof navigator === "undefined" ? "" : navigator.userAgent;
  return (subject) => {
    const key = JSON.stringify([subject, bundle, adapter, browser]);
    return { read: () => notes.read(key), write: (value) => notes.write(key, value) };
  };
}

function wrongDevice(
  { adapter }: OpenDevice,
  without: ReadonlyMap<ActivationDtype, number>,
  { subject, tolerances }: DeviceTest,
  { runs, isCut, limitMs }: Search,
): DeviceError {
  const deviations = [...without].map(([dtype, deviation]) => {
    const off = Number.isFinite(deviation) ? `off by ${(100 * deviation).toPrecision(3)} %` : "not numbers";
    const allowed = (100 * (tolerances[dtype] ?? 0)).toPrecision(3);
    return `with ${dtype} activations ${subject} are ${off}, at most ${allowed} % is rounding`;
  });
  const largestDeviation = Math.max(...without.values());
  return new DeviceError(
    `${adapter}: this device computes the model wrongly (${deviations.join("; ")}); the self-test ran ` +
      `${runs === 1 ? "once" : `${runs} times`} with different kernels${isCut ? ` and reached its limit of ${limitMs / 1000} s (selfTestLimitMs)` : ""}; ` +
      `update the browser and the graphics driver, or use another device${without.has("int8") ? ", or compile the model without int8 activations, which may be too coarse for it" : ""}`,
    {
      step: "self-test",
      runs,
      reachedLimit: isCut,
      adapter,
      activations: [...without.keys()],
      largestDeviation: Number.isFinite(largestDeviation) ? largestDeviation : null,
    },
  );
}

function nothing(): void {
  // The first try has counted everything.
}
