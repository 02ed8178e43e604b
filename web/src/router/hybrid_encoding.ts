// embeddings.create and rerank over two sides, by the rules of the chat's policy: which side may answer, what may leave
// the device, and what happens if a side fails. hybrid.js loads this file for the first such request.
//
// Vectors of two models cannot be compared, so both sides must have the same embedding model.

import type { RerankParams } from "../api/encoder_types.js";
import type { RerankResponse } from "../api/replies.js";
import type { Check, Checks } from "../api/params.js";
import { isObject, readParams, signal as anAbortSignal } from "../api/params.js";
import { anySignal } from "../api/stream.js";
import type { CreateEmbeddingResponse, EmbeddingCreateParams, RequestOptions, Route } from "../api/types.js";
import { RequestError, Unavailable } from "../errors.js";
import { encodingPolicy } from "../shared/decision/decide.js";
import type { Side } from "../shared/decision/decision.js";
import type { Media } from "../shared/decision/media.js";
import { mediaOf } from "../shared/decision/media.js";
import { privateTexts } from "../shared/decision/private_texts.js";
import type { HybridRequest } from "./request.js";
import type { Routing, SituatedChoice } from "./routing.js";
import type { FarSide } from "./sides/far.js";
import type { Counted } from "./whole_answer.js";
import { wholeAnswer, wholeAnswerRules } from "./whole_answer.js";

/** The parameters of Hybrid besides those of the API; they are never sent. */
interface RoutingParams {
  /** Labels of the policy. */
  readonly labels?: readonly string[] | null | undefined;
  /** Only this side may answer. */
  readonly pin?: Side | null | undefined;
  /** The language that the answering model must know, as the first part of a BCP 47 tag ("en"). */
  readonly language?: string | null | undefined;
}

export type HybridEmbeddingParams = EmbeddingCreateParams & RoutingParams;
export type HybridRerankParams = RerankParams & RoutingParams;
export type HybridEmbeddings = CreateEmbeddingResponse & { route: Route };
export type HybridRerank = RerankResponse & { route: Route };

/** The parts of a request. ``body``: the parameters for a side. */
interface EncodingRequest {
  readonly body: Readonly<Record<string, unknown>>;
  readonly properties: HybridRequest["properties"];
  /** Whether it has token ids, in which no pattern can be searched. */
  readonly hasIds: boolean;
  /** The number of texts. */
  readonly texts: number;
}

interface Answer extends Counted {
  readonly data?: unknown;
  readonly results?: unknown;
}
type Ask = (side: Side, body: EncodingRequest["body"], signal: AbortSignal) => Promise<Answer>;

const ROUTING: Checks = {
  labels: "string[]",
  pin: "=near|far",
  language: "string",
  signal: anAbortSignal,
} satisfies Record<keyof RoutingParams | "signal", Check>;
export class HybridEncoding {
  constructor(private readonly routing: Routing) {}

  /**
   * See `Hybrid.embeddings`. Throws RequestError (``details.code`` "different_models" if the sides have two models),
   * Unavailable, the error of a side if the other side cannot take over, or the signal's reason.
   */
  async embed(raw: HybridEmbeddingParams, options: Pick<RequestOptions, "signal"> = {}): Promise<HybridEmbeddings> {
    const { input } = raw as { readonly input?: unknown };
    const { near, far } = this.routing.wiring;
    const ask: Ask = (side, body, signal) =>
      side === "near"
        ? near.ready.embeddings.create(body as unknown as EmbeddingCreateParams, { signal })
        : this.#post(far, "/v1/embeddings", body, (answer) => vectorsFit(answer, body), signal);
    const found = await this.#run(raw, input, options, ask, (side) => this.#otherModel(side));
    return found as unknown as HybridEmbeddings;
  }

