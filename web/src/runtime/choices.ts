// Choices: the rows of a list that may run on this device, and the order in which a batch tries them.
//
// A row's condition has two parts. Equalities, such as S == B (one new token of every sequence), are structural: if
// they do not hold, the row computes wrong results. Inequalities, such as S <= 4, are preferences: if they do not hold,
// the row is correct, but slower as far as the compiler knew.

import type { Condition, TunedRow, VariantEntry } from "./manifest.js";

export interface Choices {
  /** Names of variants that must not run. */
  readonly off: ReadonlySet<string>;
  /** By list, the rows that are tried before the list's own rows. */
  readonly front: Front;
}

export type Front = Readonly<Record<string, readonly TunedRow[]>>;

export const NO_CHOICES: Choices = { off: new Set(), front: {} };

/** The name of a row in choices, tuning records and messages. */
export function variantName(row: Pick<VariantEntry, "kernels">): string {
  return row.kernels.join("+");
}

/** The structural part of a condition: if it does not hold, the row computes wrong results. */
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
  // If the row for a size is switched off, a row for other sizes replaces it.
  const last = on.filter(({ when }) => when !== null).map((row) => ({ ...row, when: structural(row.when) }));
  return reachable([...first, ...on, ...last]);
}

/**
 * Leaves out rows that no batch reaches: rows after a row with the same condition, or after a row without a condition.
 */
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
