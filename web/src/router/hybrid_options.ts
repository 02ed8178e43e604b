// What Hybrid.create takes, and what its chats take: what is misspelt is refused, lest a label or a limit go unheeded.

import type { Check, Checks } from "../api/params.js";
import { CHAT_PARAMS, anything, boolean, check, isStrings, object, only, text } from "../api/params.js";
import type { FarOptions } from "./sides/far.js";
import type { HybridOptions } from "./hybrid.js";

/** What Hybrid.create takes. */
export const HYBRID_OPTIONS: Checks = {
  near: anything,
  far: object,
  policy: anything,
  load: object,
  fetch: anything,
  WebSocket: anything,
  ledger: object,
  device: object,
  clock: object,
} satisfies Record<keyof HybridOptions, Check>;

/** What its `far` takes; FarSide says more of the address and the dialect. */
export const FAR_OPTIONS: Checks = {
  baseURL: anything,
  apiKey: text,
  model: text,
  dialect: anything,
  vision: boolean,
} satisfies Record<keyof FarOptions, Check>;

/** What a chat takes that two sides could answer. */
export const HYBRID_PARAMS: Checks = {
  ...CHAT_PARAMS,
  labels: check("a list of strings", isStrings),
  pin: only("near", "far"),
  language: text,
};
