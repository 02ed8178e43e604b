// Trust: a runner that has been found to compute right on this device. A bundle and its options flow in; a runner flows out that has passed the
// bundle's self-test, now or on an earlier load, with the variants that did not pass switched off, or else an error.

import { BundleError, DeviceError } from "../errors.js";
import type { Bundle } from "./bundle.js";
import { bundleId } from "./bundle.js";
import type { Choices } from "./choices.js";
import { variantName } from "./choices.js";
import type { DeviceOptions, OpenDevice } from "./device.js";
import { adapterEntry, findAdapter, openDevice } from "./device.js";
import type { AdapterEntry, Manifest, TuningEntry } from "./manifest.js";
import { largestBuffer } from "./memory.js";
import { poolWithin } from "./memory_plan.js";
import type { Notes } from "./notes.js";
import { browserNotes } from "./notes.js";
import type { RunnerOptions } from "./runner.js";
import { Runner } from "./runner.js";
import type { TestedRunner, Verdict } from "./self_test.js";
import { selfTest } from "./self_test.js";
import { rememberedTuning, shippedTuning } from "./tuning_record.js";
import type { ActivationDtype } from "./variants.js";

export interface TrustOptions extends DeviceOptions {
  /** When the self-test runs: by default once for a bundle on this adapter, browser and version. */
  readonly selfTest?: "first-load" | "always" | "never" | undefined;
  /** Whether variants are timed in the background, where no record of the adapter is there yet. By default on GPUs, not where WebGPU runs on the CPU. */
  readonly tuning?: boolean | undefined;
  /** Where what was found out is kept; in the browser by default. */
  readonly notes?: Notes | undefined;
}

export interface SelfTestInfo {
  /** "untested": the bundle has no self-test, or it was not to run. */
  readonly state: "passed" | "passed-with-switched-off" | "untested";
  /** Variants that compute wrongly on this device, and "float16" where all of them do with float16 activations. They do not run. */
  readonly switchedOff: readonly string[];
  /** How far a logit was off at most, relative to the largest; null where nothing was tested. */
  readonly largestDeviation: number | null;
  readonly durationMs: number;
  /** The test ran on an earlier load. */
  readonly remembered: boolean;
}

export interface TrustedRunner {
  readonly runner: Runner;
  readonly device: OpenDevice;
  readonly selfTest: SelfTestInfo;
  readonly choices: Choices;
  readonly tuning: TuningEntry | null;
  /** Where the device's tuning is kept; null where it is not to be measured. */
  readonly tuningNote: Note | null;
}

export interface Note {
  read(): Promise<unknown>;
  write(value: unknown): Promise<void>;
}

/** What is kept of a self-test. */
interface Remembered {
  readonly activation: ActivationDtype;
  readonly switchedOff: readonly string[];
  readonly largestDeviation: number;
  readonly durationMs: number;
}

const UNTESTED: SelfTestInfo = { state: "untested", switchedOff: [], largestDeviation: null, durationMs: 0, remembered: false };

