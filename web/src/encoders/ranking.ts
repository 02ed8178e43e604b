// rerank and score: how relevant texts are to a query, by a reranker, or by the cosines of an embedding model.

import type { RerankParams, ScoreParams, TextDocument } from "../api/encoder_types.js";
import type { RerankResponse, ScoreResponse } from "../api/replies.js";
import type { Checks } from "../api/params.js";
import { isObject, readParams } from "../api/params.js";
import { identity } from "../api/requests.js";
import { anySignal } from "../api/stream.js";
import type { RequestOptions } from "../api/types.js";
import { RequestError } from "../errors.js";
import { DOCUMENT_PROMPTS, QUERY_PROMPTS, searchPrompt, unit } from "./embeddings.js";
import { requireUnicode } from "../shared/unicode.js";
import type { EncoderModel } from "./encoder_model.js";
import { probabilities } from "./probabilities.js";
import type { ReadText } from "./text_reader.js";
import { TRUNCATION, TextReader, requireFew, requireText, usageOf } from "./text_reader.js";

const RERANK: Checks = {
  query: "string",
  documents: "any[]",
  top_n: "integer 0..",
  return_documents: "boolean",
  max_tokens_per_doc: "integer 1..",
  ...TRUNCATION,
};

const SCORE: Checks = { text_1: "string or string[]", text_2: "string or string[]", ...TRUNCATION };

/** See `Engine.rerank`. Throws RequestError, DeviceError, or the signal's reason. */
export async function rerank(
  model: EncoderModel,
  params: RerankParams,
  options: RequestOptions,
): Promise<RerankResponse> {
  const {
    query = "",
    documents = [],
    top_n: top,
    return_documents: returns = true,
    max_tokens_per_doc: most,
    ...rest
  } = readParams(params, RERANK);
  requireText(query, "query");
  if (documents.length === 0) throw new RequestError("documents is empty; give at least one", { param: "documents" });
  const given = documents.map((document: unknown, index) => textOf(document, `documents[${index}]`));
  const signal = anySignal(options.signal, rest.signal);
  const reader = TextReader.of(model, rest, signal);
  const { scores, read } = await relevance(
    model,
    reader,
    given.map((document) => [query, document] as const),
    "documents",
    () => "query",
    most,
    signal,
  );
  const best = scores
    .map((score, index) => ({ index, relevance_score: score }))
    .sort((a, b) => b.relevance_score - a.relevance_score || a.index - b.index);
  const results = (top ? best.slice(0, top) : best).map((result) => {
    const document = documents[result.index];
    if (!returns || document === undefined) return result;
    return { ...result, document: typeof document === "string" ? { text: document } : document };
  });
  return { id: `rerank-${crypto.randomUUID()}`, object: "list", model: model.name, results, usage: usageOf(read) };
}

/** See `Engine.score`. Throws RequestError, DeviceError, or the signal's reason. */
export async function score(model: EncoderModel, params: ScoreParams, options: RequestOptions): Promise<ScoreResponse> {
  const { text_1: one = [], text_2: two = [], ...rest } = readParams(params, SCORE);
  const [first, second] = [one, two].map((each) => (typeof each === "string" ? [each] : each)) as [string[], string[]];
  if (second.length === 0 || (first.length !== 1 && first.length !== second.length)) {
    throw new RequestError(
      `text_1 has ${first.length} texts and text_2 has ${second.length}; give one of text_1, or as many as of text_2`,
      { param: "text_1" },
    );
  }
  first.forEach((each, index) => {
    requireText(each, `text_1[${index}]`);
  });
  const pairs = second.map((each, index) => [first[index % first.length] ?? "", each] as const);
  const signal = anySignal(options.signal, rest.signal);
  const reader = TextReader.of(model, rest, signal);
  const { scores, read } = await relevance(
    model,
    reader,
    pairs,
    "text_2",
    (index) => `text_1[${index % first.length}]`,
    null,
    signal,
  );
  return {
    ...identity("score", model.name),
    object: "list",
    data: scores.map((each, index) => ({ index, object: "score", score: each })),
    usage: usageOf(read),
  };
}

/** The relevance of each second text to its first one. */
async function relevance(
  model: EncoderModel,
  reader: TextReader,
  pairs: readonly (readonly [string, string])[],
  param: string,
  firstName: (index: number) => string,
  maxSecond: number | null | undefined,
  signal: AbortSignal,
): Promise<{ readonly scores: readonly number[]; readonly read: readonly ReadText[] }> {
  const { classifier, embedding, engine } = model;
  if (classifier !== null) {
    const { relevance: label } = classifier;
    if (label === null)
      throw new RequestError("This model labels texts and does not score pairs; use a reranker or an embedding model");
    requireFew(pairs.length, param);
    const read = await reader.pairs(pairs, (index) => `${param}[${index}]`, firstName, maxSecond, classifier);
    const typed = model.numTokenTypes > 0 ? read : read.map(({ ids }) => ({ ids }));
    const rows = await engine.encode(typed, signal);
    return { scores: rows.map((row) => probabilities(row, classifier)[label] ?? NaN), read };
  }
  if (embedding === null) throw new Error("a model has embeddings or a classifier");
  const queries = [...new Set(pairs.map(([first]) => first))];
  pairs.forEach(([first], index) => {
    requireUnicode(first, firstName(index));
  });
  const asked = await reader.texts(queries, "query", searchPrompt(embedding, QUERY_PROMPTS));
  const found = await reader.limited(maxSecond).texts(
    pairs.map(([, second]) => second),
    param,
    searchPrompt(embedding, DOCUMENT_PROMPTS),
  );
  const read = [...asked, ...found];
  const vectors = (await engine.encode(read, signal)).map(unit);
  const ofQuery = new Map(queries.map((query, index) => [query, vectors[index]]));
  const scores = pairs.map(([first], index) => {
    const passage = vectors[queries.length + index] ?? new Float32Array();
    return passage.reduce((sum, value, element) => sum + value * (ofQuery.get(first)?.[element] ?? NaN), 0);
  });
  return { scores, read };
}

function textOf(document: unknown, name: string): string {
  const found = isObject(document) ? (document as TextDocument).text : document;
  if (typeof found !== "string")
    throw new RequestError(`${name} must be a string, or an object with a text`, { param: name });
  return found;
}
