// The options of Engine's methods. An unknown option, or a value of the wrong type, is refused before anything is done.

import type { Check, Checks } from "./api/params.js";
import {
  anything,
  boolean,
  check,
  integer,
  isObject,
  isStrings,
  list,
  object,
  only,
  signal,
  text,
} from "./api/params.js";
import type { GenerateOptions } from "./generation.js";
import type { LoadOptions } from "./load.js";
import type { SessionOptions } from "./session.js";

/** The options of Engine.load. */
export const LOAD_OPTIONS: Checks = {
  onProgress: check("a function", (value) => typeof value === "function"),
  signal,
  store: check("true, false or a BundleStore", (value) => typeof value === "boolean" || isObject(value)),
  crossOriginStorage: check(
    'true, false, "*" or a list of origins',
    (value) => typeof value === "boolean" || value === "*" || isStrings(value),
  ),
  onnx: object,
  encoders: object,
  grammar: object,
  gpu: object,
  adapter: object,
  selfTest: only("first-load", "always", "never"),
  selfTestLimitMs: check("0 or more milliseconds", (value) => typeof value === "number" && value >= 0),
  tuning: boolean,
  notes: object,
  maxSequences: integer(1, Infinity),
  maxBatchTokens: integer(1, Infinity),
  pages: integer(1, Infinity),
  maxAdapters: integer(1, Infinity),
  memoryBudget: check("a number of bytes above 0", (value) => typeof value === "number" && value > 0),
} satisfies Record<keyof LoadOptions, Check>;

/** The options of `generate`. The token engine checks the ranges, because `generateTokens` needs the same checks. */
export const GENERATE_OPTIONS: Checks = {
  maxTokens: anything,
  temperature: anything,
  topK: anything,
  topP: anything,
  minP: anything,
  repetitionPenalty: anything,
  frequencyPenalty: anything,
  presencePenalty: anything,
  logitBias: check("a Map from token ids to numbers", (value) => value instanceof Map),
  seed: anything,
  priority: anything,
  whenFull: check('"stop" or { keep: n }', (value) => value === "stop" || isObject(value)),
  signal,
  adapter: text,
  raw: boolean,
  continueFinalMessage: boolean,
} satisfies Record<keyof GenerateOptions, Check>;

/** The options of createSession. */
export const SESSION_OPTIONS: Checks = { messages: list } satisfies Record<keyof SessionOptions, Check>;
