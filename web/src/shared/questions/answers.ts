// Reads decisions from the log-probabilities of answers: normalised over the answers of a question, calibrated, and
// withheld if they are not certain enough.

import { RequestError } from "../../errors.js";
import { isObject, shown } from "../declared.js";
import type { Asked, Question, Questions } from "./questions.js";
import { askedOf } from "./questions.js";
import type { DecidedAnswer, DecisionCalibration, Scaling } from "./schema.js";

export type Decisions = Readonly<Record<string, DecidedAnswer>>;

export interface ReadingOptions {
  /** The model that answered, by the name in its manifest; a calibration of another one is an error. */
  readonly model?: string | null | undefined;
  readonly calibration?: DecisionCalibration | null | undefined;
  /** A decision whose confidence is lower has no answer. */
  readonly abstain_below?: number | null | undefined;
}

/** ``logprobs``: of each prompt of `askedOf`, the log-probability of each answer. Throws RequestError. */
export function readDecisions(
  questions: Questions,
  logprobs: readonly (readonly number[])[],
  { model, calibration, abstain_below: bound }: ReadingOptions = {},
): Decisions {
  const asked = checkReading(questions, { model, calibration, abstain_below: bound });
  const rows = asked.map((each, index) => {
    const own = logprobs[index] ?? [];
    const scaling = scalingOf(calibration, each.key);
    return { ...each, logprobs: own, probabilities: scaled(own, scaling && factorsOf(scaling, each.answers)) };
  });
  const decided = Object.entries(questions).map(([name, question]) => {
    const own = rows.filter((row) => row.name === name);
    return [name, decisionOf(question, own, bound ?? 0)] as const;
  });
  return Object.fromEntries(decided);
}

/** What `readDecisions` checks before anything is computed; returns the prompts. Throws RequestError. */
export function checkReading(
  questions: Questions,
  { model, calibration, abstain_below: bound }: ReadingOptions,
): readonly Asked[] {
  const asked = askedOf(questions);
  if (bound != null && !(typeof bound === "number" && bound >= 0 && bound <= 1))
    throw new RequestError(`abstain_below is ${shown(bound)}, it must be a number from 0 to 1`, {
      param: "abstain_below",
    });
  if (calibration == null) return asked;
  const { version, questions: scalings } = Object(calibration) as Readonly<Record<string, unknown>>;
  if (version !== 1 || !isObject(scalings)) throw unfit("calibration", "is not one that fitCalibration has made");
  if (model != null && calibration.model != null && calibration.model !== model)
    throw otherModel(calibration.model, model);
  for (const { key, answers } of asked) {
    const scaling = scalingOf(calibration, key);
    if (scaling !== null) factorsOf(scaling, answers, `calibration.questions.${key}`);
  }
  return asked;
}

function scalingOf(calibration: DecisionCalibration | null | undefined, key: string): Scaling | null {
  return calibration != null && Object.hasOwn(calibration.questions, key) ? (calibration.questions[key] ?? null) : null;
}

/** Beyond these, the scores of answers would be no numbers. */
const TEMPERATURES = [1e-6, 1e6] as const;

/** The factor of a log-probability, and what is added for each answer. */
export interface Factors {
  readonly factor: number;
  readonly bias: readonly number[];
}

function factorsOf({ temperature, bias }: Scaling, answers: readonly string[], where = "calibration"): Factors {
  const [least, most] = TEMPERATURES;
  if (!(Number.isFinite(temperature) && temperature >= least && temperature <= most))
    throw unfit(where, `has the temperature ${shown(temperature)}, which must be from ${least} to ${most}`);
  const numbers = answers.map((answer) => (isObject(bias) && Object.hasOwn(bias, answer) ? bias[answer] : undefined));
  const lacking = answers[numbers.findIndex((number) => !Number.isFinite(number))];
  if (lacking !== undefined) throw unfit(where, `has no bias of the answer ${shown(lacking)}`);
  const other = Object.keys(bias).find((answer) => !answers.includes(answer));
  if (other !== undefined) throw unfit(where, `has a bias of ${shown(other)}, which is no answer of the question`);
  return { factor: 1 / temperature, bias: numbers as readonly number[] };
}

function unfit(where: string, what: string): RequestError {
  return new RequestError(`${where} ${what}; fit it to this model's answers to these questions`, {
    param: "calibration",
    code: "calibration_differs",
  });
}

export function otherModel(fitted: string, model: string): RequestError {
  return unfit("calibration", `was fitted to ${fitted}, and this model is ${model}`);
}

/** The softmax of the answers. */
export function scaled(logprobs: readonly number[], factors: Factors | null): readonly number[] {
  const scores = logprobs.map((logprob, index) =>
    factors === null ? logprob : logprob * factors.factor + (factors.bias[index] ?? 0),
  );
  const largest = Math.max(...scores);
  const weights = scores.map((score) => Math.exp(score - largest));
  const sum = weights.reduce((total, weight) => total + weight, 0);
  return weights.map((weight) => weight / sum);
}

interface Row extends Asked {
  readonly logprobs: readonly number[];
  readonly probabilities: readonly number[];
}

const massOf = ({ logprobs }: Row): number => logprobs.reduce((sum, logprob) => sum + Math.exp(logprob), 0);
const certainty = (probability: number): number => Math.max(probability, 1 - probability);

function decisionOf(question: Question, rows: readonly Row[], bound: number): DecidedAnswer {
  const shared = {
    type: question.type,
    mass: Math.min(...rows.map(massOf)),
    logprobs: rows.map(({ logprobs }) => logprobs),
  };
  if (question.type === "labels") {
    const holds = rows.map(
      ({ probabilities }, index) => [question.labels[index] ?? "", probabilities[0] ?? 0] as const,
    );
    const unsure = holds.filter(([, probability]) => certainty(probability) < bound).map(([label]) => label);
    const held = holds.filter(([label, probability]) => probability >= 0.5 && !unsure.includes(label));
    return {
      ...shared,
      answer: unsure.length > 0 ? null : held.map(([label]) => label),
      confidence: Math.min(...holds.map(([, probability]) => certainty(probability))),
      probabilities: Object.fromEntries(holds),
      ...(unsure.length > 0 && { unsure }),
    };
  }
  const { answers = [], probabilities = [] } = rows[0] ?? {};
  const confidence = Math.max(...probabilities);
  const best = probabilities.indexOf(confidence);
  const isRange = question.type === "score" && question.scale == null;
  const value = answers[best] ?? "";
  const answer = question.type === "yes_no" ? best === 0 : isRange ? Number(value) : value;
  const level = (index: number): number => (isRange ? Number(answers[index]) : index);
  return {
    ...shared,
    answer: confidence < bound ? null : answer,
    confidence,
    probabilities: Object.fromEntries(answers.map((name, index) => [name, probabilities[index] ?? 0])),
    ...(question.type === "score" && {
      expectation: probabilities.reduce((sum, probability, index) => sum + probability * level(index), 0),
    }),
  };
}
