// What a journal holds of an answer, as JSON, and how its parts become what an engine or a Hybrid continues.

import type { ChatCompletionChunk } from "../api/types.js";
import type { AnswerEnd, BegunAnswer, GeneratedToken } from "../engine/request.js";
import type { AnswerItem } from "../router/answer/running_answer.js";
import type { AnswerSoFar } from "../router/sides/sides.js";

export const FORMAT = 1;

/** The model whose token ids were recorded. */
export type TokenModel = Readonly<Record<"model" | "quantization", string>> & {
  readonly tokenizerSha256: string | null;
};

/** A stream that far keeps under this key, of an answer that goes on after ``from``. */
export interface KeptFar {
  readonly key: string;
  readonly from: AnswerSoFar | null;
}

/** The method that was called: chat.completions.create, completions.create, generate or generateTokens. */
export type JournalApi = "chat" | "completions" | "generate" | "tokens";

export interface Head {
  readonly format: typeof FORMAT;
  readonly id: string;
  readonly api: JournalApi;
  readonly createdMs: number;
  /** The model that generates the tokens; null for a Hybrid, whose parts name it. */
  readonly model: TokenModel | null;
  /** What was called with it, without signals and functions. */
  readonly args: readonly unknown[];
  /** Of the request, or drawn for it. */
  readonly seed: number;
}

/** A token's id if it has no log-probabilities; JSON writes no infinity, so that of a masked token is null. */
type PackedToken =
  | number
  | readonly [tokenId: number, logprob: number | null, ids: readonly number[], logprobs: readonly (number | null)[]];
type PackedEnd = Omit<AnswerEnd, "endToken"> & { readonly endToken?: PackedToken };
/** A token of a choice, or its end. */
export type Entry = readonly [choice: number, generated: PackedToken | PackedEnd];

/** What was generated since the part before. */
export interface Part {
  readonly generated?: readonly Entry[];
  /** Of a Hybrid: what it has shown and withdrawn. */
  readonly items?: readonly AnswerItem[];
  /**
   * Of a Hybrid: near was asked, and its tokens of earlier parts do not count. Null: its tokens are not the whole
   * answer.
   */
  readonly near?: TokenModel | null;
  /** Of a Hybrid: far was asked. */
  readonly far?: KeptFar | null;
  readonly done?: boolean;
}

/** All that the parts of a journal say. */
export interface Contents {
  readonly choices: readonly BegunAnswer[];
  readonly items: readonly AnswerItem[];
  readonly near: TokenModel | null;
  readonly far: KeptFar | null;
  readonly done: boolean;
}

/** One part that says what all of them say. */
export function merged(parts: readonly Part[]): Part {
  return parts.reduce<Part>(
    (all, part) => ({
      ...all,
      ...part,
      generated: [...(part.near === undefined ? (all.generated ?? []) : []), ...(part.generated ?? [])],
      items: [...(all.items ?? []), ...(part.items ?? [])],
    }),
    {},
  );
}

export function contentsOf({ generated = [], items = [], near = null, far = null, done = false }: Part): Contents {
  const choices: { tokens: GeneratedToken[]; end?: AnswerEnd }[] = [];
  for (const [choice, packed] of generated) {
    while (choices.length <= choice) choices.push({ tokens: [] });
    const own = choices[choice];
    if (own === undefined) continue;
    if (isEnd(packed)) own.end = unpackEnd(packed);
    else own.tokens.push(unpackToken(packed));
  }
  return { choices, items, near, far, done };
}

/** The most choices of a request. A damaged number must not make a list of that length. */
const MOST_CHOICES = 4096;
const APIS: readonly unknown[] = ["chat", "completions", "generate", "tokens"] satisfies JournalApi[];

