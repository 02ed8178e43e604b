// The token engine: answers requests in token ids, token by token. It submits some steps before the oldest one is read,
// so the device never waits for the host. The scheduler decides what runs when.

import type { Drafting } from "../drafts/drafting.js";
import { DeviceError, RequestError } from "../errors.js";
import type { ExpertCounts } from "../experts/index.js";
import type { Batch, PatchBatch } from "../runtime/batch.js";
import { IN_PROMPT } from "../runtime/batch.js";
import { pagesOfSequence } from "../runtime/page_groups.js";
import type { StepResult } from "../runtime/results.js";
import type { Adapter, AdapterSlots } from "./adapters.js";
import { notLoaded } from "./adapters.js";
import { Answer, generatedToken } from "./answer.js";
import { checkRequest } from "./check_request.js";
import { Gate } from "./gate.js";
import { Lookahead } from "./lookahead.js";
import type { AnswerEnd, BegunAnswer, GeneratedToken, TokenRequest, TokenSource } from "./request.js";
import type { PrefixCache } from "./prefix_cache.js";
import type { RetainedPages } from "./retained_pages.js";
import { readRetained, writeRetained } from "./retained_pages.js";
import { Scheduler } from "./scheduler.js";
import type { PlacedImages, RetainedSequence } from "./sequence.js";
import { PLAIN, Sequence } from "./sequence.js";
import type { SchedulerEvent, Step } from "./step.js";
import { samplesAnswer } from "./step.js";
import { stepBatch } from "./step_batch.js";
import type { StepRunner } from "./step_runner.js";
import { Tiles } from "./tiles.js";

/** Counts since the start: steps, positions computed in them, preempted sequences, devices lost and replaced. */
export interface EngineCounts {
  readonly steps: number;
  readonly computedTokens: number;
  readonly preemptions: number;
  readonly recoveries: number;
  /** Snapshots of recurrent layers' states in the prefix cache now, and sequences that continued after one. */
  readonly stateSnapshots: number;
  readonly stateHits: number;
  /** Drafts that were checked, and those that were right. */
  readonly draftedTokens: number;
  readonly acceptedTokens: number;
  /**
   * For a mixture whose experts are not all on the device: how often a batch found an expert of a layer there, how often
   * one was read from its file, and the bytes of these. Null for other models.
   */
  readonly experts: ExpertCounts | null;
}

/** The properties of a model that the engine needs. */
export interface TokenModel {
  readonly vocabSize: number;
  readonly endTokenIds: readonly number[];
  /** Whether the model generates text, as most do; otherwise it makes vectors or scores. */
  readonly generates?: boolean;
  /**
   * Places the images of a request in its prompt, of which a step computes at most ``maxTokens``; null for a prompt
   * without any. Not defined if the model sees none. Throws RequestError.
   */
  readonly place?: ((request: TokenRequest, maxTokens: number) => PlacedImages | null) | undefined;
}

/** Another runner after a device failure, on a new device; throws if there is none. */
export type ReplaceRunner = (lost: DeviceError) => Promise<StepRunner>;

interface OpenStep {
  readonly step: Step;
  readonly result: Promise<StepResult>;
}

// The engine fails if the device is lost more often than this without a token in between.
const MAX_RECOVERIES = 3;

export class TokenEngine implements TokenSource {
  readonly #scheduler: Scheduler;
  readonly #answers = new Map<Sequence, Answer>();
  readonly #lookahead: Lookahead;
  /** Null before the first LoRA adapter is loaded. */
  adapters: AdapterSlots | null = null;
  /** Restores the prefix of a request; the result keeps it when the answer has ended. Null if none are kept. */
  prefixes: ((request: TokenRequest) => Promise<(() => void) | undefined>) | null = null;
  /** The starts of prompts whose keys and values another device has computed: prefixes.js keeps none that begins so. */
  declare foreign?: readonly (readonly number[])[];
  readonly #counts = { steps: 0, computedTokens: 0, preemptions: 0, recoveries: 0 };
  /** Holds the pages that are lent. */
  readonly #borrower = new Sequence(-1, [], PLAIN);
  readonly #tiles = new Tiles();
  #runner: StepRunner;
  #failure: Error | null = null;
  #running = false;
  #nextId = 0;
  #failuresInARow = 0;

