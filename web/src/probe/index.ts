// probe.js: whether a bundle's model will run on this device, and how fast, before its weights are downloaded.

import { check, isObject, readParams, signal as signalCheck } from "../api/params.js";
import type { Checks } from "../api/params.js";
import { DeviceError, RequestError } from "../errors.js";
import { formatBytes } from "../format_bytes.js";
import { unlessAborted } from "../runtime/abort.js";
import { isExport } from "../runtime/any_manifest.js";
import { bundleId } from "../runtime/bundle.js";
import { PROBE_FILE } from "../shared/files_to_load.js";
import { runsOnCpu } from "../runtime/cpu_adapter.js";
import {
  adapterEntry,
  chooseActivation,
  findAdapter,
  knownFeatures,
  limitsBeyondDefault,
  requireSecureContext,
} from "../runtime/device.js";
import { loadManifest } from "../runtime/load_manifest.js";
import type { Manifest } from "../runtime/manifest.js";
import { PREFILL_CHUNK, largestBuffer } from "../runtime/memory.js";
import type { MemoryOptions, MemoryPlan } from "../runtime/memory_plan.js";
import { planMemory, poolOf } from "../runtime/memory_plan.js";
import type { Notes } from "../runtime/notes.js";
import { browserNotes } from "../runtime/notes.js";
import { readFile } from "../runtime/read_file.js";
import type { Source } from "../runtime/source.js";
import { httpSource } from "../runtime/source.js";
import { planOf } from "../runtime/plan.js";
import { allocate, reserve } from "./memory.js";
import type { MeasuredSteps } from "./measure.js";
import { LONG_CONTEXT, measureSteps, measureTexts } from "./measure.js";
import type { OpenedProbe } from "./open.js";
import { openProbe } from "./open.js";
import { noteOf } from "../runtime/trust.js";
import type { Platform } from "./platforms.js";
import { memoryLimit, rulesOf } from "./platforms.js";
import { firstTokenMs, predictDecode, predictEncode, predictFirstToken } from "./predict.js";
import { probedManifest, readProbe, withoutProbe } from "./probe_file.js";
import { layerEnds } from "./whole.js";
import { patternsOf, tableReader } from "../shared/declared.js";
import reportTypes from "./report_types.json" with { type: "json" };
import type { DeviceReport, ProbeFile, Refusal, ReportTime } from "./schema.js";

export type * from "./schema.js";
export { PLATFORM_RULES } from "./platforms.js";
export type { Platform, PlatformRule } from "./platforms.js";

export interface ProbeOptions extends MemoryOptions {
  readonly gpu?: GPU | undefined;
  readonly signal?: AbortSignal | undefined;
  /** Where reports are stored; by default in the browser. */
  readonly notes?: Notes | undefined;
  /** Measure also if this device has a report about the bundle. */
  readonly again?: boolean | undefined;
  /** The lengths of prompts for which the time to the first token is predicted; 16, 256 and 1024 by default. */
  readonly promptTokens?: readonly number[] | undefined;
  /**
   * The time in milliseconds after which the probe leaves out what it has not measured yet; 2,000 by default. Kernels
   * compile as long as they must.
   */
  readonly limitMs?: number | undefined;
  /** What rules about platforms read; by default the browser's navigator. */
  readonly platform?: Platform | undefined;
}

const PROMPTS = [16, 256, 1024];
/** The batches of an encoder for which times are predicted. */
const TEXTS = [
  [1, 16],
  [1, 128],
  [16, 128],
] as const;
/** The time for all of a probe. One that passes it leaves measurements out. */
const PROBE_MS = 2000;
/** The least part of it for measurements, if the rest took longer. */
const LEAST_SHARE = 0.3;
/** A page draws nothing while a step runs, so a chunk of a prompt should not take longer; see tuning/steps.ts. */
const STEP_MS = 50;
const OPTIONS: Checks = {
  gpu: "object",
  signal: signalCheck,
  notes: "object",
  again: "boolean",
  promptTokens: check(
    "a list of positive integers",
    (value) => Array.isArray(value) && value.every((each) => Number.isSafeInteger(each) && Number(each) > 0),
  ),
  limitMs: "number 0<..",
  platform: check("an object like navigator", isObject),
  maxSequences: "integer 1..",
  maxBatchTokens: "integer 1..",
  pages: "integer 1..",
  maxAdapters: "integer 1..",
  stateSnapshots: "integer 0..",
  draftTokens: "integer 0..",
  prefillChunk: "integer 1..",
  memoryBudget: "number 0<..",
  expertMemory: "number 0<..",
} satisfies Record<keyof ProbeOptions, unknown>;

