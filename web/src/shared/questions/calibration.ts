// Fits how certain a model's decisions are to examples: a temperature and a bias for each answer of a question (Platt
// scaling of several classes; Guo et al. 2017), so that of the answers with a confidence of 0.8, four in five are right.

import { RequestError } from "../../errors.js";
import { shown } from "../declared.js";
import type { Decisions, Factors } from "./answers.js";
import { scaled } from "./answers.js";
import type { Asked, Question, Questions } from "./questions.js";
import { askedOf } from "./questions.js";
import type { DecisionCalibration, Scaling } from "./schema.js";

/** The decisions about one context, and the right answers to some of its questions, in the form of ``answer``. */
export interface DecisionExample {
  readonly decisions: Decisions;
  readonly answers: Readonly<Record<string, boolean | number | string | readonly string[]>>;
}

export interface FitOptions {
  /** The answers' ``calibration_model``; the calibration applies to no other one. */
  readonly model?: string | null | undefined;
  /** The weight of the prior, by which the factor is 1 and each bias is 0. By default 1. */
  readonly regularization?: number | null | undefined;
}

/** The log-probabilities of the answers, and which of them is right. */
interface Observation {
  readonly logprobs: readonly number[];
  readonly right: number;
}

/** Newton's method needs few steps; the objective is convex. */
const STEPS = 50;
/** A factor of a model whose answers say nothing, or the opposite. Temperatures end at 100. */
const LEAST_FACTOR = 0.01;

/** Throws RequestError for examples that do not fit the questions. Questions without an example stay as they are. */
export function fitCalibration(
  questions: Questions,
  examples: readonly DecisionExample[],
  { model = null, regularization }: FitOptions = {},
): DecisionCalibration {
  const weight = regularization ?? 1;
  if (!(Number.isFinite(weight) && weight > 0))
    throw new RequestError(`regularization is ${shown(regularization)}, it must be above 0`, {
      param: "regularization",
    });
  if (examples.length === 0) throw new RequestError("examples is empty; give at least one", { param: "examples" });
  const asked = askedOf(questions);
  const fitted = asked.flatMap((each): readonly (readonly [string, Scaling])[] => {
    const observed = examples.flatMap((example, index) => observation(questions, asked, each, example, index));
    return observed.length === 0 ? [] : [[each.key, scalingOf(fit(observed, each.answers.length, weight), each)]];
  });
  return { version: 1, model: model ?? null, examples: examples.length, questions: Object.fromEntries(fitted) };
}

function scalingOf({ factor, bias }: Factors, { answers }: Asked): Scaling {
  return { temperature: 1 / factor, bias: Object.fromEntries(answers.map((name, index) => [name, bias[index] ?? 0])) };
}

function observation(
  questions: Questions,
  asked: readonly Asked[],
  { name, key, answers }: Asked,
  example: DecisionExample,
  index: number,
): readonly Observation[] {
  const where = `examples[${index}]`;
  const given = Object.keys(example.answers).find((each) => !Object.hasOwn(questions, each));
  if (given !== undefined)
    throw new RequestError(`${where}.answers.${given} answers no question`, { param: `${where}.answers.${given}` });
  const truth = Object.hasOwn(example.answers, name) ? example.answers[name] : undefined;
  if (truth === undefined) return [];
  const place = asked.filter((each) => each.name === name).findIndex((each) => each.key === key);
  const logprobs = Object.hasOwn(example.decisions, name) ? example.decisions[name]?.logprobs[place] : undefined;
  if (logprobs?.length !== answers.length || !logprobs.every((each) => Number.isFinite(each)))
    throw new RequestError(`${where}.decisions.${name} is no decision about this question; decide it again`, {
      param: `${where}.decisions.${name}`,
    });
  const question = questions[name];
  const right = question === undefined ? -1 : rightOf(question, truth, place, answers);
  if (right < 0)
    throw new RequestError(`${where}.answers.${name} is ${shown(truth)}, which is no answer to the question`, {
      param: `${where}.answers.${name}`,
    });
  return [{ logprobs, right }];
}

/** The index of the right answer, -1 if it is none. */
function rightOf(question: Question, truth: unknown, place: number, answers: readonly string[]): number {
  if (question.type === "yes_no") return typeof truth === "boolean" ? Number(!truth) : -1;
  if (question.type === "score" && question.scale == null)
    return typeof truth === "number" ? answers.indexOf(String(truth)) : -1;
  if (question.type !== "labels") return typeof truth === "string" ? answers.indexOf(truth) : -1;
  const isSome = Array.isArray(truth) && truth.every((label) => question.labels.includes(label as string));
  return isSome ? Number(!truth.includes(question.labels[place])) : -1;
}