/** The head of the journal of ``id``, as it was written. Throws for another value. */
export function readHead(text: string, id: string): Head {
  const head = JSON.parse(text) as Head;
  const { args, model } = head;
  const { format }: { readonly format: number } = head;
  const isRight =
    format === FORMAT &&
    head.id === id &&
    APIS.includes(head.api) &&
    Number.isFinite(head.createdMs) &&
    isIndex(head.seed) &&
    isModel(model) &&
    (head.api === "generate" ? args.length === 2 && isObject(args[1]) : args.length === 1 && isObject(args[0]));
  if (!isRight) throw new Error("no head of a journal");
  return head;
}

/** A part as it was written. Throws for another value. */
export function readPart(text: string): Part {
  const part: unknown = JSON.parse(text);
  const { generated = [], items = [], near = null, far = null, done = false } = part as Part;
  const isRight =
    isObject(part) &&
    generated.every(
      ([choice, entry]) =>
        isIndex(choice) &&
        choice < MOST_CHOICES &&
        (isEnd(entry) ? typeof entry.finishReason === "string" : isIndex(unpackToken(entry).tokenId)),
    ) &&
    items.every((item) => item.type === "withdraw" || item.chunk.choices.every((choice) => isObject(choice.delta))) &&
    isModel(near) &&
    (far === null || (typeof far.key === "string" && (far.from === null || typeof far.from.text === "string"))) &&
    typeof done === "boolean";
  if (!isRight) throw new Error("no part of a journal");
  return part;
}

const isIndex = (value: unknown): boolean => Number.isSafeInteger(value) && Number(value) >= 0;
const isObject = (value: unknown): value is object =>
  typeof value === "object" && value !== null && !Array.isArray(value);
const isModel = (model: TokenModel | null): boolean =>
  model === null || (typeof model.model === "string" && typeof model.quantization === "string");

export function packed(choice: number, generated: GeneratedToken | AnswerEnd): Entry {
  if (!("finishReason" in generated)) return [choice, packToken(generated)];
  const { endToken, ...end } = generated;
  return [choice, { ...end, ...(endToken && { endToken: packToken(endToken) }) }];
}

function packToken({ tokenId, logprob, alternatives }: GeneratedToken): PackedToken {
  if (logprob === null && alternatives.length === 0) return tokenId;
  const finite = (value: number): number | null => (Number.isFinite(value) ? value : null);
  return [tokenId, logprob, alternatives.map((each) => each.tokenId), alternatives.map((each) => finite(each.logprob))];
}

function unpackToken(token: PackedToken): GeneratedToken {
  if (typeof token === "number") return { tokenId: token, logprob: null, alternatives: [] };
  const [tokenId, logprob, ids, logprobs] = token;
  const alternatives = ids.map((id, index) => ({ tokenId: id, logprob: logprobs[index] ?? -Infinity }));
  return { tokenId, logprob, alternatives };
}

function unpackEnd({ endToken, ...end }: PackedEnd): AnswerEnd {
  return { ...end, ...(endToken !== undefined && { endToken: unpackToken(endToken) }) };
}

function isEnd(generated: PackedToken | PackedEnd): generated is PackedEnd {
  return typeof generated === "object" && "finishReason" in generated;
}

/** The chunks that a Hybrid has shown and not withdrawn. */
export function shownChunks(items: readonly AnswerItem[]): readonly ChatCompletionChunk[] {
  const last = items.findLastIndex(({ type }) => type === "withdraw");
  return items.slice(last + 1).flatMap((item) => (item.type === "chunk" ? [item.chunk] : []));
}

export function modelOf({ model, quantization, tokenizerSha256 }: TokenModel): TokenModel {
  return { model, quantization, tokenizerSha256 };
}

/** Whether token ids of one model are those of the other, and what follows them is the same. */
export function sameModel(one: TokenModel | null, other: TokenModel | null): boolean {
  return (
    one !== null &&
    other !== null &&
    one.model === other.model &&
    one.quantization === other.quantization &&
    one.tokenizerSha256 === other.tokenizerSha256
  );
}
