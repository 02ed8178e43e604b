// The runtime core: everything from a bundle's files to the next tokens, without dependencies. It does not handle text.

export { BundleError, DeviceError, NearfarError, RequestError, StorageError } from "../errors.js";
export type { ErrorCode, ErrorDetails, ErrorJson } from "../errors.js";
export type { Batch, SampleSettings } from "./batch.js";
export { IN_PROMPT, SAMPLE_FLAGS, settingsRow } from "./batch.js";
export type { Bundle } from "./bundle.js";
export { openBundle } from "./bundle.js";
export type { DeviceOptions, OpenDevice } from "./device.js";
export { openDevice } from "./device.js";
export type { Manifest } from "./manifest.js";
export { FORMAT_VERSION } from "./manifest.js";
export type { PoolOptions, RunnerLimits } from "./memory.js";
export { PREFILL_CHUNK, largestBuffer } from "./memory.js";
export { readFile } from "./read_file.js";
export type { ResultOptions, StepResult } from "./results.js";
export type { RunnerInfo, RunnerOptions } from "./runner_parts.js";
export { Runner } from "./runner.js";
export type { Bytes, Expected, OnBytes, Part, Source } from "./source.js";
export { httpSource } from "./source.js";
export type { SelfTestInfo, TrustedRunner, TrustOptions } from "./trust.js";
export { openTrusted } from "./trust.js";
export type { ActivationDtype } from "./variants.js";