/**
 * The factor and the biases of the least loss: minus the log-likelihood of the right answers, and ``weight`` / 2 times
 * the square of the factor less 1 and of each bias.
 */
export function fit(observed: readonly Observation[], numAnswers: number, weight: number): Factors {
  let factors: Factors = { factor: 1, bias: Array.from({ length: numAnswers }, () => 0) };
  let loss = lossOf(observed, factors, weight);
  for (let step = 0; step < STEPS; step++) {
    const change = newtonStep(observed, factors, weight);
    // Halved until the loss falls, and the factor is one.
    let scale = 1;
    let next = moved(factors, change, scale);
    while (scale > 1e-9 && (next.factor < LEAST_FACTOR || lossOf(observed, next, weight) > loss))
      next = moved(factors, change, (scale /= 2));
    const lower = lossOf(observed, next, weight);
    if (!(lower < loss - 1e-12) || next.factor < LEAST_FACTOR) break;
    [factors, loss] = [next, lower];
  }
  return factors;
}

const moved = ({ factor, bias }: Factors, [first = 0, ...rest]: readonly number[], scale: number): Factors => ({
  factor: factor - scale * first,
  bias: bias.map((own, index) => own - scale * (rest[index] ?? 0)),
});

function lossOf(observed: readonly Observation[], factors: Factors, weight: number): number {
  const wrongness = observed.reduce((sum, { logprobs, right }) => {
    const scores = logprobs.map((each, index) => each * factors.factor + (factors.bias[index] ?? 0));
    const largest = Math.max(...scores);
    const total = scores.reduce((all, score) => all + Math.exp(score - largest), 0);
    return sum + largest + Math.log(total) - (scores[right] ?? 0);
  }, 0);
  const size = factors.bias.reduce((sum, each) => sum + each ** 2, (factors.factor - 1) ** 2);
  return wrongness + (weight / 2) * size;
}

/** The Hessian's inverse times the gradient, of the factor and then of the biases. */
function newtonStep(observed: readonly Observation[], factors: Factors, weight: number): readonly number[] {
  const size = factors.bias.length + 1;
  const gradient = [factors.factor - 1, ...factors.bias].map((each) => weight * each);
  const hessian = Array.from({ length: size }, (_, row) =>
    Array.from({ length: size }, (__, column) => (row === column ? weight : 0)),
  );
  for (const { logprobs, right } of observed) {
    const probabilities = scaled(logprobs, factors);
    // How each parameter moves the score of each answer: the log-probability, and 1 for the answer's own bias.
    const mean = probabilities.reduce((sum, each, index) => sum + each * (logprobs[index] ?? 0), 0);
    const means = [mean, ...probabilities];
    add(gradient, 0, mean - (logprobs[right] ?? 0));
    probabilities.forEach((each, index) => {
      add(gradient, index + 1, each - Number(index === right));
      const moves = new Map([
        [0, logprobs[index] ?? 0],
        [index + 1, 1],
      ]);
      for (const [row, first] of moves) {
        for (const [column, second] of moves) add(hessian[row] ?? [], column, each * first * second);
      }
    });
    means.forEach((first, row) => {
      means.forEach((second, column) => {
        add(hessian[row] ?? [], column, -first * second);
      });
    });
  }
  return solved(hessian, gradient);
}

function add(list: number[], index: number, more: number): void {
  list[index] = (list[index] ?? 0) + more;
}

/** Solves a positive definite system by elimination. */
function solved(matrix: readonly number[][], right: readonly number[]): readonly number[] {
  const rows = matrix.map((row, index) => [...row, right[index] ?? 0]);
  rows.forEach((pivot, at) => {
    for (const row of rows.slice(at + 1)) {
      const share = (row[at] ?? 0) / (pivot[at] ?? 1);
      for (let column = at; column < row.length; column++) add(row, column, -share * (pivot[column] ?? 0));
    }
  });
  const found: number[] = Array.from(right, () => 0);
  for (let at = rows.length - 1; at >= 0; at--) {
    const row = rows[at] ?? [];
    const known = found.reduce((sum, each, column) => sum + (column > at ? each * (row[column] ?? 0) : 0), 0);
    found[at] = ((row[rows.length] ?? 0) - known) / (row[at] ?? 1);
  }
  return found;
}