/**
 * Measure whether this device runs a bundle's model, and how fast: it reads the manifest, the probe and the kernels, less
 * than 2 MB, and no weights. The report of an earlier probe of the same bundle, adapter and browser is returned instead,
 * unless the options are others. A device that cannot run the model has a report with ``refusals``.
 * Throws BundleError, also for a bundle without a probe, RequestError for unknown options, or the signal's reason.
 */
export async function probe(address: string | URL | Source, unchecked: ProbeOptions = {}): Promise<DeviceReport> {
  const options = readParams(unchecked, OPTIONS) as ProbeOptions;
  const { signal = new AbortController().signal } = options;
  return unlessAborted(new Probe(sourceOf(address), options, signal).run(), signal);
}

function sourceOf(address: string | URL | Source): Source {
  if (typeof address === "string" || address instanceof URL) return httpSource(address);
  if (isObject(address) && typeof address.open === "function") return address;
  throw new RequestError("The bundle must be an address or a source", { param: "bundle" });
}

/** A refusal, as an error that ends a probe. */
class Refused extends Error {
  constructor(readonly refusal: Refusal) {
    super(refusal.message);
  }
}

class Probe {
  readonly #start = performance.now();
  #bytesRead = 0;

  constructor(
    private readonly source: Source,
    private readonly options: ProbeOptions,
    private readonly signal: AbortSignal,
  ) {}

