// embeddings.create and rerank over two sides, by the rules of the chat's policy: which side may answer, what may leave
// the device, and what happens if a side fails. hybrid.js loads this file for the first such request.
//
// Vectors of two models cannot be compared, so both sides must have the same embedding model.

import type { RerankParams, RerankResponse } from "../api/encoder_types.js";
import type { Check, Checks } from "../api/params.js";
import { check, isStrings, isObject, only, readParams, signal as anAbortSignal, text } from "../api/params.js";
import { anySignal } from "../api/stream.js";
import type { CreateEmbeddingResponse, EmbeddingCreateParams, RequestOptions, Route } from "../api/types.js";
import { RequestError, Unavailable } from "../errors.js";
import { unlessAborted } from "../runtime/abort.js";
import { Circuit } from "./answer/circuit.js";
import { failureOf } from "./answer/failure.js";
import type { Choice } from "./choice_of_side.js";
import { choose, situationOf, waitsForNear } from "./choice_of_side.js";
import type { Ledger } from "./decision/budget.js";
import { usdOf } from "./decision/costs.js";
import type { Side } from "./decision/decision.js";
import { refusal } from "./decision/decision.js";
import type { DeviceSource } from "./decision/device_hints.js";
import type { Policy } from "./decision/policy.js";
import { PrivateCheck } from "./decision/privacy.js";
import type { Situation } from "./decision/situation.js";
import { UNKNOWN_SIDE } from "./decision/situation.js";
import { textsIn } from "./request.js";
import type { Clock } from "./sides/clock.js";
import { withTimeout } from "./sides/clock.js";
import type { FarSide } from "./sides/far.js";
import type { NearSide } from "./sides/near.js";
import { whyNoEngine } from "./sides/near.js";

export interface EncodingWiring {
  readonly policy: Policy;
  readonly near: NearSide;
  readonly far: FarSide | null;
  readonly ledger: Ledger;
  readonly device: DeviceSource;
  readonly clock: Clock;
}

/** The parameters of Hybrid besides those of the API; they are never sent. */
interface Routing {
  /** Labels of the policy. */
  readonly labels?: readonly string[] | null | undefined;
  /** Only this side may answer. */
  readonly pin?: Side | null | undefined;
  /** The language that the answering model must know, as the first part of a BCP 47 tag ("en"). */
  readonly language?: string | null | undefined;
}

export type HybridEmbeddingParams = EmbeddingCreateParams & Routing;
export type HybridRerankParams = RerankParams & Routing;
export type HybridEmbeddings = CreateEmbeddingResponse & { route: Route };
export type HybridRerank = RerankResponse & { route: Route };

/** The parts of a request. ``body``: the parameters for a side. */
interface EncodingRequest {
  readonly body: Readonly<Record<string, unknown>>;
  readonly properties: Parameters<typeof situationOf>[0]["properties"];
  /** Whether it has token ids, in which no pattern can be searched. */
  readonly hasIds: boolean;
  /** The number of texts. */
  readonly texts: number;
}

interface Answer {
  readonly data?: unknown;
  readonly results?: unknown;
  readonly usage?: { readonly prompt_tokens?: number };
}
type Ask = (side: Side, body: EncodingRequest["body"], signal: AbortSignal) => Promise<Answer>;

const ROUTING: Checks = {
  labels: check("a list of strings", isStrings),
  pin: only("near", "far"),
  language: text,
  signal: anAbortSignal,
} satisfies Record<keyof Routing | "signal", Check>;
const RETRY_MS = 250;

export class HybridEncoding {
  readonly #circuits: Readonly<Record<Side, Circuit>>;
  readonly #private: PrivateCheck;

  constructor(private readonly wiring: EncodingWiring) {
    const { policy, clock } = wiring;
    const { failures, open_ms: firstWaitMs } = policy.breaker;
    const circuit = (): Circuit =>
      new Circuit({ failures, firstWaitMs, longestWaitMs: firstWaitMs, clock: () => clock.now() });
    this.#circuits = { near: circuit(), far: circuit() };
    this.#private = PrivateCheck.of(policy.private);
  }

