// Why an answer came from where it came, in plain words. A route flows in, text flows out.

import type { DecisionReason } from "../src/router/decision/decision.js";
import type { SwitchReason } from "../src/router/answer/events.js";
import type { Route, Side } from "./model.js";

const OTHER = { near: "far", far: "near" } as const;
const NAMES = { near: "this device", far: "the server" } as const;
/** What a reason says of the other side, or of the one that answers. A pin to a side that cannot answer is an error, not a route. */
const WORDS: Readonly<
  Record<Exclude<DecisionReason, `pinned_${string}`> | SwitchReason, string | ((side: Side, other: string) => string)>
> = {
  private: "private, so it stays here",
  mode: "the policy says so",
  pinned: "you chose it",
  prefer: "preferred",
  offline: "there is no network",
  circuit_open: (_, other) => `${other} failed a moment ago`,
  near_unavailable: "no model on this device",
  context: (_, other) => `too long for ${other}`,
  tools: (_, other) => `${other} takes no tools`,
  vision: (_, other) => `${other} takes no pictures`,
  language: (_, other) => `${other} does not know the language`,
  budget: "today's budget is spent",
  battery: "the battery is low",
  thermal: "this device is hot",
  seconds: (_, other) => `${other} would take too long`,
  quality: (side) => (side === "far" ? "the larger model is likelier right" : "likely right here"),
  cost: (side) => (side === "far" ? "likely as good, and cheaper" : "likely as good here"),
  escalated_logprob: "the near model became unsure",
  escalated_entropy: "the near model became unsure",
  escalated_repetition: "the near model repeated itself",
  escalated_schema: "the near answer left its form",
  near_failed: "this device failed",
  far_failed: "the server was lost",
  near_late: "this device was slow",
  near_timeout: "this device was slow",
  far_timeout: "the server was slow",
};

/** The words for why ``side`` answers; a reason of a later version as it is. */
export function reasonWords({ reason, side }: Pick<Route, "reason" | "side">): string {
  const words = Object.hasOwn(WORDS, reason) ? WORDS[reason as keyof typeof WORDS] : reason;
  return typeof words === "string" ? words : words(side, NAMES[OTHER[side]]);
}

/** "Near", or where an answer changed sides "Near, then far". */
export function sidesWords(sides: readonly Side[]): string {
  const words = sides.join(", then ");
  return words.charAt(0).toUpperCase() + words.slice(1);
}

/** For those who cannot see it, and for who points at it: what a mark in an answer says. */
export function markWords(route: Route): string {
  const place = route.switched_at === 0 ? "Written anew by" : "From here on by";
  return `${place} ${NAMES[route.side]}: ${reasonWords(route)}`;
}
