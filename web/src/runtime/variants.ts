// Selects the kernels of a step: the manifest's rows that this device can run, and for one batch the first of them
// whose condition holds.

import type { DeviceError } from "../errors.js";
import { BundleError } from "../errors.js";
import type { Choices } from "./choices.js";
import { arrange, variantName } from "./choices.js";
import type { Dims } from "./expr.js";
import { holds, outcomes } from "./expr.js";
import type { ActivationEntry, Manifest, VariantEntry } from "./manifest.js";
import { plansOf } from "./plan.js";

export type ActivationDtype = ActivationEntry["dtype"];

/** The rows of a list that this device can run, in their order. Throws BundleError if it can run no row. */
export function usableRows(
  manifest: Manifest,
  list: string,
  activation: ActivationDtype,
  features: ReadonlySet<string>,
): readonly VariantEntry[] {
  const rows = manifest.variants[list]?.filter(
    (row) =>
      (row.activation === null || row.activation === activation) && row.needs.every((need) => features.has(need)),
  );
  if (rows === undefined || rows.length === 0) {
    throw new BundleError(
      `manifest.json: variants '${list}' has no row for ${activation} on this device; compile the bundle again`,
      {
        variants: list,
        activation,
      },
    );
  }
  return rows;
}

/**
 * The rows of all lists of the plans, by list: all rows that the device can run, or those that a batch within ``capacity``
 * can reach under ``choices``.
 */
export function selectRows(
  manifest: Manifest,
  activation: ActivationDtype,
  features: ReadonlySet<string>,
  choices: Choices | null,
  capacity: Dims,
): ReadonlyMap<string, readonly VariantEntry[]> {
  const lists = new Set(plansOf(manifest).flatMap(({ steps }) => steps.map((step) => step.variants)));
  return new Map(
    [...lists].map((list) => {
      const rows = usableRows(manifest, list, activation, features);
      const selected = choices === null ? rows : within(arrange(rows, list, choices), capacity);
      const names = new Set(selected.map(variantName));
      return [list, rows.filter((row) => names.has(variantName(row)))] as const;
    }),
  );
}

/** The rows, in the order in which a batch tries them, that a batch within the capacity can reach. */
function within(rows: readonly VariantEntry[], capacity: Dims): readonly VariantEntry[] {
  const found = rows.map(({ when }) => outcomes(when, capacity));
  const always = found.findIndex(({ every }) => every);
  return rows.filter((_, index) => found[index]?.some === true && (always < 0 || index <= always));
}

/** The rows without refused kernels. Throws the refusal if a list has no rows left. */
export function rowsWithout(
  rows: ReadonlyMap<string, readonly VariantEntry[]>,
  refused: ReadonlyMap<string, DeviceError>,
): ReadonlyMap<string, readonly VariantEntry[]> {
  return new Map(
    [...rows].map(([list, all]) => {
      const remaining = all.filter(({ kernels }) => !kernels.some((name) => refused.has(name)));
      const refusal =
        remaining.length > 0
          ? undefined
          : all.flatMap(({ kernels }) => kernels.flatMap((name) => refused.get(name) ?? []))[0];
      if (refusal !== undefined) throw refusal;
      return [list, remaining] as const;
    }),
  );
}

/** The first row that fits the batch. Throws BundleError if no row fits. */
export function chooseRow<Row extends Pick<VariantEntry, "when">>(rows: readonly Row[], dims: Dims): Row {
  const row = rows.find(({ when }) => holds(when, dims));
  if (row === undefined) {
    throw new BundleError(
      `manifest.json: no variant fits a batch of ${JSON.stringify(dims)}; compile the bundle again`,
    );
  }
  return row;
}
