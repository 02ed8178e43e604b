// chooseEncoder: of several candidates that compute the same model, such as an engine on this device, a server and
// ONNX Runtime's WebAssembly, the one that is fastest for a request, by measurement.
//
// The vectors of all candidates are compared first, so that an index never mixes those of two models.

import { check, isA, readParams, signal as anySignalCheck } from "../../api/params.js";
import type { Checks } from "../../api/params.js";
import { anySignal } from "../../api/stream.js";
import { RequestError, Unavailable, messageOf } from "../../errors.js";
import { modelIdentity } from "../../runtime/model_identity.js";
import type { Notes } from "../../runtime/notes.js";
import { browserNotes } from "../../runtime/notes.js";
import type { EncoderCandidate } from "./candidate.js";
import { vectorsOf } from "./candidate.js";
import type { SampleMeasurement } from "./measurement.js";
import { measureSample } from "./measurement.js";

export interface ChooseOptions {
  /** Texts like those that will be embedded, by a name for their kind: one question, a batch of passages. */
  readonly samples: Readonly<Record<string, readonly string[]>>;
  /** The address of the model's bundle. With it, the measurement is stored for this model and device. */
  readonly bundle?: string | URL | undefined;
  /** The least cosine of a candidate's vectors with those of the first candidate that answers; 0.99 by default. */
  readonly leastCosine?: number | undefined;
  /** Where the measurement is stored; by default in the browser. */
  readonly notes?: Notes | undefined;
  readonly signal?: AbortSignal | undefined;
}

/** A candidate that is not used, and why. */
export interface RefusedCandidate {
  readonly name: string;
  readonly reason: string;
}

const OPTIONS: Checks = {
  samples: "object",
  bundle: "any",
  leastCosine: check("a number from 0 to 1", (value) => typeof value === "number" && value >= 0 && value <= 1),
  notes: "object",
  signal: anySignalCheck,
};
const PARAMS: Checks = {
  input: "string or string[]",
  model: "string",
  user: "string",
};
const LEAST_COSINE = 0.99;

/**
 * Compares and measures the candidates. One that fails, or whose vectors are not those of the first candidate that
 * answers, is refused by name. Throws RequestError for wrong options, Unavailable if no candidate answers, BundleError
 * if the bundle's manifest cannot be read, or the signal's reason.
 */
export async function chooseEncoder(
  candidates: readonly EncoderCandidate[],
  options: ChooseOptions,
): Promise<ChosenEncoder> {
  const {
    samples = {},
    bundle,
    leastCosine = LEAST_COSINE,
    notes = browserNotes(),
    signal,
  } = readParams(options, OPTIONS);
  const until = anySignal(signal);
  const named = checked(candidates, samples);
  const note = bundle === undefined ? null : await noteKey(candidates, samples, bundle);
  const remembered = note === null ? undefined : ((await notes.read(note)) as readonly SampleMeasurement[] | undefined);
  const texts = Object.values(samples).flatMap(([first = ""]) => first);
  if (remembered !== undefined) {
    // A server may have another model now, so one text is compared again.
    const { agreeing, refused } = await agreement(named, texts.slice(0, 1), leastCosine, until);
    return new ChosenEncoder(agreeing, remembered, refused, true);
  }
  const { agreeing, refused } = await agreement(named, texts, leastCosine, until);
  const measured: SampleMeasurement[] = [];
  let running = agreeing;
  for (const [sample, some] of Object.entries(samples)) {
    const failed = (candidate: EncoderCandidate, error: unknown): void => {
      running = running.filter((each) => each !== candidate);
      refused.push({ name: candidate.name, reason: messageOf(error) });
    };
    const found = await measureSample(running, sample, some, failed, until);
    if (found !== null) measured.push(found);
  }
  if (running.length === 0) throw nobody(refused);
  // A candidate that fails today may be the fastest tomorrow.
  if (note !== null && refused.length === 0) await notes.write(note, measured);
  return new ChosenEncoder(running, measured, refused, false);
}

/** The fastest of several candidates for each request. */
export class ChosenEncoder {
  /** Candidates that have failed since they were chosen, which are tried last. */
  readonly #failed = new Set<EncoderCandidate>();

  constructor(
    private readonly candidates: readonly EncoderCandidate[],
    /** What was measured, by sample. */
    readonly measured: readonly SampleMeasurement[],
    readonly refused: readonly RefusedCandidate[],
    /** Whether the measurement is one of an earlier load. */
    readonly remembered: boolean,
  ) {}

  /** The names of the candidates in the order in which they are tried for these texts. */
  order(texts: readonly string[]): readonly string[] {
    return this.#order(texts).map(({ name }) => name);
  }

  /**
   * Vectors in OpenAI's form, and the name of the candidate that made them. If a candidate fails, the next one is tried.
   * Throws RequestError, the error of the fastest candidate if all fail, or the signal's reason.
   */
  readonly embeddings = {
    create: async (
      params: { readonly input: string | readonly string[]; readonly [name: string]: unknown },
      options: { readonly signal?: AbortSignal | null | undefined } = {},
    ): Promise<ChosenEmbeddings> => {
      const { input } = readParams(params, PARAMS);
      if (input === undefined) throw new RequestError("input is missing; pass a text or texts", { param: "input" });
      const texts = typeof input === "string" ? [input] : input;
      const signal = anySignal(options.signal);
      let first: unknown;
      for (const candidate of this.#order(texts)) {
        try {
          const vectors = await vectorsOf(candidate, texts, signal);
          const data = vectors.map((vector, index) => ({
            object: "embedding" as const,
            index,
            embedding: [...vector],
          }));
          return { object: "list", data, candidate: candidate.name };
        } catch (error) {
          signal.throwIfAborted();
          if (error instanceof RequestError) throw error;
          first ??= error;
          this.#failed.add(candidate);
        }
      }
      throw first;
    },
  };

