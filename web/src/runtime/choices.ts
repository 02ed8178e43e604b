// Choices: which of a list's rows may run on this device, and in what order. A list's rows and what was found out about the device flow in, the rows
// in the order in which a batch tries them flow out.
//
// A row's condition has two parts. Equalities, such as S == B (one new token of every sequence), are structural: elsewhere the row is wrong.
// Inequalities, such as S <= 4, are preferences: the row is right beyond them, only slower as far as the compiler knew.

import type { Condition, TunedRow, VariantEntry } from "./manifest.js";

export interface Choices {
  /** Names of variants that must not run. */
  readonly off: ReadonlySet<string>;
  /** By list, rows that go in front of its own. */
  readonly front: Front;
}

export type Front = Readonly<Record<string, readonly TunedRow[]>>;

export const NO_CHOICES: Choices = { off: new Set(), front: {} };

/** How choices, tuning records and messages name a row. */
export function variantName(row: Pick<VariantEntry, "kernels">): string {
  return row.kernels.join("+");
}

/** The part of a condition without which a row is wrong. */
export function structural(when: Condition): Condition {
  if (when === null || when[0] === "==") return when;
  return when[0] === "and" ? both(structural(when[1] as Condition), structural(when[2] as Condition)) : null;
}

/** The rows of a list in the order in which a batch tries them. */
export function arrange<Row extends Pick<VariantEntry, "kernels" | "when">>(
  rows: readonly Row[],
  list: string,
  { off, front }: Choices,
): readonly Row[] {
  const on = rows.filter((row) => !off.has(variantName(row)));
  const first = (front[list] ?? []).flatMap(({ when, variant }) =>
    on.filter((row) => variantName(row) === variant).map((row) => ({ ...row, when: both(structural(row.when), when) })),
  );
  // Where the row for a size is off, one that was meant for other sizes takes its place.
  const last = on.filter(({ when }) => when !== null).map((row) => ({ ...row, when: structural(row.when) }));
  return reachable([...first, ...on, ...last]);
}

/** Leaves out what no batch comes to: rows behind one of the same condition, or behind one without any. */
function reachable<Row extends Pick<VariantEntry, "when">>(rows: readonly Row[]): readonly Row[] {
  const conditions = rows.map(({ when }) => JSON.stringify(when));
  const always = conditions.indexOf("null");
  return rows.filter(
    (_, index) => (always < 0 || index <= always) && conditions.indexOf(conditions[index] ?? "") === index,
  );
}

function both(left: Condition, right: Condition): Condition {
  if (left === null || right === null) return left ?? right;
  return ["and", left, right];
}
