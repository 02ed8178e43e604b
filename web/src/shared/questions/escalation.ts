// Decisions over two sides: near decides, and far decides what near leaves open, if the policy hands answers over and no
// rule keeps the request on the device. The page and Python share these rules.

import type { Side } from "../decision/decision.js";
import type { Escalation } from "../decision/policy_schema.js";
import type { Decisions } from "./answers.js";
import { otherModel } from "./answers.js";
import type { Questions } from "./questions.js";
import { askedOf } from "./questions.js";
import type { DecisionCalibration } from "./schema.js";

/** The decisions of both sides, and which side made each. */
export interface SharedDecisions {
  readonly decisions: Decisions;
  readonly sides: Readonly<Record<string, Side>>;
}

/**
 * The questions for far after ``side`` has decided; none if far may not be asked. ``standby``: no hard rule (private, a
 * pin, the mode, the budget) forbids it.
 */
export function handedOver(
  { escalation }: { readonly escalation: Pick<Escalation, "then"> },
  { side, standby }: { readonly side: Side; readonly standby: boolean },
  questions: Questions,
  decisions: Decisions,
): Questions {
  const mayAsk = side === "near" && standby && escalation.then !== "never";
  const open = Object.entries(questions).filter(([name]) => mayAsk && decisions[name]?.answer === null);
  return Object.fromEntries(open);
}

/** ``far``: what far has decided after the side that answered first. Questions that far leaves out stay as they are. */
export function merged(side: Side, first: Decisions, far: Decisions): SharedDecisions {
  const sides = Object.keys(first).map((name) => [name, Object.hasOwn(far, name) ? "far" : side] as const);
  return { decisions: { ...first, ...far }, sides: Object.fromEntries(sides) };
}

/**
 * The calibration of these questions for the ``model`` of a side: none if it was fitted to the ``other`` side's. Other
 * questions of it may be private. ``others`` are the models of the other side, null if it is not known. Throws
 * RequestError for a calibration that fits neither side.
 */
export function calibrationFor(
  calibration: DecisionCalibration | null | undefined,
  model: string,
  others: readonly string[] | null,
  questions: Questions,
): DecisionCalibration | null {
  if (calibration == null) return null;
  if (calibration.model != null && calibration.model !== model) {
    if (others?.includes(calibration.model) === false)
      throw otherModel(calibration.model, [model, ...others].join(" or "));
    return null;
  }
  const keys = new Set(askedOf(questions).map(({ key }) => key));
  const own = Object.entries(calibration.questions).filter(([key]) => keys.has(key));
  return { ...calibration, questions: Object.fromEntries(own) };
}
