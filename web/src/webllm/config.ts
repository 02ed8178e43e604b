// WebLLM's configuration: lists of models and options of a model. Unsupported options are errors.

import { RequestError } from "../errors.js";
import type { InitProgressCallback, LogLevel, LogitProcessor } from "./interface.js";

/** The use of a model. A record need not set it, because the bundle contains it. */
export enum ModelType {
  LLM = 0,
  embedding = 1,
  VLM = 2,
}

/**
 * Options of a model. The sampling options are the defaults of its requests. Options of the type ``never`` belong to
 * MLC's own model format and are errors: a bundle has its tokenizer, chat template and attention window compiled in.
 */
export interface ChatOptions {
  temperature?: number | undefined;
  top_p?: number | undefined;
  frequency_penalty?: number | undefined;
  presence_penalty?: number | undefined;
  repetition_penalty?: number | undefined;
  /**
   * The most tokens of a prompt and its answer, rounded down to whole pages of keys and values. A smaller window uses
   * less memory. -1 uses the bundle's own context.
   */
  context_window_size?: number | undefined;
  /** Compiled into a bundle, so only -1 (the bundle's own window) is accepted. */
  sliding_window_size?: -1 | undefined;
  attention_sink_size?: -1 | 0 | undefined;
  tokenizer_files?: never;
  tokenizer_info?: never;
  token_table_postproc_method?: never;
  vocab_size?: never;
  conv_config?: never;
  conv_template?: never;
  max_history_size?: never;
  bos_token_id?: never;
  model_type?: never;
  model_config?: never;
}

/** A model's bundle, and the id that requests use for it. */
export interface ModelRecord {
  /** The address of a bundle's folder. */
  model: string;
  model_id: string;
  /** Ignored: a bundle contains its kernels. */
  model_lib?: string | undefined;
  overrides?: ChatOptions | undefined;
  /** This and the next four fields are for the page's own use. */
  vram_required_MB?: number | undefined;
  low_resource_required?: boolean | undefined;
  buffer_size_required_bytes?: number | undefined;
  required_features?: string[] | undefined;
  model_type?: ModelType | undefined;
  /** An error: each file of a bundle is checked against the SHA-256 in its manifest. */
  integrity?: never;
  /** An error: it names a file of MLC's format. */
  model_manifest?: never;
}

/** Only ``model_list`` has an effect: files are always stored in the origin private file system. */
export interface AppConfig {
  model_list: ModelRecord[];
  cacheBackend?: "cache" | "indexeddb" | "cross-origin" | "opfs" | undefined;
  opfsAccessMode?: OPFSAccessMode | undefined;
  useIndexedDBCache?: boolean | undefined;
}

export type OPFSAccessMode = "async" | "sync" | "auto";

export interface MLCEngineConfig {
  appConfig?: AppConfig | undefined;
  initProgressCallback?: InitProgressCallback | undefined;
  /** By model id. An error for engines in a worker; call setLogitProcessorRegistry of the handler instead. */
  logitProcessorRegistry?: Map<string, LogitProcessor> | undefined;
  /** Has no effect: the engine logs nothing. */
  logLevel?: LogLevel | undefined;
}

/**
 * The models of an engine without an appConfig. The list is empty, because nearfar publishes no models; add the bundles
 * that you serve.
 */
export const prebuiltAppConfig: AppConfig = { model_list: [] };

/** Empty, because ``model_lib`` is ignored. Applications build its address from these two. */
export const modelVersion = "";
export const modelLibURLPrefix = "";

/**
 * Empty, because a bundle's chat template decides whether it can call tools. A request with tools to a bundle that
 * cannot is an error.
 */
export const functionCallingModelIds: string[] = [];

const RECORD_KEYS: readonly string[] = [
  "model",
  "model_id",
  "model_lib",
  "overrides",
  "vram_required_MB",
  "low_resource_required",
  "buffer_size_required_bytes",
  "required_features",
  "model_type",
] satisfies (keyof ModelRecord)[];
const APP_KEYS: readonly string[] = [
  "model_list",
  "cacheBackend",
  "opfsAccessMode",
  "useIndexedDBCache",
] satisfies (keyof AppConfig)[];
const CONFIG_KEYS: readonly string[] = [
  "appConfig",
  "initProgressCallback",
  "logitProcessorRegistry",
  "logLevel",
] satisfies (keyof MLCEngineConfig)[];
const LOG_LEVELS: readonly string[] = ["TRACE", "DEBUG", "INFO", "WARN", "ERROR", "SILENT"] satisfies LogLevel[];
const SAMPLING_KEYS = [
  "temperature",
  "top_p",
  "frequency_penalty",
  "presence_penalty",
  "repetition_penalty",
] as const satisfies (keyof ChatOptions)[];
const WINDOW_KEYS = [
  "context_window_size",
  "sliding_window_size",
  "attention_sink_size",
] as const satisfies (keyof ChatOptions)[];

