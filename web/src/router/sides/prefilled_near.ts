// The near side, whose long prompts far may compute: near answers, from keys and values that it has checked. The policy's
// arithmetic decides with what is known about both sides. Whatever goes wrong with far, near computes the prompt itself.

import type { ChatCompletionChunk, PromptLogprobsOption } from "../../api/types.js";
import type { AnswerEnd, GeneratedToken, TokenRequest } from "../../engine/request.js";
import { NearfarError, RequestError, Unavailable } from "../../errors.js";
import type { PrefillReport, PrefillSituation } from "../../prefill/far_prefill.js";
import { FarPrefill } from "../../prefill/far_prefill.js";
import type { PrefillDecision } from "../../prefill/plan.js";
import { decidePrefill } from "../../prefill/plan.js";
import { isSpent, paidUsd } from "../../shared/decision/costs.js";
import { badPolicy } from "../../shared/decision/schema_check.js";
import type { DescribedRequest } from "../describer.js";
import type { Routing } from "../routing.js";
import type { FarSide } from "./far.js";
import type { DraftingEngine, NearSide } from "./near.js";
import type { SideRequest } from "./sides.js";

/** Totals of all prompts that far was asked for. */
export interface PrefillCounts {
  /** How often far was asked, and how often its keys and values were used. */
  readonly asked: number;
  readonly used: number;
  /** What was used: tokens, and bytes on the wire. */
  readonly tokens: number;
  readonly bytes: number;
  /** How often they were not those that this device computes. */
  readonly differed: number;
  /** Of the last prompt; null before the first one. */
  readonly last: PrefillReport | null;
}

/** The weight of the newest measurement in the mean; the older ones share the rest. */
const NEWEST_WEIGHT = 0.3;
/** Shorter parts, such as the first page, show how long a server takes to begin rather than how fast it computes. */
const LEAST_MEASURED_TOKENS = 64;
/** Smaller blocks arrive too fast to be measured. */
const LEAST_MEASURED_BYTES = 16 << 10;
/** The codes of servers that never compute prompts for this device. */
const NEVER: readonly unknown[] = [
  "prefill_unavailable",
  "prefill_version",
  "prefill_differs",
  "tokenizer_differs",
  "model_differs",
  "unknown_url",
];

type Answers = Pick<NearSide, "answer" | "info">;

export class PrefilledNear {
  #prefill: FarPrefill | null = null;
  #engine: DraftingEngine | null = null;
  /** Why far is not asked again. */
  #off: unknown = null;
  #before: PrefillDecision["side"] | null = null;
  #secondsPerByte: number | null = null;
  #secondsPerToken: number | null = null;
  readonly #counts = { asked: 0, used: 0, tokens: 0, bytes: 0, differed: 0 };
  #last: PrefillReport | null = null;

  /** Throws RequestError with the code "bad_policy" if far may not, or cannot, have the tokens of prompts. */
  constructor(
    private readonly far: FarSide,
    private readonly near: NearSide,
    private readonly routing: Routing,
  ) {
    if (far.dialect !== "nearfar")
      throw badPolicy("prefill", `a server of dialect ${far.dialect} computes no prompts for others; remove it`);
    if (routing.wiring.policy.private.masks?.strict === true)
      throw badPolicy(
        "prefill",
        "the tokens of a prompt are not the fields that private.masks.strict lets leave; remove it",
      );
  }

