// The options of Hybrid.create and of its chats. Unknown names are errors, so that no misspelt label or limit is
// ignored.

import type { Check, Checks } from "../api/params.js";
import { CHAT_PARAMS } from "../api/chat_params.js";
import { STAKE_TYPES } from "../shared/agent/stake.js";
import { objectOf, typeOf } from "../shared/declared.js";

import type { FarOptions } from "./sides/far.js";
import type { HybridOptions } from "./hybrid.js";

/** The options of Hybrid.create. */
export const HYBRID_OPTIONS: Checks = {
  near: "any",
  far: "object",
  policy: "any",
  load: "object",
  fetch: "any",
  WebSocket: "any",
  ledger: "object",
  device: "object",
  clock: "object",
  probe: "object",
  embedder: "object",
  transcriber: "any",
  finder: "any",
  confirm: "any",
} satisfies Record<keyof HybridOptions, Check>;

/** The options of `far`; FarSide checks the address and the dialect. */
export const FAR_OPTIONS: Checks = {
  baseURL: "any",
  apiKey: "string",
  model: "string",
  dialect: "any",
  vision: "boolean",
  video: "boolean",
  sound: "boolean",
} satisfies Record<keyof FarOptions, Check>;

/** The parameters of a chat that two sides can answer. */
export const HYBRID_PARAMS: Checks = {
  ...CHAT_PARAMS,
  labels: "string[]",
  pin: "=near|far",
  language: "string",
  receipt: "boolean",
  stake: objectOf(STAKE_TYPES, typeOf).fault,
};
