// What Hybrid.create takes, and what its chats take: what is misspelt is refused, lest a label or a limit go unheeded.

import type { Check, Checks } from "../api/params.js";
import { CHAT_PARAMS, any, boolean, check, isStrings, object, only, text } from "../api/params.js";
import type { FarOptions } from "./sides/far.js";
import type { HybridOptions } from "./hybrid.js";

/** What Hybrid.create takes. */
export const HYBRID_OPTIONS: Checks = {
  near: any,
  far: object,
  policy: any,
  load: object,
  fetch: any,
  WebSocket: any,
  ledger: object,
  device: object,
  clock: object,
} satisfies Record<keyof HybridOptions, Check>;

/** What its `far` takes; FarSide says more of the address and the dialect. */
export const FAR_OPTIONS: Checks = { baseURL: any, apiKey: text, model: text, dialect: any, vision: boolean } satisfies Record<keyof FarOptions, Check>;

/** What a chat takes that two sides could answer. */
export const HYBRID_PARAMS: Checks = {
  ...CHAT_PARAMS,
  labels: check("a list of strings", isStrings),
  pin: only("near", "far"),
  language: text,
};