  async run(): Promise<DeviceReport> {
    const { signal, options } = this;
    const count = (bytes: number): void => void (this.#bytesRead += bytes);
    const counted: Source = {
      location: this.source.location,
      open: async (file, until) => counting(await this.source.open(file, until), count),
    };
    const manifest = await loadManifest(counted, signal);
    const entry = manifest.files.find(({ file }) => file === PROBE_FILE);
    if (isExport(manifest) || entry === undefined) throw withoutProbe(manifest);
    const platform = options.platform ?? (globalThis as { readonly navigator?: Platform }).navigator ?? {};
    const rules = rulesOf(platform);
    const base = {
      format: "nearfar-probe-2",
      date: new Date().toISOString(),
      model: manifest.model,
      quantization: manifest.quantization,
      bundle: await bundleId(manifest),
    } as const;
    const adapter = await found(options.gpu);
    const info = adapter?.info;
    const device = {
      adapter: info === undefined ? { vendor: "", architecture: "", device: "", description: "" } : adapterEntry(info),
      features: adapter === null ? [] : [...knownFeatures(adapter, options.gpu)].sort(),
      runs_on_cpu:
        info !== undefined && (info.isFallbackAdapter || runsOnCpu(`${info.description} ${info.architecture}`)),
      user_agent: platform.userAgent ?? "",
      platforms: rules.map(({ name }) => name),
      memory_gb: platform.deviceMemory ?? null,
      cores: platform.hardwareConcurrency ?? null,
    };
    const { signal: _, gpu: __, notes = browserNotes(), again = false, platform: ___, ...choices } = options;
    const note =
      adapter === null ? null : (await noteOf(notes, manifest, device.adapter))(`probe ${JSON.stringify(choices)}`);
    const known = again ? undefined : await note?.read();
    // What another version or program has left there is measured again.
    if (known !== undefined && reports("DeviceReport").fault(known, "") === null) return known as DeviceReport;

    let part: Partial<DeviceReport> = {};
    try {
      if (adapter === null) throw new Refused(await withoutWebGpu(options.gpu));
      part = await this.#measure(manifest, adapter, counted, entry, platform, device.runs_on_cpu);
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      part = { refusals: [error.refusal] };
    }
    const report: DeviceReport = {
      ...base,
      device,
      test: null,
      measured: null,
      memory: null,
      fit: null,
      speed: null,
      first_token: [],
      decode: [],
      encode: [],
      refusals: [],
      times: [],
      ...part,
      probe_ms: performance.now() - this.#start,
      bytes_read: this.#bytesRead,
    };
    await note?.write(report);
    return report;
  }

  async #measure(
    manifest: Manifest,
    adapter: GPUAdapter,
    source: Source,
    entry: { readonly file: string; readonly size: number; readonly sha256: string },
    platform: Platform,
    onCpu: boolean,
  ): Promise<Partial<DeviceReport>> {
    const { options, signal } = this;
    const { limitMs = PROBE_MS } = options;
    const known = knownFeatures(adapter, options.gpu);
    const activation = refusing("features", () => chooseActivation(manifest, known));
    const limit = memoryLimit(rulesOf(platform), platform);
    const whole = refusing("memory", () => planMemory(manifest, activation, options));
    const needed = whole.totalBytes;
    let plan = this.#within(manifest, activation, limit?.bytes ?? Infinity, limit?.rule.advice ?? "");
    const largest = largestBuffer(manifest, activation, poolOf(manifest, plan, options));
    refusing("limits", () => limitsBeyondDefault(manifest, largest, adapter.limits));

    const file = readProbe(await readFile(source, entry, signal));
    const small = probedManifest(manifest, file);
    const times: ReportTime[] = [];
    let last = this.#start;
    const spent = (step: ReportTime["step"]): void => {
      const now = performance.now();
      times.push({ step, ms: now - last, runs: 0 });
      last = now;
    };
    spent("read");
    const {
      runner,
      device,
      activation: chosen,
      test,
    } = await this.#open(manifest, small, file, source, adapter, onCpu, spent);
    try {
      const wanted = Math.max(0, plan.totalBytes - runner.info.totalBytes);
      const room = onCpu ? reserve(wanted) : await allocate(device, wanted);
      const allocated = Math.min(needed, room.bytes + runner.info.totalBytes);
      if (room.isFull) plan = this.#within(manifest, activation, allocated * KEPT_SHARE, "the device refuses more");
      spent("memory");
      const weights = bytesOf(manifest);
      const until = Math.max(this.#start + limitMs, performance.now() + LEAST_SHARE * limitMs);
      const floorMs = room.copyBytesPerSecond === null ? 0 : (1000 * weights) / room.copyBytesPerSecond;
      const measuring = { signal, until, floorMs, onCpu, ends: layerEnds(manifest) };
      const memoryBudget = plan.totalBytes < needed ? plan.totalBytes : null;
      const fit = { activation: chosen, context: plan.context, memory_budget: memoryBudget };
      const measuredOf = (steps: Omit<MeasuredSteps, "times">, ms: number): DeviceReport["measured"] => ({
        weight_bytes_per_second: Math.max(1, (1000 * weights) / ms),
        copy_bytes_per_second: room.copyBytesPerSecond,
        dispatch_us: 1000 * steps.hostMs,
        round_trip_ms: steps.roundTripMs,
        sustained: steps.sustained,
      });
      const common = { test, memory: { needed, allocated, limit: limit?.bytes ?? null } };
      if (planOf(manifest).outputs.logits === undefined) {
        const steps = await measureTexts(runner, measuring);
        const { texts, exact, spent: own } = steps;
        const alone = runner.limits.splitsTexts !== false;
        return {
          ...common,
          times: [...times, ...own],
          measured: measuredOf(steps, texts[0]?.span.ms ?? Infinity),
          fit: { ...fit, prefill_chunk: runner.limits.tokens },
          encode: TEXTS.filter(([, tokens]) => tokens <= plan.context).map((each) =>
            predictEncode(texts, exact, each, { ...steps, alone }),
          ),
        };
      }
      const steps = await measureSteps(runner, measuring);
      return {
        ...common,
        times: [...times, ...steps.spent],
        measured: measuredOf(steps, steps.times.token[0]?.span.ms ?? Infinity),
        fit: { ...fit, prefill_chunk: chunkOf(steps, plan) },
        ...predictions(steps, plan.context, options.promptTokens ?? PROMPTS),
      };
    } finally {
      runner.destroy();
    }
  }

  /** The plan within so many bytes. */
  #within(manifest: Manifest, activation: Parameters<typeof planMemory>[1], bytes: number, advice: string): MemoryPlan {
    const { memoryBudget = Infinity } = this.options;
    const budget = Math.min(bytes, memoryBudget);
    try {
      return planMemory(manifest, activation, {
        ...this.options,
        memoryBudget: Number.isFinite(budget) ? budget : undefined,
      });
    } catch (error) {
      if (!(error instanceof DeviceError)) throw error;
      const wanted = Number(error.details.needed);
      throw new Refused({
        reason: "memory",
        message:
          `${manifest.model} takes at least ${formatBytes(wanted)} on the device, and ${formatBytes(budget)} are free for it` +
          `${advice === "" ? "" : ` (${advice})`}; use a smaller model`,
        found: Math.floor(budget),
        needed: wanted,
      });
    }
  }

