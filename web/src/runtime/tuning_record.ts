// Tuning records: what was measured on an adapter. Records flow in, the one for this device flows out.

import type { OpenDevice } from "./device.js";
import type { AdapterEntry, TuningEntry } from "./manifest.js";

type Device = Pick<OpenDevice, "activation" | "adapterEntry">;

const PARTS = ["vendor", "architecture", "device", "description"] as const satisfies readonly (keyof AdapterEntry)[];

/** The record whose adapter's every given part is this one's; of several the one that gives most. One that gives no part is of no adapter. */
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

/** The record that an earlier load measured here. */
export async function rememberedTuning(
  note: { read(): Promise<unknown> },
  { activation, adapterEntry }: Device,
): Promise<TuningEntry | null> {
  const variants = (await note.read()) as TuningEntry["variants"] | undefined;
  return variants === undefined ? null : { adapter: adapterEntry, activation, variants };
}
