// Zero-shot classification: how likely a text entails a hypothesis about each label, by a classifier of natural language
// inference. Yin et al. 2019; the probabilities are those of transformers' pipeline.

import { RequestError } from "../errors.js";
import { requireUnicode } from "./unicode.js";

export const HYPOTHESIS_TEMPLATE = "This example is {}.";

/** ``entailment`` and ``contradiction`` are the classifier's labels that say whether a text entails a hypothesis. */
export interface Hypotheses {
  readonly texts: readonly string[];
  readonly entailment: number;
  readonly contradiction: number;
}

/** Which of ``labels`` a text has, is read from a hypothesis for each, in which the label stands for {}. */
export interface ZeroShot {
  readonly labels: readonly string[];
  readonly hypothesis_template?: string | null | undefined;
}

/** Throws RequestError for labels and templates that make no hypotheses, and for a model of another kind. */
export function zeroShotHypotheses(
  classifier: { readonly labels: readonly string[]; readonly per_token: boolean },
  { labels, hypothesis_template: template }: ZeroShot,
): Hypotheses {
  if (labels.length === 0) throw new RequestError("labels is empty; give at least one", { param: "labels" });
  const wrong = labels.findIndex((label, index) => label === "" || labels.indexOf(label) < index);
  if (wrong >= 0) {
    const what = labels[wrong] === "" ? "is empty" : `is ${JSON.stringify(labels[wrong])}, as an earlier one is`;
    throw new RequestError(`labels[${wrong}] ${what}; labels must differ`, { param: `labels[${wrong}]` });
  }
  const written = template ?? HYPOTHESIS_TEMPLATE;
  const parts = written.split("{}");
  if (parts.length !== 2)
    throw wrongTemplate(`has {} ${parts.length - 1} times; write it once, where the label belongs`);
  // To transformers, {{ is an escape, and {label} a name.
  if (/[{}]/.test(parts.join(""))) throw wrongTemplate("has a brace besides {}, where the label belongs; remove it");
  requireUnicode(written, "hypothesis_template");
  labels.forEach((label, index) => {
    requireUnicode(label, `labels[${index}]`);
  });
  return { texts: labels.map((label) => parts.join(label)), ...answersOf(classifier) };
}

function wrongTemplate(what: string): RequestError {
  return new RequestError(`hypothesis_template ${what}`, { param: "hypothesis_template" });
}

function answersOf({ labels, per_token: ofTokens }: Parameters<typeof zeroShotHypotheses>[0]): {
  readonly entailment: number;
  readonly contradiction: number;
} {
  const names = labels.map((label) => label.toLowerCase());
  const entailment = names.findIndex((name) => name.startsWith("entail"));
  const contradiction = [/^contradict/, /^no[nt][-_ ]?entail/]
    .map((pattern) => names.findIndex((name) => pattern.test(name)))
    .find((index) => index >= 0);
  if (ofTokens || entailment < 0 || contradiction === undefined) {
    const known = labels.slice(0, 8).map((label) => JSON.stringify(label));
    throw new RequestError(
      `this model's labels are ${known.join(", ")}${labels.length > known.length ? ", ..." : ""}; labels of a request ` +
        'need a classifier of natural language inference, which labels pairs of texts "entailment" and ' +
        '"contradiction", or "not_entailment"',
      { param: "model" },
    );
  }
  return { entailment, contradiction };
}

/**
 * The probability of each label, from the classifier's ``scores`` of its hypothesis. They add up to 1; with
 * ``multiLabel``, or a single label, each is that of entailment against contradiction.
 */
export function zeroShotProbabilities(
  { entailment, contradiction }: Omit<Hypotheses, "texts">,
  scores: readonly (readonly number[])[],
  multiLabel: boolean,
): readonly number[] {
  const of = (row: readonly number[], label: number): number => row[label] ?? NaN;
  if (multiLabel || scores.length === 1)
    return scores.map((row) => softmax([of(row, entailment), of(row, contradiction)])[0] ?? NaN);
  return softmax(scores.map((row) => of(row, entailment)));
}

function softmax(scores: readonly number[]): readonly number[] {
  const largest = Math.max(...scores);
  const weights = scores.map((score) => Math.exp(score - largest));
  const sum = weights.reduce((total, weight) => total + weight, 0);
  return weights.map((weight) => weight / sum);
}
