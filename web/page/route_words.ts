// Says in plain words why a side answered.

import type { DecisionReason } from "../src/shared/decision/decision.js";
import type { SwitchReason } from "../src/shared/router/events.js";
import type { Route, Side } from "./model.js";

const OTHER = { near: "far", far: "near" } as const;
const NAMES = { near: "this device", far: "the server" } as const;
/** The words of each reason. A pin to a side that cannot answer is an error, so it has no words here. */
const WORDS: Readonly<
  Record<Exclude<DecisionReason, `pinned_${string}`> | SwitchReason, string | ((side: Side, other: string) => string)>
> = {
  private: "private, so it stays here",
  media: "pictures, videos and sound stay here",
  mode: "the policy decides so",
  pinned: "you chose it",
  prefer: "preferred",
  offline: "there is no network",
  circuit_open: (_, other) => `${other} failed a moment ago`,
  near_unavailable: "no model was ready on this device",
  context: (_, other) => `too long for ${other}`,
  tools: (_, other) => `${other} does not support tools`,
  vision: (_, other) => `${other} does not support images`,
  video: (_, other) => `${other} does not support videos`,
  sound: (_, other) => `${other} does not support sound`,
  language: (_, other) => `${other} does not know the language`,
  budget: "today's budget is spent",
  battery: "the battery is low",
  thermal: "this device is hot",
  seconds: (_, other) => `${other} would take too long`,
  quality: (side) => (side === "far" ? "the larger model is more likely to be right" : "likely to be right here"),
  cost: (side) => (side === "far" ? "probably as good, and cheaper" : "probably as good here"),
  step: (side) => (side === "far" ? "a hard or late step of the agent" : "an easy step of the agent"),
  escalated_logprob: "the near model became unsure",
  escalated_entropy: "the near model became unsure",
  escalated_repetition: "the near model repeated itself",
  escalated_schema: "the near answer did not match its schema",
  near_failed: "this device failed",
  far_failed: "the connection to the server was lost",
  near_late: "this device was slow",
  near_timeout: "this device was slow",
  resumed: "the answer started over after the page was loaded again",
  far_timeout: "the server was slow",
};

/** Why ``side`` answers. A reason of a later version is returned as it is. */
export function reasonWords({ reason, side }: Pick<Route, "reason" | "side">): string {
  const words = Object.hasOwn(WORDS, reason) ? WORDS[reason as keyof typeof WORDS] : reason;
  return typeof words === "string" ? words : words(side, NAMES[OTHER[side]]);
}

/** "Near", or "Near, then far" if an answer changed sides. */
export function sidesWords(sides: readonly Side[]): string {
  const words = sides.join(", then ");
  return words.charAt(0).toUpperCase() + words.slice(1);
}

/** The label of a mark in an answer, for screen readers and for the tooltip. */
export function markWords(route: Route): string {
  const start = route.switched_at === 0 ? "Written again by" : "From here on by";
  return `${start} ${NAMES[route.side]}: ${reasonWords(route)}`;
}