  async #open(
    manifest: Manifest,
    small: Manifest,
    file: ProbeFile,
    source: Source,
    adapter: GPUAdapter,
    onCpu: boolean,
    spent: (step: ReportTime["step"]) => void,
  ): Promise<OpenedProbe> {
    const { gpu } = this.options;
    const pages = Math.ceil(Math.min(LONG_CONTEXT, manifest.context) / manifest.page_size) + 1;
    try {
      return await openProbe(manifest, small, file, source, { gpu, adapter, pages, onCpu, signal: this.signal }, spent);
    } catch (error) {
      if (!(error instanceof DeviceError)) throw error;
      const reason = error.details.step === "self-test" || "kernel" in error.details ? "wrong" : "memory";
      throw new Refused(refusal("limit" in error.details ? "limits" : reason, error));
    }
  }
}

/** The part of what could be allocated that a model may take: drivers and pages need some. */
const KEPT_SHARE = 0.9;

/** What a page keeps of reports; Python declares it (compiler/bundle/device_report.py). */
const reports = tableReader(reportTypes, patternsOf(reportTypes));

/** The bytes of the weights that a token's step reads: all but those of which it looks up rows. */
function bytesOf(manifest: Manifest): number {
  const read = new Set(
    planOf(manifest).steps.flatMap(({ op, inputs }) => (op === "embed" ? [] : Object.values(inputs))),
  );
  return Object.entries(manifest.weights)
    .filter(([name]) => read.has(name))
    .reduce((all, [, { planes }]) => all + planes.reduce((part, { size }) => part + size, 0), 0);
}

/** The largest chunk whose step is short enough, if its time grows with its tokens. */
function chunkOf({ times }: MeasuredSteps, { largestChunk = PREFILL_CHUNK }: MemoryPlan): number {
  const ms = firstTokenMs(times, PREFILL_CHUNK).ms;
  let chunk = PREFILL_CHUNK;
  while (2 * chunk <= largestChunk && (2 * chunk * ms) / PREFILL_CHUNK <= STEP_MS) chunk *= 2;
  return chunk;
}

function predictions(
  { times, sustained }: MeasuredSteps,
  context: number,
  prompts: readonly number[],
): Pick<DeviceReport, "speed" | "first_token" | "decode"> {
  const fitting = (tokens: number): boolean => tokens < context;
  const first_token = prompts.filter(fitting).map((tokens) => predictFirstToken(times, tokens, sustained));
  const decode = [...new Set([16, 256, 1024, context])]
    .filter((tokens) => tokens <= context)
    .map((tokens) => predictDecode(times, tokens, sustained));
  const usual = Math.min(256, context);
  const first = predictFirstToken(times, usual, sustained);
  return {
    first_token,
    decode,
    speed: {
      prefill_tokens_per_second: usual / first.seconds,
      decode_tokens_per_second: predictDecode(times, usual, sustained).tokens_per_second,
    },
  };
}

/** Null if there is none. */
async function found(gpu: GPU | undefined): Promise<GPUAdapter | null> {
  try {
    return await findAdapter(gpu);
  } catch (error) {
    if (error instanceof DeviceError) return null;
    throw error;
  }
}

async function withoutWebGpu(gpu: GPU | undefined): Promise<Refusal> {
  try {
    requireSecureContext();
    await findAdapter(gpu);
  } catch (error) {
    if (error instanceof DeviceError) return refusal("webgpu", error);
    throw error;
  }
  return { reason: "webgpu", message: "The adapter came too late; probe again", found: null, needed: null };
}

function refusing<T>(reason: Refusal["reason"], ask: () => T): T {
  try {
    return ask();
  } catch (error) {
    if (error instanceof DeviceError) throw new Refused(refusal(reason, error));
    throw error;
  }
}

function refusal(reason: Refusal["reason"], { message, details }: DeviceError): Refusal {
  const number = (value: unknown): number | null => (typeof value === "number" ? value : null);
  return { reason, message, found: number(details.found ?? details.budget), needed: number(details.needed) };
}

function counting(stream: ReadableStream<Uint8Array>, onBytes: (count: number) => void): ReadableStream<Uint8Array> {
  const count = new TransformStream<Uint8Array, Uint8Array>({
    transform: (chunk, controller) => {
      onBytes(chunk.length);
      controller.enqueue(chunk);
    },
  });
  return stream.pipeThrough(count as unknown as ReadableWritablePair<Uint8Array, Uint8Array>);
}
