// The runtime core: everything between a bundle's files and logits, without a dependency. It knows neither text nor sampling.

export { BundleError, DeviceError, NearfarError, RequestError, StorageError } from "../errors.js";
export type { ErrorCode, ErrorDetails, ErrorJson } from "../errors.js";
export type { Batch } from "./batch.js";
export type { Bundle } from "./bundle.js";
export { openBundle } from "./bundle.js";
export type { DeviceOptions, OpenDevice } from "./device.js";
export { openDevice } from "./device.js";
export type { Manifest } from "./manifest.js";
export { FORMAT_VERSION } from "./manifest.js";
export { PREFILL_CHUNK, largestBuffer } from "./memory.js";
export { readFile } from "./read_file.js";
export type { RunnerInfo, RunnerOptions } from "./runner.js";
export { Runner } from "./runner.js";
export type { Bytes, Expected, OnBytes, Part, Source } from "./source.js";
export { httpSource } from "./source.js";
export type { ActivationDtype } from "./variants.js";
