// Which kernel runs a step. The manifest's rows, the chosen activation dtype and the device's features flow in; the rows that can run flow out,
// and for one batch the first of them whose condition holds.

import { BundleError } from "../errors.js";
import type { Dims } from "./expr.js";
import { holds } from "./expr.js";
import type { ActivationEntry, Manifest, VariantEntry } from "./manifest.js";

export type ActivationDtype = ActivationEntry["dtype"];

/**
 * The rows of a list that this device may come to run, in their order: not those for other devices, nor those behind a row of the same condition.
 * Throws BundleError where there are none.
 */
export function usableRows(manifest: Manifest, list: string, activation: ActivationDtype, features: ReadonlySet<string>): readonly VariantEntry[] {
  const fitting = manifest.variants[list]?.filter(
    (row) => (row.activation === null || row.activation === activation) && row.needs.every((need) => features.has(need)),
  );
  const conditions = fitting?.map(({ when }) => JSON.stringify(when));
  const rows = fitting?.filter((_, index) => conditions?.indexOf(conditions[index] ?? "") === index);
  if (rows === undefined || rows.length === 0) {
    throw new BundleError(`manifest.json: variants '${list}' has no row for ${activation} on this device; compile the bundle again`, {
      variants: list,
      activation,
    });
  }
  return rows;
}

/** The first row that fits the batch. Throws BundleError where none does. */
export function chooseRow<Row extends Pick<VariantEntry, "when">>(rows: readonly Row[], dims: Dims): Row {
  const row = rows.find(({ when }) => holds(when, dims));
  if (row === undefined) {
    throw new BundleError(`manifest.json: no variant fits a batch of ${JSON.stringify(dims)}; compile the bundle again`);
  }
  return row;
}