  #order(texts: readonly string[]): readonly EncoderCandidate[] {
    const nearest = this.#nearest(texts)?.milliseconds ?? {};
    const rank = (candidate: EncoderCandidate): number =>
      this.#failed.has(candidate) ? Infinity : (nearest[candidate.name] ?? Number.MAX_VALUE);
    return [...this.candidates].sort((a, b) => (rank(a) === rank(b) ? 0 : rank(a) - rank(b)));
  }

  /** The sample that is most similar: by the number of texts and their length, both by their ratio. */
  #nearest(texts: readonly string[]): SampleMeasurement | undefined {
    const characters = texts.reduce((sum, each) => sum + each.length, 0) / texts.length;
    const distance = (sample: SampleMeasurement): number =>
      Math.abs(Math.log(texts.length / sample.texts)) + Math.abs(Math.log((characters + 1) / (sample.characters + 1)));
    return [...this.measured].sort((a, b) => distance(a) - distance(b))[0];
  }
}

export interface ChosenEmbeddings {
  readonly object: "list";
  readonly data: { readonly object: "embedding"; readonly index: number; readonly embedding: number[] }[];
  readonly candidate: string;
}

/** Throws RequestError for candidates or samples that cannot be measured. */
function checked(
  candidates: readonly EncoderCandidate[],
  samples: Readonly<Record<string, readonly string[]>>,
): readonly EncoderCandidate[] {
  const names = candidates.map(({ name }) => name);
  if (names.length === 0) throw new RequestError("there are no candidates; pass at least one", { param: "candidates" });
  const twice = names.find((name, index) => names.indexOf(name) !== index);
  if (twice !== undefined)
    throw new RequestError(`two candidates have the name '${twice}'; give each its own`, { param: "candidates" });
  const isWrong = (some: unknown): boolean =>
    !Array.isArray(some) || !isA("string[]", some) || some.length === 0 || some.includes("");
  const wrong = Object.entries(samples).find(([, some]) => isWrong(some))?.[0];
  if (wrong !== undefined || Object.keys(samples).length === 0) {
    const which = wrong === undefined ? "samples" : `samples.${wrong}`;
    throw new RequestError(`${which} must have texts that are not empty`, { param: which });
  }
  return candidates;
}

/** The candidates whose vectors are those of the first one that answers. Throws Unavailable if none answers. */
async function agreement(
  candidates: readonly EncoderCandidate[],
  texts: readonly string[],
  leastCosine: number,
  signal: AbortSignal,
): Promise<{ readonly agreeing: readonly EncoderCandidate[]; readonly refused: RefusedCandidate[] }> {
  const agreeing: EncoderCandidate[] = [];
  const refused: RefusedCandidate[] = [];
  let reference: { readonly name: string; readonly vectors: readonly Float32Array[] } | null = null;
  for (const candidate of candidates) {
    const { name } = candidate;
    try {
      const vectors = await vectorsOf(candidate, texts, signal);
      reference ??= { name, vectors };
      const reason = disagreement(vectors, reference.vectors, reference.name, leastCosine);
      if (reason === null) agreeing.push(candidate);
      else refused.push({ name, reason });
    } catch (error) {
      signal.throwIfAborted();
      refused.push({ name, reason: messageOf(error) });
    }
  }
  if (reference === null) throw nobody(refused);
  return { agreeing, refused };
}

function nobody(refused: readonly RefusedCandidate[]): Unavailable {
  const reasons = refused.map(({ name, reason }) => `'${name}': ${reason}`).join("; ");
  return new Unavailable(`No candidate can embed (${reasons})`, { retryable: true });
}

/** One measurement for each model, list of candidates with their devices, samples, and version of the browser. */
async function noteKey(
  candidates: readonly EncoderCandidate[],
  samples: Readonly<Record<string, readonly string[]>>,
  bundle: string | URL,
): Promise<string> {
  const named = candidates.map(({ name, device = null }) => [name, device]);
  const sizes = Object.entries(samples).map(([name, some]) => [name, some.map(({ length }) => length)]);
  const browser = typeof navigator === "undefined" ? "" : navigator.userAgent;
  return JSON.stringify(["encoders", await modelIdentity(bundle), named, sizes, browser]);
}

// Whether two candidates compute the same model's vectors.

/** Lengths may differ by this share: a model of 8 bits changes them a little. */
const LENGTH_SHARE = 0.05;

/**
 * Why the vectors cannot be exchanged with those of the candidate ``reference``; null if they can. ``leastCosine``: of
 * the vectors of each text.
 */
export function disagreement(
  vectors: readonly Float32Array[],
  expected: readonly Float32Array[],
  reference: string,
  leastCosine: number,
): string | null {
  for (const [index, vector] of vectors.entries()) {
    const other = expected[index] ?? new Float32Array();
    if (vector.length !== other.length)
      return `its vectors have ${vector.length} dimensions, and those of '${reference}' ${other.length}`;
    const [length, wanted] = [Math.hypot(...vector), Math.hypot(...other)];
    const cosine = vector.reduce((sum, value, element) => sum + value * (other[element] ?? 0), 0) / (length * wanted);
    // Not a number counts as different.
    if (!(cosine >= leastCosine))
      return `the cosine of its vector with that of '${reference}' is ${cosine.toFixed(4)}, and at least ${leastCosine} is the same model`;
    if (Math.abs(length - wanted) > LENGTH_SHARE * wanted)
      return `its vectors have length ${length.toPrecision(3)}, and those of '${reference}' ${wanted.toPrecision(3)}; scale both to 1`;
  }
  return null;
}
