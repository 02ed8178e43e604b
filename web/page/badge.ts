// The line below an answer that says who wrote it, why, and in what time; and the facts of the route in its details.

import { make } from "./elements.js";
import { formatMs } from "./format.js";
import type { Route, Side } from "./model.js";
import { reasonWords, sidesWords } from "./route_words.js";
import { leavingList } from "./what_leaves.js";

/** ``totalMs`` is null while the answer grows. */
export function badge(route: Route, sides: readonly Side[], totalMs: number | null): HTMLElement {
  const dots = sides.map((side) => {
    const dot = make("span", "dot");
    dot.dataset.side = side;
    return dot;
  });
  const time = totalMs === null ? [] : [make("span", "number", formatMs(totalMs))];
  return make(
    "span",
    "sided",
    make("span", "badge", ...dots, sidesWords(sides)),
    ...time,
    make("span", "reason", reasonWords(route)),
  );
}

/** The facts that the router knew when it decided. */
export function routeFacts(route: Route, host: string): readonly (readonly [string, string | Node | null])[] {
  const {
    near_right: near,
    far_right: far,
    near_total_seconds: nearSeconds,
    far_total_seconds: farSeconds,
    far_usd: usd,
  } = route.scores;
  return [
    ["Answered", route.side === "near" ? "on this device" : `by ${host}`],
    ["Why", reasonWords(route)],
    ["Changed sides", changed(route)],
    ["Left this device", left(route)],
    ["Expected to be right", both(near, far, (share) => `${(100 * share).toFixed(0)}%`)],
    ["Expected time", both(nearSeconds, farSeconds, (seconds) => formatMs(1000 * seconds))],
    ["Expected price", usd === null || usd === undefined || usd === 0 ? null : `$${usd.toPrecision(2)}`],
  ];
}

/** Word for word, under a policy that masks. */
function left({ masked: texts = [] }: Route): HTMLElement | null {
  return texts.length === 0 ? null : leavingList(texts);
}

function changed({ switched_at: switchedAt }: Route): string | null {
  if (switchedAt === null) return null;
  return switchedAt === 0 ? "at its start" : `after ${switchedAt} characters`;
}

function both(
  near: number | null | undefined,
  far: number | null | undefined,
  format: (value: number) => string,
): string | null {
  if (typeof near !== "number" || typeof far !== "number") return null;
  return `near ${format(near)}, far ${format(far)}`;
}