  get counts(): PrefillCounts {
    return { ...this.#counts, last: this.#last };
  }

  /** Near, for a request that has no private texts. */
  over(inner: Answers, { request: { params }, choice }: Pick<DescribedRequest, "request" | "choice">): Answers {
    // Far may have the prompt if it could be asked for the answer. A receipt covers what this device has computed.
    if (!choice.standby || params.receipt === true) return inner;
    return { info: inner.info, answer: (request, observed) => this.#answer(inner, request, observed) };
  }

  async *#answer(
    inner: Answers,
    request: SideRequest,
    observed: PromptLogprobsOption | undefined,
  ): AsyncGenerator<ChatCompletionChunk, void, undefined> {
    const engine = this.near.drafting;
    // Of an answer that was begun, the text may be private.
    if (engine === null || this.#off !== null || request.from !== null || observed !== undefined) {
      yield* inner.answer(request, observed);
      return;
    }
    let waitedMs = 0;
    const filled = (tokens: TokenRequest) =>
      this.#generate(engine, tokens, (ms) => {
        waitedMs += ms;
      });
    const completions = engine.over({ generateTokens: filled });
    for await (const chunk of this.near.answer(request, observed, completions)) {
      const { usage } = chunk;
      // What near waits for is not how fast it is.
      yield waitedMs > 0 && usage
        ? { ...chunk, usage: { ...usage, queue_ms: (usage.queue_ms ?? 0) + waitedMs } }
        : chunk;
    }
  }

  async *#generate(
    engine: DraftingEngine,
    request: TokenRequest,
    waited: (milliseconds: number) => void,
  ): AsyncGenerator<GeneratedToken, AnswerEnd, undefined> {
    const { clock } = this.routing.wiring;
    const beganAt = clock.now();
    let isFar = false;
    try {
      const report = await this.#fill(engine, request);
      isFar = report?.side === "far";
      if (report !== null && report.bytes > 0) waited(Math.round(clock.now() - beganAt));
    } catch (error) {
      request.constraint?.dispose();
      throw error;
    }
    // What far has computed is not kept for later pages.
    return yield* engine.generateTokens(isFar ? { ...request, prefix: undefined } : request);
  }

  /** Null if far is not asked at all. */
  async #fill(engine: DraftingEngine, request: TokenRequest): Promise<PrefillReport | null> {
    const { policy, ledger } = this.routing.wiring;
    const { signal } = request;
    if (policy.prefill === null || isSpent(policy.budget, ledger.today())) return null;
    const prefill = await this.#prefillOf(engine, signal ?? new AbortController().signal);
    if (prefill === null) return null;
    const report = await prefill.fill(request, this.#situation());
    this.#last = report;
    const { reason, side, tokens, bytes, error } = report;
    if (side === "far") {
      this.#counts.used += 1;
      this.#counts.tokens += tokens;
      this.#counts.bytes += bytes;
    }
    if (reason === "differs") this.#counts.differed += 1;
    if (error instanceof NearfarError && NEVER.includes(error.details.code)) this.#off = error;
    return report;
  }

  /** Null if this engine or this far side never does it. */
  async #prefillOf(engine: DraftingEngine, signal: AbortSignal): Promise<FarPrefill | null> {
    if (this.#prefill !== null && this.#engine === engine) return this.#prefill;
    const { cacheHost } = engine;
    if (cacheHost === undefined) return null;
    const sha256 = engine.info.tokenizerSha256;
    try {
      const model = await this.far.reach(signal);
      if (sha256 === null || model.tokenizerSha256 !== sha256) {
        this.#off = new RequestError("The far side's model has another tokenizer", { code: "tokenizer_differs" });
        return null;
      }
      const { clock } = this.routing.wiring;
      this.#prefill = new FarPrefill(
        cacheHost,
        sha256,
        (...args) => this.#open(...args),
        this.routing.wiring.policy.prefill?.states,
        () => clock.now(),
      );
      this.#engine = engine;
      return this.#prefill;
    } catch (error) {
      signal.throwIfAborted();
      if (error instanceof NearfarError && NEVER.includes(error.details.code)) this.#off = error;
      return null;
    }
  }

  /** Far's answer, which begins in its time. It is paid for like an answer without tokens. */
  async #open(route: string, body: Readonly<Record<string, unknown>>, signal: AbortSignal): Promise<Response> {
    const { policy, ledger, clock } = this.routing.wiring;
    const late = new AbortController();
    const { far_first_token_ms: mostMs } = policy.timeouts;
    const cancel = clock.after(mostMs, () => {
      late.abort(
        new Unavailable(`The far side did not begin to send a prompt within ${mostMs} ms`, { retryable: true }),
      );
    });
    this.#counts.asked += 1;
    ledger.add({ requests: 1 });
    try {
      const response = await this.far.open(route, body, AbortSignal.any([signal, late.signal]));
      const { prompt } = body as { readonly prompt: readonly number[] };
      const usage = { prompt_tokens: prompt.length, completion_tokens: 0 };
      ledger.add({ usd: paidUsd(policy, { usage, tokens: 0, refused: false }, 0) });
      return response;
    } finally {
      cancel();
    }
  }

  #situation(): PrefillSituation {
    const { policy } = this.routing.wiring;
    const { near, far } = this.routing.records;
    const { min_tokens = Infinity } = policy.prefill ?? {};
    return {
      decide: (counted) => {
        const decision = decidePrefill(
          {
            ...counted,
            near_tokens_per_second: near.speed.prefill_tokens_per_second,
            far_tokens_per_second: rate(this.#secondsPerToken) ?? far.speed.prefill_tokens_per_second,
            bytes_per_second: rate(this.#secondsPerByte),
            queue_seconds: this.far.queueSeconds,
            round_trip_seconds: far.speed.round_trip_seconds ?? this.far.roundTripSeconds,
            usd: paidUsd(
              policy,
              { usage: { prompt_tokens: counted.far_tokens, completion_tokens: 0 }, tokens: 0, refused: false },
              0,
            ),
          },
          { min_tokens, usd_per_second: policy.costs.usd_per_second },
          this.#before,
        );
        this.#before = decision.reason === "few_tokens" ? this.#before : decision.side;
        return decision;
      },
      measured: ({ tokens, seconds, bytes, transferMs }) => {
        if (seconds > 0 && tokens >= LEAST_MEASURED_TOKENS)
          this.#secondsPerToken = mean(this.#secondsPerToken, seconds / tokens);
        if (bytes >= LEAST_MEASURED_BYTES && transferMs > 0)
          this.#secondsPerByte = mean(this.#secondsPerByte, transferMs / 1000 / bytes);
      },
    };
  }
}

function rate(seconds: number | null): number | null {
  return seconds === null ? null : 1 / seconds;
}

function mean(old: number | null, newest: number): number {
  return old === null ? newest : old + NEWEST_WEIGHT * (newest - old);
}