  /**
   * See `Hybrid.embeddings`. Throws RequestError (``details.code`` "different_models" if the sides have two models),
   * Unavailable, the error of a side if the other side cannot take over, or the signal's reason.
   */
  async embed(raw: HybridEmbeddingParams, options: Pick<RequestOptions, "signal"> = {}): Promise<HybridEmbeddings> {
    const { input } = raw as { readonly input?: unknown };
    const { near, far } = this.wiring;
    const ask: Ask = (side, body, signal) =>
      side === "near"
        ? near.ready.embeddings.create(body as unknown as EmbeddingCreateParams, { signal })
        : this.#post(far, "/v1/embeddings", body, (answer) => vectorsFit(answer, body), signal);
    const found = await this.#run(raw, input, options, ask, (side) => {
      this.#requireOneModel(side);
    });
    return found as unknown as HybridEmbeddings;
  }

  /** See `Hybrid.rerank`. Throws as `embed`, but each side may have its own model. */
  async rerank(raw: HybridRerankParams, options: Pick<RequestOptions, "signal"> = {}): Promise<HybridRerank> {
    const { documents } = raw as { readonly documents?: unknown };
    const { near, far } = this.wiring;
    const found = await this.#run(raw, documents, options, (side, body, signal) =>
      side === "near"
        ? near.ready.rerank(body as unknown as RerankParams, { signal })
        : this.#post(far, "/v1/rerank", body, ({ results }) => Array.isArray(results), signal),
    );
    return found as unknown as HybridRerank;
  }

  /** ``check`` throws if a side may not answer. */
  async #run(
    raw: object,
    inputs: unknown,
    options: Pick<RequestOptions, "signal">,
    ask: Ask,
    check: (side: Side) => void = () => undefined,
  ): Promise<object> {
    const { labels, pin, language, signal: own, ...body } = raw as Record<string, unknown>;
    const routing = readParams({ labels, pin, language, signal: own }, ROUTING) as Routing & { signal?: AbortSignal };
    const signal = anySignal(options.signal, routing.signal);
    signal.throwIfAborted();
    const request = requestOf(body, inputs, routing);
    const first = await this.#choose(request, signal);
    const { decision, standby } = first;
    const { fallback } = this.wiring.policy;
    const order: Side[] = decision.side === null ? [] : [decision.side];
    if (standby && decision.side === "near" && fallback.far_takes_over) order.push("far");
    if (standby && decision.side === "far" && fallback.near_continues) order.push("near");
    let failure: unknown;
    for (const side of order) {
      try {
        check(side);
        const answer = await this.#answer(side, request, ask, signal);
        const reason = side === decision.side ? decision.reason : `${decision.side ?? ""}_failed`;
        return { ...answer, route: { side, reason, scores: { ...decision.scores }, switched_at: null } };
      } catch (error) {
        signal.throwIfAborted();
        if (failureOf(side, error).kind === "request") throw failure ?? error;
        failure ??= error;
      }
    }
    throw failure;
  }

  /** One side's answer, after the policy's number of retries. */
  async #answer(side: Side, { body, texts }: EncodingRequest, ask: Ask, signal: AbortSignal): Promise<Answer> {
    const { policy, ledger, clock } = this.wiring;
    const { timeouts, retries, price } = policy;
    const circuit = this.#circuits[side];
    // A text is to embeddings what a token is to a chat.
    const limitMs = timeouts[`${side}_first_token_ms`] + timeouts.between_tokens_ms * Math.max(texts - 1, 0);
    for (let tries = 1; ; tries++) {
      const timer = { isOver: false };
      circuit.begin();
      if (side === "far") ledger.add({ requests: 1 });
      try {
        const answer = await withTimeout(
          clock,
          limitMs,
          (late) => {
            late.addEventListener("abort", () => (timer.isOver = true));
            const until = anySignal(signal, late);
            return unlessAborted(ask(side, body, until), until);
          },
          side === "near" ? "This device" : undefined,
        );
        circuit.succeeded();
        const { prompt_tokens = 0 } = answer.usage ?? {};
        if (side === "far") ledger.add({ usd: usdOf(price, { prompt_tokens, completion_tokens: 0 }) });
        return answer;
      } catch (error) {
        signal.throwIfAborted();
        const { kind, retryable, waitMs } = failureOf(side, error);
        if (kind !== "overloaded" && kind !== "request") circuit.failed();
        const pauseMs = waitMs ?? RETRY_MS * (0.5 + Math.random() / 2);
        if (!retryable || timer.isOver || tries > retries || pauseMs >= limitMs) throw error;
        await unlessAborted(new Promise<void>((resolve) => void clock.after(pauseMs, resolve)), signal);
      } finally {
        circuit.ended();
      }
    }
  }

  async #choose(request: EncodingRequest, signal: AbortSignal): Promise<Choice> {
    const { policy: given, near } = this.wiring;
    // A predictor is fitted to answers of chats.
    const policy = { ...given, quality: { ...given.quality, predictor: null } };
    const situation = await this.#situation(request);
    const unreadable = request.hasIds && policy.private.patterns.length > 0;
    const isPrivate = unreadable || this.#private.isPrivate(situation);
    let choice = choose(policy, situation, isPrivate);
    if (near.state === "loading" && waitsForNear(policy, choice)) {
      await unlessAborted(near.settled, signal);
      choice = choose(policy, await this.#situation(request), isPrivate);
    }
    if (choice.decision.side === null)
      throw refusal(choice.decision, near.state === "ready" ? null : whyNoEngine(near));
    return choice;
  }

  async #situation({ properties }: EncodingRequest): Promise<Situation> {
    const { policy, near, far, ledger, device } = this.wiring;
    const spent = ledger.today();
    const circuit = (side: Side): Situation["near"]["circuit"] => {
      const { admits, state } = this.#circuits[side];
      return admits ? state : "open";
    };
    return situationOf(
      { properties },
      {
        near: {
          ...UNKNOWN_SIDE,
          available: near.state === "ready",
          languages: policy.languages.near,
          circuit: circuit("near"),
        },
        far: {
          ...UNKNOWN_SIDE,
          languages: policy.languages.far,
          queue_seconds: far?.queueSeconds ?? 0,
          circuit: circuit("far"),
          round_trip_seconds: far?.roundTripSeconds ?? null,
          spent_usd_today: spent.usd,
          requests_today: spent.requests,
        },
        hasFar: far !== null,
        device: await device.read(),
      },
    );
  }

  /**
   * Throws if the sides' vectors could be of two models: they must have one name and, as far as it is known, one
   * tokenizer. A side that has not loaded or reported its model yet cannot have answered either, except far in an
   * earlier session, so near needs far's name.
   */
  #requireOneModel(side: Side): void {
    const { near, far } = this.wiring;
    if (far === null || near.state === "none") return;
    const nearName = near.info?.model ?? null;
    const farName = far.model?.id ?? far.requestedModel;
    if (farName === null) {
      if (side === "far") return;
      throw new Unavailable(
        "The far side has not reported its embedding model, so vectors of this device might not fit its vectors; set " +
          "far.model to its name, or use a policy with one side",
        { code: "unknown_model", retryable: true },
      );
    }
    const nearHash = near.info?.tokenizerSha256 ?? null;
    const farHash = far.model?.tokenizerSha256 ?? null;
    const fits = nearHash === null || farHash === null || nearHash === farHash;
    if (nearName === null || (nearName === farName && fits)) return;
    const which = nearName === farName ? `with different tokenizers` : `and the far side '${farName}'`;
    throw new RequestError(
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
  { labels, pin, language }: Routing,
): EncodingRequest {
  const list: readonly unknown[] = Array.isArray(inputs) ? inputs : [inputs];
  const isText = (value: unknown): boolean => typeof value === "string" || isObject(value);
  return {
    body,
    hasIds: !list.every(isText),
    texts: list.length,
    properties: {
      messages: [],
      labels: labels ?? [],
      texts: [...textsIn({ ...body, model: undefined })],
      pin: pin ?? null,
      max_tokens: null,
      tools: false,
      vision: false,
      language: language ?? null,
    },
  };
}
