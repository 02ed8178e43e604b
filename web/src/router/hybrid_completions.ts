// chat.completions.create over two sides: decides each request and runs its answer, which has its route.

import { foldChat } from "../api/chat_completions.js";
import { refuseId } from "../api/params.js";
import { Stream, anySignal } from "../api/stream.js";
import type { ChatCompletion, ChatCompletionChunk, RequestOptions } from "../api/types.js";
import { Unavailable } from "../errors.js";
import { unlessAborted } from "../runtime/abort.js";
import type { Rules } from "../shared/router/answer_machine.js";
import { rulesOf } from "../shared/router/answer_machine.js";
import { withTimeout } from "./sides/clock.js";
import { choose } from "../shared/decision/decide.js";
import { lastUserText } from "../shared/decision/features.js";
import type { HybridJournal } from "./hybrid_journal.js";
import type { DescribedRequest, Describer, SoundTranscriber } from "./describer.js";
import { HeldAnswer } from "./answer/held_answer.js";
import { needs } from "../shared/decision/media.js";
import type { NearSide } from "./sides/near.js";
import type { PrefilledNear } from "./sides/prefilled_near.js";
import type { Side } from "../shared/decision/decision.js";
import type { HybridParams, HybridParamsNonStreaming, HybridParamsStreaming, HybridRequest } from "./request.js";
import { conversationOf, estimatedTokens, readRequest, textWithCalls, withFileTexts } from "./request.js";
import type { Routing, SituatedChoice } from "./routing.js";
import type { AnswerItem, AnswerJob } from "./answer/running_answer.js";
import type { Side as AnsweringSide, SideRequest } from "./sides/sides.js";
import { remainingLimit, textOf } from "./sides/sides.js";
import type { Situation } from "../shared/decision/situation.js";
import type { LeavingChat, MaskedRequest, Masker } from "./masks.js";
import { warmUp } from "./answer/warm_up.js";
import { privateText } from "../shared/router/failures.js";
import { Watch } from "../shared/router/watch.js";

export interface ChatWiring {
  readonly routing: Routing;
  /** Far with near's guesses; null if the policy has no speculation. */
  readonly speculating: AnsweringSide | null;
  /** Near with prompts that far computes; null if the policy has no prefill. */
  readonly prefilled: Pick<PrefilledNear, "over"> | null;
  readonly embedder: Embedder | null;
  readonly transcriber: SoundTranscriber | null;
  /** Null if the policy masks nothing. */
  readonly masker: Masker | null;
}

export interface HybridRequestOptions extends Pick<RequestOptions, "signal"> {
  /** Records the answer, and continues what an earlier page has recorded; see `journalled`. */
  readonly journal?: HybridJournal | undefined;
}

/** The embedding model of a policy whose predictor reads embeddings. */
export interface Embedder {
  /** Its name in the policy. */
  readonly model: string;
  /**
   * The vector of a text as `nearfar router fit` makes it: of length 1, with the model's prompt for queries. The text may
   * be private, so it must not leave the device.
   */
  embed(text: string): Promise<readonly number[]>;
}

/** The maximum number of alternatives of a token that engines report. */
const ALTERNATIVES = 20;

export class HybridCompletions {
  readonly #routing: Routing;
  #describer: Describer | null = null;

  constructor(private readonly wiring: ChatWiring) {
    this.#routing = wiring.routing;
  }

