// tuning.js: measures what suits a device. A page loads it for a device that has no complete record.

import type { TuningEntry } from "../runtime/manifest.js";
import type { Runner } from "../runtime/runner.js";
import type { TuneOptions } from "./batches.js";
import { timeDecode } from "./decode.js";
import type { SteppedRunner } from "./steps.js";
import { chooseChunk } from "./steps.js";
import type { TimedRunner } from "./variants.js";
import { fastestVariants } from "./variants.js";

export type { TuneOptions } from "./batches.js";

/** The part of a record that is measured. */
export type Measured = Pick<TuningEntry, "variants" | "steps">;

/**
 * Measure what a device's record does not contain. From now on the runner uses the chunk and the variants that are found;
 * the variants are measured with this chunk, and the steps that check drafts with these variants. Throws what the runner
 * throws, and the signal's reason.
 */
async function measure(
  runner: SteppedRunner & TimedRunner & Pick<Runner, "choose" | "mayDraft">,
  record: TuningEntry | null,
  options: TuneOptions,
): Promise<Measured> {
  const { tokens, chunk: least = tokens } = runner.limits;
  const chunk = record?.steps?.chunk ?? (tokens > least ? await chooseChunk(runner, options) : null);
  const variants = record?.variants ?? (await fastestVariants(runner, options));
  runner.choose({ off: options.choices.off, front: variants });
  const decode = record?.steps?.decode ?? (runner.mayDraft ? await timeDecode(runner, options) : null);
  return { variants, steps: chunk === null && decode === null ? null : { chunk, decode } };
}

export const tuning = { measure };

export type TuningModule = typeof tuning;
