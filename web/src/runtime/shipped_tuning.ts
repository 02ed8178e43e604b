// Finds the tuning record of a device among those that a bundle ships.

import type { OpenDevice } from "./device.js";
import type { AdapterEntry, TuningEntry } from "./manifest.js";

/** What identifies a device in a tuning record, which holds the measurements on an adapter. */
type Device = Pick<OpenDevice, "activation" | "adapterEntry">;

const PARTS = ["vendor", "architecture", "device", "description"] as const satisfies readonly (keyof AdapterEntry)[];

/**
 * The record whose adapter parts all equal those of this device, except empty ones. If several records match, the one
 * with the most parts. A record without any part matches no adapter.
 */
export function shippedTuning(
  records: readonly TuningEntry[],
  { activation, adapterEntry }: Device,
): TuningEntry | null {
  const fitting = records
    .filter(
      (record) =>
        record.activation === activation &&
        PARTS.every((part) => ["", adapterEntry[part]].includes(record.adapter[part])),
    )
    .map((record) => ({ record, parts: PARTS.filter((part) => record.adapter[part] !== "").length }))
    .filter(({ parts }) => parts > 0)
    .sort((a, b) => b.parts - a.parts);
  return fitting[0]?.record ?? null;
}