  constructor(
    runner: StepRunner,
    private readonly model: TokenModel,
    private readonly replaceRunner: ReplaceRunner | null = null,
    private readonly gate = new Gate(),
    private readonly drafting: () => Drafting | undefined = () => undefined,
  ) {
    const { pageSize, groups, tokens, sequences, rows = sequences, context, states = 0 } = runner.limits;
    this.#runner = runner;
    this.#lookahead = new Lookahead(runner.stepsInFlight);
    this.#scheduler = new Scheduler({
      pageSize,
      groups,
      maxTokens: tokens,
      maxSequences: sequences,
      maxRows: rows,
      context,
      states,
    });
  }

  get counts(): EngineCounts {
    const { kv, drafted: draftedTokens, accepted: acceptedTokens } = this.#scheduler;
    const { cached: stateSnapshots = 0, hits: stateHits = 0 } = kv.states ?? {};
    const experts = this.#runner.expertCounts ?? null;
    return { ...this.#counts, stateSnapshots, stateHits, draftedTokens, acceptedTokens, experts };
  }

  get runner(): StepRunner {
    return this.#runner;
  }

  /**
   * Continue token ids. Any number of requests may run at once; they share the device's steps. To end a request early,
   * leave the loop or abort the signal. Throws RequestError, DeviceError, or the signal's reason.
   */
  async *generateTokens(
    request: TokenRequest,
    retained: RetainedSequence | null = null,
  ): AsyncGenerator<GeneratedToken, AnswerEnd, undefined> {
    let adapter: Adapter | null;
    let images: PlacedImages | null;
    let keepPrefix: (() => void) | undefined;
    try {
      if (this.model.generates === false)
        throw new RequestError(
          "This model generates no text; load one that does, or use embeddings.create, rerank, score, classify or " +
            "transcribe",
        );
      if (request.prefix !== undefined) keepPrefix = await this.prefixes?.(request);
      checkRequest(request, this.model.vocabSize, this.#scheduler.config);
      const { tokens, chunk = tokens } = this.#runner.limits;
      images = this.model.place?.(request, chunk) ?? null;
      if (images === null && (request.images ?? []).length > 0)
        throw new RequestError("This model reads texts only; leave the images out", { param: "images" });
      request.signal?.throwIfAborted();
      if (this.#failure !== null) throw this.#failure;
      adapter = request.adapter === undefined ? null : this.#use(request.adapter);
    } catch (error) {
      request.constraint?.dispose();
      throw error;
    }
    const { promptIds, maxTokens = Infinity, priority, whenFull } = request;
    const stopTokenIds = new Set([...this.model.endTokenIds, ...(request.stopTokenIds ?? [])]);
    const contextShift = typeof whenFull === "object" ? whenFull : null;
    const lockstep =
      (request.constraint ?? request.logitProcessor) !== undefined || this.drafting()?.needsTokens(request) === true;
    const promptLogprobs = this.#runner.samplesAnyRow ? (request.promptLogprobs ?? 0) : 0;
    // The log-probabilities of the prompt precede all tokens, so such an answer is generated again.
    const begun = promptLogprobs > 0 ? undefined : request.begun;
    const sequence = new Sequence(
      this.#nextId++,
      promptIds,
      { maxTokens, stopTokenIds, contextShift, lockstep, promptLogprobs, retained, adapter, images },
      priority,
    );
    const answer = new Answer(sequence, request, this.model.vocabSize);
    const abort = (): void => {
      this.#end(answer, request.signal?.reason);
    };
    request.signal?.addEventListener("abort", abort);
    this.#answers.set(sequence, answer);
    try {
      this.#begin(answer, begun);
      let token = await answer.next();
      if (promptLogprobs > 0) request.onPromptLogprobs?.(answer.promptLogprobs);
      for (; token !== null; token = await answer.next()) {
        request.onGenerated?.(token);
        yield token;
      }
      const end = begun?.end ?? answer.completion();
      request.onGenerated?.(end);
      return end;
    } finally {
      request.signal?.removeEventListener("abort", abort);
      this.#end(answer);
      if (adapter !== null) this.adapters?.release(adapter);
      request.constraint?.dispose();
      keepPrefix?.();
    }
  }

  /**
   * The features (F, E) of the patches of a tile, or of frames of sound, which are computed between two steps. Throws RequestError, DeviceError.
   */
  async features(batch: PatchBatch | Batch): Promise<Float32Array<ArrayBuffer>> {
    if (this.#failure !== null) throw this.#failure;
    const computed = this.#tiles.add(batch);
    this.#start();
    return computed;
  }

  #use(name: string): Adapter {
    if (this.adapters === null) throw notLoaded(name);
    return this.adapters.use(name);
  }

  /**
   * The keys and values of a conversation that are still cached, page by page, in the layout of this bundle, and its last
   * state.
   */
  readRetained(retained: RetainedSequence): Promise<RetainedPages> {
    return readRetained(this.#scheduler.kv, this.#runner, retained);
  }

  /**
   * The conversation whose keys and values `readRetained` returned. Without enough pages for them, its tokens are
   * computed again. Throws RequestError for bytes of another layout.
   */
  writeRetained(pages: RetainedPages): RetainedSequence {
    return writeRetained(this.#scheduler.kv, this.#runner, pages);
  }

  get prefixCache(): PrefixCache {
    return this.#scheduler.kv.prefixes;
  }

  /** Whether an answer is being generated, or the gate is closed. */
  get isBusy(): boolean {
    return this.#hasWork || this.gate.isClosed;
  }

  get #hasWork(): boolean {
    return this.#answers.size > 0 || this.#tiles.areWaiting;
  }

  /** Forget all keys and values. False while an answer is being generated. */
  forgetAll(): boolean {
    if (this.#hasWork) return false;
    this.#scheduler.reset();
    return true;
  }

  /**
   * A page of each group, and last a slot of a model's states, that no sequence uses until they are returned; null if one
   * sequence may need all of them: of slots, the one that it reads and the one that it writes.
   */
  lendPages(): readonly number[] | null {
    const { config, kv } = this.#scheduler;
    const { groups, states = 0 } = config;
    if (groups.some((group) => group.pages <= pagesOfSequence(group, config)) || (states > 0 && states < 3))
      return null;
    kv.start(this.#borrower, { length: 0, path: [], known: 0 });
    return kv.reserve(this.#borrower, 1) ? this.#borrower.tables.flatMap(({ live }) => live) : null;
  }

  returnPages(): void {
    this.#scheduler.kv.restart(this.#borrower);
  }

  /** Fail all answers and all further requests, as when the model is unloaded. */
  close(reason: Error): void {
    this.#failure ??= reason;
    for (const answer of this.#answers.values()) this.#end(answer, reason);
    this.#tiles.fail(reason);
  }

  /** Queue an answer after what an earlier run has generated of it, unless that was all. Throws RequestError. */
  #begin(answer: Answer, { tokens, end }: BegunAnswer = { tokens: [] }): void {
    const { sequence, request } = answer;
    const { constraint } = request;
    for (const token of tokens) answer.push(token);
    let isOver = end !== undefined;
    if (!isOver) {
      for (const { tokenId } of tokens) constraint?.accept(tokenId);
      this.#scheduler.add(sequence, answer.tokenIds);
      const isCut = tokens.length > 0 && sequence.isComplete(this.#scheduler.config.context);
      if (isCut && constraint?.complete !== true) this.#scheduler.finish(sequence, "length");
      isOver = isCut || (tokens.length > 0 && constraint?.finished === true);
    }
    if (isOver) this.#end(answer);
    else this.#start();
  }

  /** End an answer, with an error or complete, and its sequence if that is not finished. */
  #end(answer: Answer, error: unknown = null): void {
    if (!this.#answers.delete(answer.sequence)) return;
    this.#scheduler.finish(answer.sequence, "stop");
    this.drafting()?.forget(answer.sequence);
    answer.end(error);
  }

  #start(): void {
    if (this.#running) return;
    this.#running = true;
    void this.#run().finally(() => {
      this.#running = false;
      if (this.#hasWork) this.#start();
    });
  }

  /** Runs until nothing remains to do. */
  async #run(): Promise<void> {
    const open: OpenStep[] = [];
    // Requests that are made together go into one step.
    await Promise.resolve();
    this.#lookahead.restart(performance.now());
    for (;;) {
      try {
        // A step with a logit processor is submitted in two parts, and no other step may be submitted between them.
        while (!this.gate.isClosed && open.length < this.#depth()) {
          const drafting = this.drafting();
          const guesses = drafting?.guesses(this.#scheduler, this.#answers) ?? [];
          if (drafting && guesses.length > 0)
            await this.gate.through(() => drafting.draft(guesses, this.#scheduler.running.length));
          const step = this.#next();
          if (step === null) break;
          open.push({ step, result: this.gate.through(() => this.#submit(step)) });
        }
        if (this.#tiles.areWaiting && !this.gate.isClosed) {
          await this.#see();
          // Requests may have come meanwhile.
          if (open.length === 0) continue;
        }
        const first = open.shift();
        if (first === undefined && this.gate.isClosed) {
          await this.gate.opened();
          this.#lookahead.restart(performance.now());
          continue;
        }
        if (first === undefined) {
          // Without open steps, every sequence that can run would have been scheduled.
          if (this.#answers.size > 0) throw new Error("sequences wait and none can run");
          return;
        }
        const result = await first.result;
        this.#lookahead.read(performance.now());
        this.#failuresInARow = 0;
        for (const event of this.#scheduler.commit(first.step, result.tokenIds)) this.#publish(event, result);
      } catch (error) {
        // The other open steps fail for the same reason.
        for (const { result } of open.splice(0)) result.catch(() => undefined);
        if (!(await this.#recover(error))) return;
      }
    }
  }

  /** Compute the features of the next tile. If the device fails, another one computes them. */
  async #see(): Promise<void> {
    const compute = (batch: PatchBatch | Batch): Promise<Float32Array<ArrayBuffer> | undefined> =>
      this.gate.through(async () => this.#runner.features?.(batch));
    if (!(await this.#tiles.compute(compute))) return;
    this.#failuresInARow = 0;
    this.#lookahead.restart(performance.now());
  }

  /** How many steps may be open at once. */
  #depth(): number {
    if ([...this.#answers.values()].some(({ request }) => request.logitProcessor)) return 1;
    if (this.drafting()?.waits(this.#scheduler, this.#answers) !== true) return this.#lookahead.depth;
    this.#lookahead.restart(performance.now());
    return 1;
  }

  /** The next step; null if there is none, or the engine was paused while it drafted. */
  #next(): Step | null {
    return this.gate.isClosed ? null : this.#scheduler.next(this.#runner.chunk);
  }

  async #submit(step: Step): Promise<StepResult> {
    const runner = this.#runner;
    for (const sequence of step.admitted) this.#prepareSlot(sequence);
    if (step.copies.flat().length > 0) runner.copyPages(step.copies);
    const sampled = step.rows.filter(samplesAnswer).map(({ sequence }) => this.#answerOf(sequence));
    const broken: [Answer, unknown][] = [];
    for (const answer of sampled) this.#setMask(answer, broken);
    const { vocabSize } = this.model;
    const batch = stepBatch(step, runner.limits.pageSize, vocabSize, (sequence) => this.#answerOf(sequence));
    // The rows of a broken constraint are computed with the step, but not read.
    for (const [answer, error] of broken) this.#end(answer, error);
    this.#counts.steps++;
    this.#counts.preemptions += step.preempted.length;
    this.#counts.computedTokens += batch.token_ids.length;
    const prompts = step.rows.filter(({ promptLogprobs }) => promptLogprobs > 0);
    const logprobs = prompts.length > 0 || sampled.some(({ request }) => request.logprobs !== undefined);
    const alternatives =
      prompts.some(({ sequence }) => (this.#answerOf(sequence).request.promptAlternatives ?? 0) > 0) ||
      sampled.some(({ request }) => (request.logprobs ?? 0) > 0);
    if (!sampled.some(({ request }) => request.logitProcessor)) return runner.submit(batch, { logprobs, alternatives });
    const onLogits = (logitsOrToken: Float32Array | number, sample: number): void => {
      for (const answer of sampled) {
        if (answer.sequence.slot !== batch.sample_slots[2 * sample]) continue;
        try {
          answer.request.logitProcessor?.(logitsOrToken);
        } catch (error) {
          // The error ends only this answer.
          this.#end(answer, error);
        }
      }
    };
    const result = await runner.submit(batch, { logprobs, alternatives, onLogits });
    result.tokenIds.forEach(onLogits);
    return result;
  }

  #answerOf(sequence: Sequence): Answer {
    const answer = this.#answers.get(sequence);
    if (answer === undefined) throw new Error(`sequence ${sequence.id} has no answer`);
    return answer;
  }

  /** Write the states of a slot on the device for the sequence that starts in it. */
  #prepareSlot(sequence: Sequence): void {
    const { sampling, request, tokenIds } = this.#answerOf(sequence);
    if (sampling.penalizes) {
      const counts = new Int32Array(this.model.vocabSize);
      for (const id of request.promptIds) counts[id] = IN_PROMPT;
      for (const id of tokenIds) counts[id] = (counts[id] ?? 0) + 1;
      this.#runner.setTokenCounts(sequence.slot, counts);
    }
    if (sampling.logitBias !== null) this.#runner.setLogitBias(sequence.slot, sampling.logitBias);
  }

  /** Write a constraint's mask. A constraint that fails ends only its own answer. */
  #setMask(answer: Answer, broken: [Answer, unknown][]): void {
    const { request, sequence } = answer;
    answer.masked = false;
    try {
      const mask = request.constraint?.mask() ?? null;
      if (mask === null) return;
      this.#runner.setTokenMask(sequence.slot, mask);
      answer.masked = true;
    } catch (error) {
      broken.push([answer, error]);
    }
  }

  #publish(event: SchedulerEvent, result: StepResult): void {
    const answer = this.#answers.get(event.sequence);
    if (answer === undefined) return;
    const { logprobs: numAlternatives, promptAlternatives = 0 } = answer.request;
    if (event.type === "finished") {
      if (event.end !== undefined)
        answer.endToken = generatedToken(result, event.end.sample, event.end.tokenId, numAlternatives);
      this.#end(answer);
      return;
    }
    const { tokenId, sample } = event;
    if (event.type === "prompt_logprob") {
      answer.promptLogprobs.push(generatedToken(result, sample, tokenId, promptAlternatives));
      return;
    }
    answer.push(generatedToken(result, sample, tokenId, numAlternatives));
    const { constraint } = answer.request;
    try {
      constraint?.accept(tokenId);
      const { sequence } = event;
      if (sequence.finishReason === null && constraint?.finished === true) this.#end(answer);
      else if (sequence.finishReason === "length" && constraint?.complete === true) sequence.finishReason = "stop";
    } catch (error) {
      this.#end(answer, error);
    }
  }

  /** Continue with a new device, or fail all answers. */
  async #recover(error: unknown): Promise<boolean> {
    const failure = error instanceof Error ? error : new DeviceError(String(error));
    try {
      if (!(failure instanceof DeviceError) || this.replaceRunner === null || this.#failure !== null) throw failure;
      if (++this.#failuresInARow > MAX_RECOVERIES) throw failure;
      this.#runner = await this.replaceRunner(failure);
      const runner = this.#runner;
      this.adapters?.restore((...args) => runner.writeState?.(...args));
      this.#scheduler.reset();
      this.#counts.recoveries++;
      return true;
    } catch (final) {
      this.close(final instanceof Error ? final : failure);
      return false;
    }
  }
}