export type SamplingDefaults = Pick<ChatOptions, (typeof SAMPLING_KEYS)[number]>;

/** Throws RequestError for keys that are not supported. ``others`` are additional keys that ``config`` may have. */
export function checkConfig(config: MLCEngineConfig, others: readonly string[] = []): void {
  requireKnown("engineConfig", config, [...CONFIG_KEYS, ...others]);
  if (config.logLevel !== undefined) checkLogLevel(config.logLevel);
  if (config.appConfig !== undefined) checkAppConfig(config.appConfig);
}

/** Throws RequestError for an unknown level. */
export function checkLogLevel(logLevel: LogLevel): void {
  if (!LOG_LEVELS.includes(logLevel))
    throw new RequestError(`logLevel is '${logLevel}', it must be one of ${LOG_LEVELS.join(", ")}`, {
      param: "logLevel",
    });
}

/** Throws RequestError. */
export function checkAppConfig(appConfig: AppConfig): void {
  requireKnown("appConfig", appConfig, APP_KEYS);
  appConfig.model_list.forEach((record, index) => {
    requireKnown(`appConfig.model_list[${index}]`, record, RECORD_KEYS);
    checkChatOptions(`appConfig.model_list[${index}].overrides`, record.overrides ?? {});
  });
}

/** Throws RequestError, which names the option, for options that are not supported. */
export function checkChatOptions(where: string, options: ChatOptions): void {
  requireKnown(where, options, [...SAMPLING_KEYS, ...WINDOW_KEYS]);
  // Callers without types may pass any value.
  const {
    context_window_size: size = -1,
    sliding_window_size: window = -1,
    attention_sink_size: sink = -1,
  } = options as Readonly<Record<string, unknown>>;
  if (size !== -1 && !(Number.isInteger(size) && (size as number) > 0)) {
    throw refused(
      where,
      "context_window_size",
      `is ${String(size)}; use a number of tokens above 0, or -1 for the bundle's own`,
    );
  }
  if (window !== -1)
    throw refused(
      where,
      "sliding_window_size",
      "is compiled into a bundle; remove it, and limit memory with context_window_size",
    );
  if (sink !== -1 && sink !== 0) throw refused(where, "attention_sink_size", "is compiled into a bundle; remove it");
}

export function samplingDefaults(options: ChatOptions): SamplingDefaults {
  return Object.fromEntries(SAMPLING_KEYS.flatMap((key) => (options[key] === undefined ? [] : [[key, options[key]]])));
}

/**
 * The record of a model. An id with a slash is the address of a bundle and needs no record. Throws RequestError for
 * another id that is not listed.
 */
export function findRecord(modelId: string, { model_list: list }: AppConfig = prebuiltAppConfig): ModelRecord {
  const record = list.find(({ model_id: known }) => known === modelId);
  if (record !== undefined) return record;
  if (modelId.includes("/")) return { model: modelId, model_id: modelId };
  const known = list.map(({ model_id: id }) => id).join(", ") || "none";
  throw new RequestError(
    `Model '${modelId}' is not in appConfig.model_list (it has: ${known}); ` +
      `add { model_id: "${modelId}", model: "address of its bundle" }`,
    {
      param: "modelId",
    },
  );
}

/** Throws RequestError for a key that is not one of ``known``. */
export function requireKnown(where: string, options: object, known: readonly string[]): void {
  const unknown = Object.entries(options).find(
    ([key, value]) => (value as unknown) !== undefined && !known.includes(key),
  );
  if (unknown !== undefined) throw refused(where, unknown[0], `is not supported; supported: ${known.join(", ")}`);
}

function refused(where: string, param: string, problem: string): RequestError {
  return new RequestError(`${where}.${param} ${problem}`, { param });
}