  /**
   * Answers a chat. With ``stream: true`` it returns a Stream of chunks, which generates while it is read; otherwise
   * the complete answer. If only near may answer and it is still loading, it waits. Throws RequestError, Unavailable,
   * the error of a side if the other side cannot take over, or the signal's reason.
   */
  create(params: HybridParamsNonStreaming, options?: HybridRequestOptions): Promise<ChatCompletion>;
  create(params: HybridParamsStreaming, options?: HybridRequestOptions): Promise<Stream<ChatCompletionChunk>>;
  create(params: HybridParams, options?: HybridRequestOptions): Promise<ChatCompletion | Stream<ChatCompletionChunk>>;
  async create(
    params: HybridParams,
    options: HybridRequestOptions = {},
  ): Promise<ChatCompletion | Stream<ChatCompletionChunk>> {
    refuseId(options);
    const given = readRequest(params);
    const signal = anySignal(options.signal, given.signal);
    signal.throwIfAborted();
    const request = await withFileTexts(given);
    const items = await this.#items(request, signal, options.journal);
    if (request.streamed) return new Stream((left) => this.#stream(request, items(anySignal(signal, left))));
    return this.#completion(request, items(signal));
  }

  /** A chat as the policy lets it leave this device, for others than far; null if it must stay. */
  async leaving(params: HybridParams, signal: AbortSignal): Promise<LeavingChat | null> {
    const request = readRequest(params);
    if (await this.#isPrivate(request, request.properties as Situation, signal)) return null;
    return this.wiring.masker?.of(request) ?? request;
  }

  /** End the answer that far generates under a key, for a journal that is deleted. */
  endFar(key: string): void {
    this.#routing.wiring.far?.end(key);
  }

  /** What is answered, once it is decided who answers. A journal may have the complete answer. */
  async #items(
    request: HybridRequest,
    signal: AbortSignal,
    journal: HybridJournal | undefined,
  ): Promise<(until: AbortSignal) => AsyncIterable<AnswerItem>> {
    const whole = journal?.whole ?? null;
    if (whole !== null) return () => whole;
    const answered = await this.#confirmed(
      await this.#described(request, await this.#choose(request, signal), signal),
      journal?.begun ?? null,
      signal,
    );
    await journal?.decided(this.#hasPrivate(answered));
    return (until) => this.#run(answered, until, journal);
  }

  async #completion({ answered }: HybridRequest, items: AsyncIterable<AnswerItem>): Promise<ChatCompletion> {
    const chunks: ChatCompletionChunk[] = [];
    for await (const item of items) {
      if (item.type === "chunk") chunks.push(answered(item.chunk));
      else chunks.length = 0;
    }
    const route = chunks.findLast((chunk) => chunk.route !== undefined)?.route;
    const { receipts, parts } = chunks.at(-1) ?? {};
    const answer = await foldChat(chunks);
    // Only a far side cites.
    const annotations = chunks.flatMap(({ choices: [choice] }) => choice?.delta.annotations ?? []);
    const [first] = answer.choices;
    if (first && annotations.length > 0) first.message.annotations = annotations;
    return { ...answer, ...(route && { route }), ...(receipts && { receipts }), ...(parts && { parts }) };
  }