  /** See `Hybrid.rerank`. Throws as `embed`, but each side may have its own model. */
  async rerank(raw: HybridRerankParams, options: Pick<RequestOptions, "signal"> = {}): Promise<HybridRerank> {
    const { documents } = raw as { readonly documents?: unknown };
    const { near, far } = this.routing.wiring;
    const found = await this.#run(raw, documents, options, (side, body, signal) =>
      side === "near"
        ? near.ready.rerank(body as unknown as RerankParams, { signal })
        : this.#post(far, "/v1/rerank", body, ({ results }) => Array.isArray(results), signal),
    );
    return found as unknown as HybridRerank;
  }

  /** ``lack`` is the error of a side that may not answer. */
  async #run(
    raw: object,
    inputs: unknown,
    options: Pick<RequestOptions, "signal">,
    ask: Ask,
    lack: (side: Side) => Error | null = () => null,
  ): Promise<object> {
    const { labels, pin, language, signal: own, ...body } = raw as Record<string, unknown>;
    const routing = readParams({ labels, pin, language, signal: own }, ROUTING) as RoutingParams & {
      signal?: AbortSignal;
    };
    const signal = anySignal(options.signal, routing.signal);
    signal.throwIfAborted();
    const request = requestOf(body, inputs, routing);
    const choice = this.#answering(await this.#choose(request, signal), lack);
    const rules = wholeAnswerRules(this.routing.wiring.policy, request.texts, choice.decision.private);
    const asking = (side: Side, until: AbortSignal): Promise<Answer> => ask(side, request.body, until);
    const { answer, route } = await wholeAnswer(this.routing, choice, asking, rules, signal);
    return { ...answer, route };
  }

  async #choose(request: EncodingRequest, signal: AbortSignal): Promise<SituatedChoice> {
    const policy = encodingPolicy(this.routing.wiring.policy);
    const isUnreadable = request.hasIds && policy.private.patterns.length > 0;
    const situate = () => this.routing.situation(request, { tokens: null, conversation: [], embedding: null });
    return this.routing.choose(policy, situate, isUnreadable || null, signal);
  }

  /** The choice without a side that may not answer. Throws its error if no other side may take over. */
  #answering(choice: SituatedChoice, lack: (side: Side) => Error | null): Parameters<Routing["run"]>[0] {
    const { decision, standby } = choice;
    const { near_continues, far_takes_over } = this.routing.wiring.policy.fallback;
    const { side } = decision;
    if (side === null) return choice;
    const other = side === "near" ? "far" : "near";
    const [own, others] = [lack(side), lack(other)];
    if (own === null) return { ...choice, standby: standby && others === null };
    const mayTakeOver = standby && others === null && (other === "near" ? near_continues : far_takes_over);
    if (own instanceof RequestError || !mayTakeOver) throw own;
    return { ...choice, decision: { ...decision, side: other, reason: `${side}_failed` }, standby: false };
  }

  /**
   * The error if the sides' vectors could be of two models: they must have one name and, as far as it is known, one
   * tokenizer. A side that has not loaded or reported its model yet cannot have answered either, except far in an
   * earlier session, so near needs far's name.
   */
  #otherModel(side: Side): Error | null {
    const { near, far } = this.routing.wiring;
    if (far === null || near.state === "none") return null;
    const nearName = near.info?.model ?? null;
    const farName = far.model?.id ?? far.requestedModel;
    if (farName === null) {
      if (side === "far") return null;
      return new Unavailable(
        "The far side has not reported its embedding model, so vectors of this device might not fit its vectors; set " +
          "far.model to its name, or use a policy with one side",
        { code: "unknown_model", retryable: true },
      );
    }
    const nearHash = near.info?.tokenizerSha256 ?? null;
    const farHash = far.model?.tokenizerSha256 ?? null;
    const fits = nearHash === null || farHash === null || nearHash === farHash;
    if (nearName === null || (nearName === farName && fits)) return null;
    const which = nearName === farName ? `with different tokenizers` : `and the far side '${farName}'`;
    return new RequestError(
      `This device has the embedding model '${nearName}' ${which}, so their vectors cannot be compared; use the same ` +
        "model under the same name, or a policy with the mode near-only or far-only",
      { code: "different_models" },
    );
  }

  /** Throws Unavailable for an answer that does not fit the request. */
  async #post(
    far: FarSide | null,
    route: string,
    body: EncodingRequest["body"],
    fits: (answer: Answer) => boolean,
    signal: AbortSignal,
  ): Promise<Answer> {
    if (far === null) throw new Unavailable("There is no far side", { retryable: false });
    const answer: Answer = await far.post(route, body, signal);
    if (fits(answer)) return answer;
    throw new Unavailable(`The far side's answer of ${route} does not fit the request`, { retryable: false });
  }
}

/** Whether there is a vector for each input. */
function vectorsFit({ data }: Answer, { input }: EncodingRequest["body"]): boolean {
  const isOne = !Array.isArray(input) || typeof input[0] === "number";
  const isVector = (value: unknown): boolean =>
    isObject(value) && (Array.isArray(value.embedding) || typeof value.embedding === "string");
  return Array.isArray(data) && data.length === (isOne ? 1 : input.length) && data.every(isVector);
}

function requestOf(
  body: Readonly<Record<string, unknown>>,
  inputs: unknown,
  { labels, pin, language }: RoutingParams,
): EncodingRequest {
  const list: readonly unknown[] = Array.isArray(inputs) ? inputs : [inputs];
  const isText = (value: unknown): boolean => typeof value === "string" || isObject(value);
  const texts = [...privateTexts(body)].map(({ text }) => text);
  const others: readonly Media[] = list
    .filter((value) => isObject(value) && typeof value.text !== "string")
    .map(() => ({ kind: "file", message: null, part: null }));
  return {
    body,
    hasIds: !list.every(isText),
    texts: list.length,
    properties: {
      messages: [],
      labels: labels ?? [],
      // Each input is a prompt of its own, so they do not meet, but a query meets each document.
      texts: [...texts, ...pairsOf(body)],
      media: [...others, ...mediaOf([], texts)],
      pin: pin ?? null,
      max_tokens: null,
      tools: false,
      language: language ?? null,
    },
  };
}

/** Texts that meet only each other: the query of a ranking with each of its documents. */
function pairsOf({ query, documents }: EncodingRequest["body"]): readonly (readonly string[])[] {
  if (typeof query !== "string" || !Array.isArray(documents)) return [];
  return documents
    .map((document: unknown) => (isObject(document) ? document.text : document))
    .flatMap((text) => (typeof text === "string" ? [[query, text]] : []));
}
