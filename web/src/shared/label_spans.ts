// The spans that the labels of a text's tokens form, of which "O" is outside.
//
// By the BIOES scheme, a span of several tokens begins (B-), goes on (I-) and ends (E-), and a single token is a span of
// its own (S-); BILOU writes L- and U- for the last two. Tokens get the labels of the best path that consists of such
// spans (Viterbi 1967), so that no span begins without an end.
//
// Labels without ends (B- and I-, or names alone) allow every path: some models begin each span with B-, others only
// one that follows another of its kind. Each token gets the kind whose labels together are the most likely, so that a
// token whose probability is divided between B- and I- is not outside.

import { BundleError } from "../errors.js";
import type { TransitionSpec } from "../runtime/manifest.js";

const OUTSIDE = "O";

/** The tokens from ``first`` to ``last``, both included. */
export interface LabelSpan {
  readonly label: string;
  readonly first: number;
  readonly last: number;
}

export interface LabelledTokens {
  /** The index of each token's label, (T,). */
  readonly best: readonly number[];
  readonly spans: readonly LabelSpan[];
}

/** The labels of a kind of span: of its first token, one inside, the last one, and a single one. */
interface Kind {
  readonly begin: number;
  readonly inside: number;
  readonly end: number;
  readonly single: number;
}

/**
 * The labels of tokens with ``scores`` (T, L), row by row, before any activation, and their spans. Without
 * ``transitions`` each token gets its kind by itself. Null if no label is outside of spans. Throws BundleError for
 * transitions of labels that are neither BIOES nor BILOU.
 */
export function labelSpans(
  labels: readonly string[],
  transitions: TransitionSpec | null,
  scores: ArrayLike<number>,
): LabelledTokens | null {
  if (transitions !== null) return bestPath(labels, transitions, scores);
  return labels.includes(OUTSIDE) ? likeliestKinds(labels, scores) : null;
}

/** The kind that a label names: "PER" of "B-PER" and of "PER"; null of "O". */
export function kindOfLabel(label: string): string | null {
  return label === OUTSIDE ? null : (/^[BIESLU]-(.+)$/s.exec(label)?.[1] ?? label);
}

function likeliestKinds(labels: readonly string[], scores: ArrayLike<number>): LabelledTokens {
  const kinds = labels.map(kindOfLabel);
  const best: number[] = [];
  const spans: { label: string; first: number; last: number }[] = [];
  let isOpen = false;
  for (let token = 0; token < scores.length / labels.length; token++) {
    const label = likeliest(kinds, (index) => scores[token * labels.length + index] ?? -Infinity);
    const [kind = null, part] = [kinds[label], partOf(labels[label] ?? "")];
    const last = spans.at(-1);
    best.push(label);
    if (kind !== null && isOpen && last?.label === kind && !/[BSU]/.test(part)) last.last = token;
    else if (kind !== null) spans.push({ label: kind, first: token, last: token });
    isOpen = kind !== null && !/[ELSU]/.test(part);
  }
  return { best, spans };
}

/** The best label of the kind whose labels together are the most likely. */
function likeliest(kinds: readonly (string | null)[], scoreOf: (label: number) => number): number {
  const top = Math.max(...kinds.map((_, label) => scoreOf(label)));
  const sums = new Map<string | null, number>();
  kinds.forEach((kind, label) => sums.set(kind, (sums.get(kind) ?? 0) + Math.exp(scoreOf(label) - top)));
  const most = Math.max(...sums.values());
  let best = -1;
  kinds.forEach((kind, label) => {
    if (sums.get(kind) === most && (best < 0 || scoreOf(label) > scoreOf(best))) best = label;
  });
  return best;
}

function bestPath(labels: readonly string[], transitions: TransitionSpec, scores: ArrayLike<number>): LabelledTokens {
  const kinds = kindsOf(labels);
  const outside = labels.indexOf(OUTSIDE);
  const count = labels.length;
  const tokens = scores.length / count;
  // The label before each label of each token, and the best sum of a path to each label of a token.
  const before = new Uint32Array(scores.length);
  let sums = new Float64Array(count);
  let next = new Float64Array(count);
  for (const { inside, end } of kinds) sums[inside] = sums[end] = -Infinity;
  const sum = (label: number): number => sums[label] ?? -Infinity;
  const ended = (): number => {
    let best = kinds[0]?.end ?? outside;
    for (const { end, single } of kinds) {
      if (sum(end) > sum(best)) best = end;
      if (sum(single) > sum(best)) best = single;
    }
    return best;
  };
  for (let token = 0; token < tokens; token++) {
    const first = token * count;
    const step = (label: number, previous: number, bias: number): void => {
      before[first + label] = previous;
      next[label] = (token === 0 ? sum(label) : sum(previous) + bias) + (scores[first + label] ?? 0);
    };
    const closed = ended();
    const { background_stay: stays, background_to_start: starts } = transitions;
    const { end_to_background: leaves, end_to_start: follows } = transitions;
    const isBackground = sum(closed) + follows <= sum(outside) + starts;
    const [previous, bias] = isBackground ? [outside, starts] : [closed, follows];
    if (sum(closed) + leaves > sum(outside) + stays) step(outside, closed, leaves);
    else step(outside, outside, stays);
    for (const { begin, inside, end, single } of kinds) {
      const open = sum(inside) > sum(begin) ? inside : begin;
      step(begin, previous, bias);
      step(single, previous, bias);
      step(inside, open, transitions.inside_to_continue);
      step(end, open, transitions.inside_to_end);
    }
    [sums, next] = [next, sums];
  }

  const best = new Array<number>(tokens);
  const closed = ended();
  let label = sum(closed) > sum(outside) ? closed : outside;
  for (let token = tokens - 1; token >= 0; token--) {
    best[token] = label;
    label = before[token * count + label] ?? 0;
  }
  return { best, spans: spansOf(best.map((index) => labels[index] ?? "")) };
}

function kindsOf(labels: readonly string[]): readonly Kind[] {
  const names = [...new Set(labels.filter((label) => label !== OUTSIDE).map((label) => label.slice(2)))];
  for (const parts of ["BIES", "BILU"]) {
    const kinds = names.map((name): Kind => {
      const [begin = -1, inside = -1, end = -1, single = -1] = Array.from(parts, (part) =>
        labels.indexOf(`${part}-${name}`),
      );
      return { begin, inside, end, single };
    });
    const found = new Set([labels.indexOf(OUTSIDE), ...kinds.flatMap((kind) => Object.values(kind) as number[])]);
    if (found.size === labels.length && !found.has(-1)) return kinds;
  }
  throw new BundleError(
    "The labels are not those of spans (O, and B-, I-, E- and S- of each kind, or B-, I-, L- and U-); compile again",
    { labels: labels.slice(0, 100) },
  );
}

/** A label's part of a span, such as "B" of "B-PER", or nothing. */
function partOf(label: string): string {
  return /^[BIESLU]-/.test(label) ? label.charAt(0) : "";
}

/** The spans of labels that form spans. */
function spansOf(labels: readonly string[]): LabelSpan[] {
  const spans: LabelSpan[] = [];
  let first = 0;
  labels.forEach((label, token) => {
    const part = partOf(label);
    if (/[BSU]/.test(part)) first = token;
    if (/[ELSU]/.test(part)) spans.push({ label: label.slice(2), first, last: token });
  });
  return spans;
}