  async *#stream(
    request: HybridRequest,
    items: AsyncIterable<AnswerItem>,
  ): AsyncGenerator<ChatCompletionChunk, void, undefined> {
    for await (const item of items) {
      // The next chunk's route reports that the text was withdrawn.
      if (item.type === "withdraw") continue;
      const { usage, ...chunk } = request.answered(item.chunk);
      if (request.includeUsage) yield { ...chunk, usage: usage ?? null };
      else if (chunk.choices.length > 0 || chunk.receipts) yield chunk;
    }
  }

  async *#run(
    { request, choice: chosen, descriptions }: DescribedRequest,
    signal: AbortSignal,
    journal: HybridJournal | undefined,
  ): AsyncGenerator<AnswerItem, void, undefined> {
    const { policy, clock } = this.#routing.wiring;
    const masked = this.wiring.masker?.of(request) ?? null;
    const parts = request.params.receipt ? new (await import("./parts.js")).Parts(masked, descriptions) : null;
    const engine = this.#nearFor({ request, choice: chosen });
    const { choice: first, near: own } = journal?.goOn(chosen, engine) ?? { choice: chosen, near: engine };
    const near = parts?.over("near", own) ?? own;
    const logprobs = this.#logprobs(request, first);
    const begun = first.wants_signals ? this.#hold(request, near, logprobs.near, signal) : null;
    const { choice, held, earlyFailure } =
      begun === null
        ? { choice: first, held: null, earlyFailure: null }
        : await this.#chooseAgain(first, begun, signal);
    const { decision, standby } = choice;
    const isWatched = standby && decision.side === "near" && policy.escalation.then !== "never";
    const { params } = request;
    const guarded = this.#guarded(this.#farOf(choice, earlyFailure === null && parts === null, masked), masked);
    const asked = parts?.over("far", guarded) ?? guarded;
    const whole = { params, logprobs: logprobs.far, signal };
    const { far, shown, replays } =
      journal === undefined
        ? { far: asked, shown: null, replays: null }
        : await withTimeout(clock, policy.timeouts.far_first_token_ms, (late) => journal.overFar(asked, whole, late));
    if (shown !== null) parts?.goOnAfter(shown);
    const sides = { near: held === null ? near : held.over(near), far };
    // The time of a held answer is not the time of its generation.
    const learns = (side: Side): boolean => side !== replays && (side === "far" || held === null);
    const job: Parameters<Routing["run"]>[1] = {
      params,
      rules: this.#rules(request, decision.private),
      begun: shown,
      earlyFailure,
      descriptions,
      masked: () => masked?.left ?? [],
      sides,
      warm: (until) => this.#warm(request, masked, until),
      watch: isWatched
        ? new Watch({ ...policy.escalation, max_tokens: remainingLimit({ params, from: null }).max_tokens ?? null })
        : null,
      logprobs,
      shownAlternatives: params.logprobs === true ? (params.top_logprobs ?? 0) : null,
      signal,
    };
    const items = this.#remembered(request, this.#routing.run(choice, job, learns, replays));
    for await (const item of parts?.stated(items) ?? items) {
      journal?.shown(item);
      yield item;
    }
  }

  /** Whether a request has private texts, which this device must not store: one that is masked has them, too. */
  #hasPrivate({ request, choice }: Pick<DescribedRequest, "request" | "choice">): boolean {
    return choice.decision.private || (this.wiring.masker?.of(request)?.masks.length ?? 0) > 0;
  }

  /** Near, which stores nothing of a private prompt. Far may compute another one if it may be asked for the answer. */
  #nearFor(answered: Pick<DescribedRequest, "request" | "choice">): Pick<NearSide, "answer" | "info"> {
    const { near } = this.#routing.wiring;
    if (this.#hasPrivate(answered))
      return { info: near.info, answer: (request, observed) => near.answer({ ...request, private: true }, observed) };
    return this.wiring.prefilled?.over(near, answered) ?? near;
  }

  /**
   * Passes the items on. Once the answer is complete, it is assumed that the side that ended it has the conversation in
   * its cache.
   */
  async *#remembered(
    request: HybridRequest,
    items: AsyncIterable<AnswerItem>,
  ): AsyncGenerator<AnswerItem, void, undefined> {
    const chunks: ChatCompletionChunk[] = [];
    for await (const item of items) {
      if (item.type === "withdraw") chunks.length = 0;
      else {
        const { route, choices } = item.chunk;
        chunks.push(item.chunk);
        if (route !== undefined && choices.some(({ finish_reason: end }) => end !== null)) {
          const [choice] = (await foldChat(chunks)).choices;
          this.#routing.records[route.side].memory.remember(
            conversationOf(request),
            textWithCalls(choice?.message.content ?? "", choice?.message.tool_calls),
            this.#routing.seconds(),
          );
        }
      }
      yield item;
    }
  }

  /** What is answered: near may have to describe the request's media first, whose code is loaded then. */
  async #described(request: HybridRequest, choice: SituatedChoice, signal: AbortSignal): Promise<DescribedRequest> {
    if (choice.describes.length === 0) return { request, choice, descriptions: [] };
    const { Describer } = await import("./describer.js");
    this.#describer ??= new Describer(this.#routing, this.wiring.transcriber);
    const situate = (described: HybridRequest): Promise<Situation> => this.#situation(described, signal);
    const isPrivate = (described: HybridRequest, situation: Situation): Promise<boolean> =>
      this.#isPrivate(described, situation, signal);
    return this.#describer.decide(request, choice, situate, isPrivate, signal);
  }

  async #choose(request: HybridRequest, signal: AbortSignal): Promise<SituatedChoice> {
    const { masker } = this.wiring;
    const isPrivate = masker === null ? null : await this.#isPrivate(request, null, signal);
    try {
      return await this.#chooseAs(request, isPrivate, signal);
    } catch (error) {
      throw masker === null ? error : masker.explained(request, error);
    }
  }

  #chooseAs(request: HybridRequest, isPrivate: boolean | null, signal: AbortSignal): Promise<SituatedChoice> {
    const routing = this.#routing;
    return routing.choose(routing.wiring.policy, () => this.#situation(request, signal), isPrivate, signal);
  }

  /** Whether a request must stay on the device; one that is masked need not. ``situation``: for a policy without masks. */
  async #isPrivate(request: HybridRequest, situation: Situation | null, signal: AbortSignal): Promise<boolean> {
    const { masker } = this.wiring;
    if (masker !== null) return (await masker.mask(request, signal)) === null;
    return situation !== null && this.#routing.privacy.isPrivate(situation);
  }

  /** The request stays on the device if the application does not agree to what would leave. */
  async #confirmed(
    answered: DescribedRequest,
    begun: HybridJournal["begun"],
    signal: AbortSignal,
  ): Promise<DescribedRequest> {
    const { request, choice } = answered;
    const { masker } = this.wiring;
    const leaves = choice.decision.side === "far" || choice.standby;
    if (!leaves || masker === null || (await masker.mayLeave(request, begun, signal))) return answered;
    return { ...answered, choice: await this.#chooseAs(request, true, signal) };
  }

  async #situation(request: HybridRequest, signal: AbortSignal): Promise<Situation> {
    const { near } = this.#routing.wiring;
    return this.#routing.situation(request, {
      // To count the tokens of a recording, near would have to write it down, even for far.
      tokens:
        (needs(request.properties.media).sound ? null : await near.countTokens(request.params)) ??
        estimatedTokens(request),
      conversation: conversationOf(request),
      embedding: await this.#embedding(request, signal),
    });
  }

  /**
   * The vector of the last user message, if the predictor reads it.
   */
  async #embedding({ properties }: HybridRequest, signal: AbortSignal): Promise<readonly number[] | null> {
    const { embedder } = this.wiring;
    if (!embedder || !this.#routing.wiring.policy.quality.predictor?.embedding) return null;
    return this.#inTime(embedder.embed(lastUserText(properties.messages)), signal);
  }

  /** The decision with near's signals, and its answer if near was chosen; or how near failed. */
  async #chooseAgain(
    first: SituatedChoice,
    held: HeldAnswer,
    signal: AbortSignal,
  ): Promise<
    Required<Pick<AnswerJob, "earlyFailure">> & { readonly choice: SituatedChoice; readonly held: HeldAnswer | null }
  > {
    let used = false;
    try {
      const begun = await this.#inTime(held.begun, signal);
      const late = begun === null && held.signals === null;
      const earlyFailure = held.failure ?? (late ? "late" : null);
      const situation = { ...first.situation, near_signals: earlyFailure === null ? held.signals : null };
      const choice = { ...choose(this.#routing.wiring.policy, situation, first.decision.private), situation };
      used = earlyFailure === null && choice.decision.side === "near";
      return { choice, held: used ? held : null, earlyFailure };
    } finally {
      if (!used) {
        held.drop();
        this.#routing.records.near.circuit.ended();
      }
    }
  }

  /** Null if the promise is rejected, or takes longer than near may for its first token. */
  async #inTime<T>(promise: Promise<T>, signal: AbortSignal): Promise<T | null> {
    const { policy, clock } = this.#routing.wiring;
    try {
      return await withTimeout(clock, policy.timeouts.near_first_token_ms, (late) =>
        unlessAborted(promise, anySignal(signal, late)),
      );
    } catch {
      signal.throwIfAborted();
      return null;
    }
  }

  #hold(
    { params }: HybridRequest,
    near: Pick<NearSide, "answer">,
    logprobs: number | null,
    signal: AbortSignal,
  ): HeldAnswer {
    const controller = new AbortController();
    const until = anySignal(signal, controller.signal);
    const { policy } = this.#routing.wiring;
    this.#routing.records.near.circuit.begin();
    // Its engine must then compute the prompt's tokens again.
    const wantsPrompt = policy.quality.predictor?.features.includes("prompt_mean_logprob") === true;
    return new HeldAnswer(
      (option) => near.answer({ params, from: null, logprobs, signal: until }, wantsPrompt ? option : undefined),
      controller,
    );
  }

  /**
   * The log-probabilities that each side must report: those that the caller requested, and for near those that the
   * watch or the predictor reads.
   */
  #logprobs({ params }: HybridRequest, choice: SituatedChoice): Readonly<Record<Side, number | null>> {
    const { policy } = this.#routing.wiring;
    const { escalation } = policy;
    const shown = params.logprobs === true ? (params.top_logprobs ?? 0) : null;
    if (!choice.standby) return { near: shown, far: shown };
    const watched = escalation.then === "never" ? null : escalation.max_mean_entropy === null ? 0 : ALTERNATIVES;
    const needed = choice.wants_signals ? ALTERNATIVES : watched;
    return { near: shown === null ? needed : Math.max(shown, needed ?? 0), far: shown };
  }

  async #warm(request: HybridRequest, masked: MaskedRequest | null, signal: AbortSignal): Promise<void> {
    const { far, ledger, policy } = this.#routing.wiring;
    if (far === null) return;
    const { params } = request;
    await warmUp(
      {
        params,
        conversation: conversationOf(request),
        far: masked?.over(far) ?? far,
        record: this.#routing.records.far,
        ledger,
        policy,
        now: () => this.#routing.seconds(),
      },
      signal,
    );
  }

  #rules({ params }: HybridRequest, isPrivate: boolean): Rules {
    const { policy, far } = this.#routing.wiring;
    const { response_format: format, tool_choice, continue_final_message: continues } = params;
    const facts = { private: isPrivate, prompt: "chat", format: format?.type ?? null, tool_choice, continues } as const;
    return rulesOf(policy, { ...facts, dialect: far?.dialect ?? null });
  }

  /**
   * Near guesses only if it may and is well, and far was chosen, not for a far side that takes over from near. Near knows
   * what is masked.
   */
  #farOf(choice: SituatedChoice, nearIsWell: boolean, masked: MaskedRequest | null): AnsweringSide | null {
    const { far } = this.#routing.wiring;
    if (masked !== null && masked.masks.length > 0) return far;
    return choice.decision.side === "far" && choice.may_guess && nearIsWell ? (this.wiring.speculating ?? far) : far;
  }

  /** The far side, which never receives near's text if that contains something private. */
  #guarded(far: AnsweringSide | null, masked: MaskedRequest | null): AnsweringSide {
    const check = this.#routing.privacy;
    const side = far === null || masked === null ? far : masked.over(far);
    return {
      answer: (request: SideRequest) => {
        if (side === null) throw new Unavailable("There is no far side", { retryable: false });
        const { from } = request;
        if (
          masked === null &&
          from !== null &&
          // Near's text meets the last message, which it may also continue.
          (check.matches(...request.params.messages.slice(-1).map(textOf), from.text) ||
            check.matches(from.reasoning ?? ""))
        )
          throw privateText();
        return side.answer({
          ...request,
          from: from && { ...from, tokenIds: this.#sharesTokens() ? from.tokenIds : null },
        });
      },
    };
  }

  /** Whether both sides' models have the same token ids. */
  #sharesTokens(): boolean {
    const { near, far } = this.#routing.wiring;
    const sha256 = near.info?.tokenizerSha256 ?? null;
    return sha256 !== null && sha256 === far?.model?.tokenizerSha256;
  }
}
