// A probe and its report. Written by compiler/bundle/schema.py from probe.py and device_report.py there: edit these.

import type {
  AdapterEntry,
  FileEntry,
  PlanEntry,
  SelfTestEntry,
  VectorTestEntry,
  WeightEntry,
} from "../runtime/manifest.js";

/** What a probe has in place of the manifest's own ``plans``, ``weights``, ``shards`` and tests. Its only plan has the name of the model's own, and each list of variants that the complete plan has. ``layers``: for each of the model's layers, the number of the one in the probe that has the same kernels, so that a runtime can run the complete plan on the weights of a few layers. ``values``: for each plane that holds numbers and no codes, as "weight:plane", the bits of 16 of the model's own values, the quantiles of its first rows. */
export interface ProbeFile {
  readonly probe_version: number;
  readonly layers: readonly number[];
  readonly plans: Readonly<Record<string, PlanEntry>>;
  readonly weights: Readonly<Record<string, WeightEntry>>;
  readonly shards: readonly FileEntry[];
  readonly values: Readonly<Record<string, readonly number[]>>;
  readonly self_test: SelfTestEntry | null;
  readonly vector_test: VectorTestEntry | null;
}

/** The seconds from a prompt of ``prompt_tokens`` to the first token of the answer, between ``low`` and ``high``. */
export interface PredictedFirstToken {
  readonly low: number;
  readonly high: number;
  readonly prompt_tokens: number;
  readonly seconds: number;
}

/** The tokens per second of an answer behind ``context`` tokens, between ``low`` and ``high``. */
export interface PredictedDecode {
  readonly low: number;
  readonly high: number;
  readonly context: number;
  readonly tokens_per_second: number;
}

/** The seconds in which an encoder reads a batch of ``texts``, each of ``tokens``, between ``low`` and ``high``. */
export interface PredictedEncode {
  readonly low: number;
  readonly high: number;
  readonly texts: number;
  readonly tokens: number;
  readonly seconds: number;
}

/** ``runs_on_cpu``: WebGPU runs without a GPU. ``platforms``: the rules that apply (web/src/probe/platforms.ts). ``memory_gb`` and ``cores`` as the browser rounds them; None if it does not say. */
export interface ReportDevice {
  readonly adapter: AdapterEntry;
  readonly features: readonly string[];
  readonly runs_on_cpu: boolean;
  readonly user_agent: string;
  readonly platforms: readonly string[];
  readonly memory_gb: number | null;
  readonly cores: number | null;
}

/** In bytes: what the model needs on the device with its complete context, what could be allocated of that, and the most that a rule of the platform allows; None without such a rule. */
export interface ReportMemory {
  readonly needed: number;
  readonly allocated: number;
  readonly limit: number | null;
}

/** Whether the device computes the probe's layers correctly, as the self-test of a bundle: ``largest_deviation`` is the largest error of a logit, relative to the largest logit. */
export interface ReportTest {
  readonly state: "passed" | "passed-with-switched-off" | "untested";
  readonly switched_off: readonly string[];
  readonly largest_deviation: number | null;
}

/** ``weight_bytes_per_second``: of a token's step, or a short text's, weights divided by time. ``copy_bytes_per_second``: of a large copy on the device, read and written bytes. ``dispatch_us``: the host's time for a dispatch. ``round_trip_ms``: of an empty submission. ``sustained``: the speed at the end of the measurement, relative to that at its start. */
export interface Measured {
  readonly weight_bytes_per_second: number;
  readonly copy_bytes_per_second: number | null;
  readonly dispatch_us: number;
  readonly round_trip_ms: number;
  readonly sustained: number;
}

/** How the bundle fits: the dtype of activations, the tokens of a sequence, those of prompts in a step, or of texts in a batch of an encoder, and the memory budget; None if it needs none. */
export interface Fit {
  readonly activation: "float32" | "float16" | "bfloat16" | "int8";
  readonly context: number;
  readonly prefill_chunk: number;
  readonly memory_budget: number | null;
}

/** What the probe did for ``ms``. ``runs``: how often it was measured; 0 for what is no measurement, and for one that was left out because the time was spent, of which the prediction's interval is wider. */
export interface ReportTime {
  readonly step: string;
  readonly ms: number;
  readonly runs: number;
}

/** Why the bundle does not run: ``message`` says what to do; ``found`` and ``needed`` are bytes or limits if there are any. */
export interface Refusal {
  readonly reason: "webgpu" | "features" | "limits" | "memory" | "wrong";
  readonly message: string;
  readonly found: number | null;
  readonly needed: number | null;
}

/** As the router knows a side's speed (web/src/shared/decision/speed.ts). */
export interface PredictedSpeed {
  readonly prefill_tokens_per_second: number;
  readonly decode_tokens_per_second: number;
}

/** ``bundle`` is the hash of its manifest. ``probe_ms``: the time of the probe, of which its download is a part, of ``bytes_read``, and ``times`` its parts. A model that generates text has ``speed``, ``first_token`` and ``decode``, an encoder ``encode``. Fields are None if the probe ended before they were measured; ``refusals`` is empty if the model will run. */
export interface DeviceReport {
  readonly format: "nearfar-probe-2";
  readonly date: string;
  readonly model: string;
  readonly quantization: string;
  readonly bundle: string;
  readonly device: ReportDevice;
  readonly probe_ms: number;
  readonly times: readonly ReportTime[];
  readonly bytes_read: number;
  readonly test: ReportTest | null;
  readonly measured: Measured | null;
  readonly memory: ReportMemory | null;
  readonly fit: Fit | null;
  readonly speed: PredictedSpeed | null;
  readonly first_token: readonly PredictedFirstToken[];
  readonly decode: readonly PredictedDecode[];
  readonly encode: readonly PredictedEncode[];
  readonly refusals: readonly Refusal[];
}