/** ``onTest`` is told when the self-test starts. Throws BundleError, DeviceError (also where every way to run the bundle is wrong), or the signal's reason. */
export async function openTrusted(bundle: Bundle, options: TrustOptions, runnerOptions: RunnerOptions, onTest: () => void): Promise<TrustedRunner> {
  const { manifest } = bundle;
  const { selfTest: when = "first-load", notes = browserNotes() } = options;
  const test = when === "never" ? null : manifest.self_test;
  const signal = runnerOptions.signal ?? new AbortController().signal;
  const without = new Map<ActivationDtype, number>();
  let rest = runnerOptions;
  for (;;) {
    // A device takes its adapter with it, so each try has its own.
    const adapter = without.size === 0 && options.adapter !== undefined ? options.adapter : await findAdapter(options.gpu);
    const note = await noteOf(notes, manifest, adapterEntry(adapter.info));
    const remembered = when === "first-load" && test !== null && without.size === 0 ? asRemembered(await note("self-test").read(), manifest) : null;
    const untrusted = new Set(remembered === null ? without.keys() : manifest.activations.map(({ dtype }) => dtype).filter((dtype) => dtype !== remembered.activation));
    const largest = (activation: ActivationDtype): number => largestBuffer(manifest, activation, poolWithin(manifest, activation, runnerOptions));
    const device = await openDevice(manifest, { gpu: options.gpu, adapter }, largest, untrusted);
    const tuningNote = note(`tuning ${device.activation}`);
    const tuning = (await rememberedTuning(tuningNote, device)) ?? shippedTuning(manifest.tuning, device);
    const wantsTuning = tuning === null && (options.tuning ?? !adapter.info.isFallbackAdapter);
    const before: Choices = { off: new Set(remembered?.switchedOff), front: tuning?.variants ?? {} };
    const all = wantsTuning || (test !== null && remembered === null);
    const runner = await Runner.create(bundle, device, { ...rest, choices: before, alternatives: all });
    const opened = { runner, device, tuning, tuningNote: wantsTuning ? tuningNote : null };
    if (test === null) return { ...opened, choices: before, selfTest: UNTESTED };
    if (remembered !== null) return { ...opened, choices: before, selfTest: infoOf(remembered, true) };

    onTest();
    const start = performance.now();
    const tolerance = test.tolerances[device.activation];
    if (tolerance === undefined) throw new BundleError(`manifest.json: self_test.tolerances has none for ${device.activation}; compile the bundle again`);
    let verdict: Verdict;
    try {
      const variants = new Map([...runner.rows].map(([list, rows]) => [list, [...new Set(rows.map(variantName))]]));
      verdict = await selfTest(testable(runner), { ...test, tolerance, variants, front: before.front, pageSize: manifest.page_size, signal });
    } catch (error) {
      runner.destroy();
      throw error;
    }
    if (verdict.passed) {
      const found: Remembered = {
        activation: device.activation,
        switchedOff: [...without.keys(), ...verdict.off],
        largestDeviation: verdict.deviation,
        durationMs: performance.now() - start,
      };
      await note("self-test").write(found);
      return { ...opened, choices: { off: verdict.off, front: before.front }, selfTest: infoOf(found, false) };
    }
    runner.destroy();
    without.set(device.activation, verdict.deviation);
    if (manifest.activations.every(({ dtype, needs }) => without.has(dtype) || needs.some((need) => !adapter.features.has(need)))) {
      throw wrongDevice(device, without, test.tolerances);
    }
    // The bytes that come again have been counted.
    rest = { signal };
  }
}

/** A runner as the self-test wants it. */
function testable(runner: Runner): TestedRunner {
  return {
    numPages: runner.limits.pages,
    forwardLogits: (batch) => runner.forwardLogits(batch),
    likeliest: async (batch) => (await runner.submit(batch)).tokenIds[0] ?? -1,
    choose: (choices) => {
      runner.choose(choices);
    },
  };
}

function infoOf({ switchedOff, largestDeviation, durationMs }: Remembered, remembered: boolean): SelfTestInfo {
  return { state: switchedOff.length > 0 ? "passed-with-switched-off" : "passed", switchedOff, largestDeviation, durationMs, remembered };
}

function asRemembered(note: unknown, manifest: Manifest): Remembered | null {
  const remembered = note as Remembered | undefined;
  return manifest.activations.some(({ dtype }) => dtype === remembered?.activation) ? (remembered ?? null) : null;
}

/** Notes about one bundle on one adapter in one version of the browser: a new driver mostly comes with one of these, and a new bundle always does. */
async function noteOf(notes: Notes, manifest: Manifest, adapter: AdapterEntry): Promise<(subject: string) => Note> {
  const bundle = await bundleId(manifest);
  const browser = typeof navigator === "undefined" ? "" : navigator.userAgent;
  return (subject) => {
    const key = JSON.stringify([subject, bundle, adapter, browser]);
    return { read: () => notes.read(key), write: (value) => notes.write(key, value) };
  };
}

function wrongDevice({ adapter }: OpenDevice, without: ReadonlyMap<ActivationDtype, number>, tolerances: Readonly<Record<string, number>>): DeviceError {
  const found = [...without].map(([dtype, deviation]) => {
    const off = Number.isFinite(deviation) ? `off by ${(100 * deviation).toPrecision(3)} %` : "not numbers";
    return `with ${dtype} activations logits are ${off}, at most ${(100 * (tolerances[dtype] ?? 0)).toPrecision(3)} % is rounding`;
  });
  const largestDeviation = Math.max(...without.values());
  return new DeviceError(
    `${adapter}: this device computes the model wrongly (${found.join("; ")}); update the browser and the graphics driver, or use another device`,
    { adapter, activations: [...without.keys()], largestDeviation: Number.isFinite(largestDeviation) ? largestDeviation : null },
  );
}
