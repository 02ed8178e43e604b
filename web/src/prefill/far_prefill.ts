// Far prefill: a server that has the same model computes the start of a prompt, and its keys, values and states come into
// this device's cache, at 4 bits. The device checks them before a token depends on them: it computes pages of its own and
// compares. What differs is discarded, and the device computes the prompt itself.

import type { TokenRequest } from "../engine/request.js";
import { newConversation } from "../engine/sequence.js";
import type { TokenEngine } from "../engine/token_engine.js";
import { NearfarError, RequestError, Unavailable, messageOf } from "../errors.js";
import type { AnyManifest } from "../runtime/any_manifest.js";
import type { Bytes } from "../runtime/source.js";
import type { ActivationDtype } from "../runtime/variants.js";
import type { PagesBlock, StatesBlock } from "./blocks.js";
import { readBlocks, wireBytes } from "./blocks.js";
import { largestDifference } from "./compare.js";
import type { StatesForm } from "./layout.js";
import { KvLayout } from "./layout.js";
import type { PrefillDecision, PrefillFacts, PrefillReason } from "./plan.js";

/** What far prefill needs of an engine: `Engine.cacheHost` is one. */
export interface CacheHost {
  readonly tokens: Pick<
    TokenEngine,
    "runner" | "prefixCache" | "generateTokens" | "readRetained" | "writeRetained" | "foreign"
  >;
  readonly manifest: AnyManifest;
  readonly info: () => { readonly activation: ActivationDtype };
}

/** Sends a request to the far side. Throws NearfarError, or the signal's reason. */
export type OpenFar = (
  route: string,
  body: Readonly<Record<string, unknown>>,
  signal: AbortSignal,
) => Promise<Response>;

/** "differs": what far sent is not what this device computes. "failed": far did not send it. "no_room": the cache is too small. */
export type PrefillEnd = PrefillReason | "differs" | "failed" | "no_room" | "unfit";

/** How the start of a prompt was computed, and why. */
export interface PrefillReport extends Omit<PrefillDecision, "reason"> {
  readonly reason: PrefillEnd;
  /** The tokens whose keys and values came from far, and the bytes that came. */
  readonly tokens: number;
  readonly bytes: number;
  /** How long that took, with all checks. */
  readonly seconds: number;
  /** The differences that were found, in steps of the codes: of the first page, and the largest of the others. */
  readonly differences: readonly number[];
  /** What went wrong. */
  readonly error?: unknown;
}

/** What has been measured of far. */
export interface Measured {
  readonly bytesPerSecond: number | null;
  readonly tokensPerSecond: number | null;
}

/** What a decision needs beside the prompt. */
export interface PrefillSituation {
  readonly decide: (facts: Pick<PrefillFacts, Counted>) => PrefillDecision;
  readonly measured: (block: PagesBlock) => void;
}
type Counted = "near_tokens" | "checked_tokens" | "far_tokens" | "bytes";

const ROUTE = "/v1/nearfar/prefill";
/**
 * The largest mean difference of a page that both sides have computed, without any context that was rounded to 4 bits, and
 * with one. tests/bench/bench_far_prefill.py measures them: equal weights are below half of these.
 */
const ROUNDED_ALIKE = 0.1;
const ROUNDED_CONTEXT = 0.4;

/** More prompts than a cache holds. */
const MOST_FOREIGN = 256;

/** By group, pages of this device by their index. */
type Pages = readonly Map<number, Bytes>[];

export class FarPrefill {
  readonly #layout: KvLayout;
  /** The prompts that are being checked, one after the other. */
  #filling: Promise<unknown> = Promise.resolve();

  /** Throws RequestError ("prefill_unavailable") for a model whose pages cannot be exchanged. */
  constructor(
    private readonly host: CacheHost,
    private readonly tokenizerSha256: string,
    private readonly open: OpenFar,
    private readonly states: StatesForm = "q4",
    private readonly now: () => number = () => performance.now(),
  ) {
    const { groups } = host.tokens.runner.limits;
    const { activation } = host.info();
    this.#layout = new KvLayout(
      host.manifest,
      activation,
      groups.map(({ window }) => window),
    );
  }

  /**
   * Have the start of a prompt in the engine's cache, from far if it is decided so. Only one prompt is filled at a time,
   * so that no answer starts from pages that are not checked. Throws the signal's reason, and DeviceError.
   */
  async fill(request: TokenRequest, situation: PrefillSituation): Promise<PrefillReport> {
    const before = this.#filling;
    const filling = before.then(() => this.#fill(request, situation));
    this.#filling = filling.catch(() => undefined);
    return filling;
  }

  async #fill(request: TokenRequest, { decide, measured }: PrefillSituation): Promise<PrefillReport> {
    const { signal = new AbortController().signal, promptIds: ids } = request;
    signal.throwIfAborted();
    const beganAt = this.now();
    const { pageSize } = this.#layout;
    // The last token is always computed here, as the next one is sampled from it.
    const tokens = Math.floor((ids.length - 1) / pageSize) * pageSize;
    const cached = this.#cached(ids, tokens);
    const base = Math.max(cached, pageSize);
    const asked = { start: base - pageSize, tokens };
    const checked = 2 * pageSize + (cached === 0 ? pageSize : 0) + ids.length - tokens;
    const facts = { near_tokens: ids.length - cached, checked_tokens: checked };
    const state = { bytes: 0, differences: [] as number[] };
    const ended = (decision: Omit<PrefillDecision, "reason">, reason: PrefillEnd, error?: unknown): PrefillReport => ({
      ...decision,
      side: reason === "sooner" || reason === "explores" ? decision.side : "near",
      reason,
      tokens: decision.side === "far" && (reason === "sooner" || reason === "explores") ? tokens - base : 0,
      bytes: state.bytes,
      seconds: (this.now() - beganAt) / 1000,
      differences: state.differences,
      ...(error !== undefined && { error }),
    });
    // The page that both compute first, and the last one, are not the same, and something lies between them.
    if (tokens < base + 2 * pageSize || !this.#fits(request))
      return ended(
        { side: "near", near_seconds: null, far_seconds: null },
        tokens < base + 2 * pageSize ? "few_tokens" : "unfit",
      );
    const bytes = wireBytes(this.#layout, asked, this.states);
    const decision = decide({ ...facts, far_tokens: tokens - asked.start, bytes });
    if (decision.side === "near") return ended(decision, decision.reason);
    const left = new AbortController();
    try {
      const first = cached === 0 ? this.#compute(request, pageSize) : Promise.resolve();
      first.catch(() => undefined);
      const until = AbortSignal.any([signal, left.signal]);
      const body = {
        tokenizer_sha256: this.tokenizerSha256,
        prompt: ids.slice(0, tokens),
        start: asked.start,
        states: this.states,
      };
      const response = await this.open(ROUTE, body, until);
      if (response.body === null) throw new Unavailable("The far side's computed prompt has no body");
      const received = new Received(this.#layout);
      for await (const block of readBlocks(response.body, this.#layout, asked, this.now)) {
        signal.throwIfAborted();
        received.add(block);
        if (block.type === "states") continue;
        state.bytes += block.bytes;
        measured(block);
        if (block.start === asked.start) {
          await first;
          const difference = await this.#difference(
            ids,
            asked.start / pageSize,
            block.pages.map(([page]) => page),
          );
          state.differences.push(difference);
          if (difference > ROUNDED_ALIKE) return ended(decision, "differs", this.#differs(difference, ROUNDED_ALIKE));
        }
        const done = block.start + block.tokens;
        const rest = decide({ ...facts, far_tokens: tokens - done, bytes: bytes - state.bytes });
        if (done < tokens && rest.side === "near") return ended({ ...decision, ...rest }, rest.reason);
      }
      const reason = await this.#write(request, received, { base, tokens }, state.differences);
      return ended(decision, reason ?? decision.reason);
    } catch (error) {
      signal.throwIfAborted();
      if (error instanceof Mismatch) return ended(decision, "differs", error.reason);
      if (!(error instanceof NearfarError) || error.code === "device_error") throw error;
      return ended(decision, "failed", error);
    } finally {
      left.abort();
    }
  }

  /** Whether far can compute the prompt: it is text for the model itself. */
  #fits({ promptIds, images = [], adapter, promptLogprobs = 0, begun }: TokenRequest): boolean {
    const isPlain = images.length === 0 && adapter === undefined && promptLogprobs === 0 && begun === undefined;
    return isPlain && promptIds.length <= this.host.tokens.runner.limits.context;
  }

  /** The tokens that the cache has, in whole pages. */
  #cached(ids: readonly number[], most: number): number {
    const { length } = this.host.tokens.prefixCache.find(ids, most);
    return length - (length % this.#layout.pageSize);
  }

  /** Compute the first ``length`` tokens of a prompt as one of its own. */
  async #compute({ promptIds, signal, priority }: TokenRequest, length: number): Promise<void> {
    const prompt = promptIds.slice(0, length + 1);
    const tokens = this.host.tokens.generateTokens({ promptIds: prompt, maxTokens: 1, signal, priority });
    while ((await tokens.next()).done !== true);
  }

  /** Of a page that this device has computed and one that came. Groups that have no such page are left out. */
  async #difference(ids: readonly number[], page: number, wire: readonly (Bytes | undefined)[]): Promise<number> {
    const own = await this.#ownPage(ids, page);
    return wire.reduce((most, theirs, group) => {
      const ours = own[group];
      if (theirs === undefined || ours == null) return most;
      const rows = [this.#layout.rowsOfDevice(group, ours), this.#layout.rowsOfWire(group, theirs)] as const;
      return Math.max(most, largestDifference(...rows));
    }, 0);
  }

  /** A page of the cache, by group; null for a group without one. Throws Mismatch if no group has one. */
  async #ownPage(ids: readonly number[], page: number): Promise<readonly (Bytes | null)[]> {
    const { prefixCache, runner } = this.host.tokens;
    const { pageSize, groups } = this.#layout;
    const end = (page + 1) * pageSize;
    const node = prefixCache.find(ids, end).path[page];
    const units = groups.map((_, group) => {
      const unit = node?.snapshots[group] ?? null;
      return unit === null ? [] : [unit];
    });
    if (units.every((each) => each.length === 0)) throw new NoRoom();
    const bytes = await runner.readPages([...units, ...(this.#layout.stateSize > 0 ? [[]] : [])]);
    let from = 0;
    return groups.map((group, index) => {
      if (units[index]?.length === 0) return null;
      return bytes.slice(from, (from += group.bytes));
    });
  }

  /** Put what came into the cache, and check it. Returns why it is not there. */
  async #write(
    request: TokenRequest,
    received: Received,
    { base, tokens }: { readonly base: number; readonly tokens: number },
    differences: number[],
  ): Promise<"no_room" | null> {
    const { promptIds: ids } = request;
    const { pageSize } = this.#layout;
    const last = tokens / pageSize - 1;
    const pages = await this.#withOwn(ids, base, received);
    try {
      for (const page of [...this.#sampled(base / pageSize, last), last]) {
        this.#put(ids.slice(0, page * pageSize), pages, page === last ? received.states : null);
        await this.#compute(request, (page + 1) * pageSize);
        const wire = received.wire.map((each) => each.get(page));
        const difference = await this.#difference(ids, page, wire);
        differences.push(difference);
        if (difference > ROUNDED_CONTEXT) throw new Mismatch(this.#differs(difference, ROUNDED_CONTEXT));
        const own = await this.#ownPage(ids, page);
        own.forEach((bytes, group) => bytes !== null && pages[group]?.set(page, bytes));
      }
      const foreign = [...(this.host.tokens.foreign ?? []), ids.slice(0, base + pageSize)];
      this.host.tokens.foreign = foreign.slice(-MOST_FOREIGN);
      return null;
    } catch (error) {
      this.#discard(ids, base, tokens);
      if (error instanceof NoRoom) return "no_room";
      throw error;
    }
  }

  /** A page between those that are always compared, which the server does not know; none if the model cannot start there. */
  #sampled(first: number, last: number): readonly number[] {
    const { groups, stateSize } = this.#layout;
    const reads = groups.every(({ window }) => window === null || window > last * this.#layout.pageSize);
    if (!reads || stateSize > 0 || last - first < 2) return [];
    const [random = 0] = crypto.getRandomValues(new Uint32Array(1));
    return [first + 1 + (random % (last - first - 1))];
  }

  /** The pages that came and, before them, those that the cache has. */
  async #withOwn(ids: readonly number[], base: number, received: Received): Promise<Pages> {
    const pages = received.device;
    const { tokenIds, deadPages, keysAndValues } = await this.host.tokens.readRetained({
      ...newConversation(),
      keys: ids.slice(0, base),
    });
    if (tokenIds.length !== base) throw new NoRoom();
    let from = 0;
    this.#layout.groups.forEach(({ bytes }, group) => {
      for (let page = deadPages[group] ?? 0; page < base / this.#layout.pageSize; page++)
        pages[group]?.set(page, keysAndValues.slice(from, (from += bytes)));
    });
    return pages;
  }

  /** Write the pages of these tokens into the cache. Throws NoRoom. */
  #put(tokenIds: readonly number[], pages: Pages, states: Bytes | null): void {
    const { tokens } = this.host;
    const deadPages = this.#layout.dead(tokenIds.length);
    const count = tokenIds.length / this.#layout.pageSize;
    const parts = pages.flatMap((group, index) =>
      Array.from({ length: count - (deadPages[index] ?? 0) }, (_, page) => {
        const found = group.get((deadPages[index] ?? 0) + page);
        if (found === undefined) throw new NoRoom();
        return found;
      }),
    );
    const keysAndValues = joined(states === null ? parts : [...parts, states]);
    tokens.writeRetained({ tokenIds, deadPages, adapter: "", keysAndValues });
    if (this.#cached(tokenIds, tokenIds.length) < tokenIds.length) throw new NoRoom();
  }

  /** Remove from the cache what is not this device's own. */
  #discard(ids: readonly number[], base: number, tokens: number): void {
    const { prefixCache } = this.host.tokens;
    const { path } = prefixCache.find(ids, tokens);
    for (const node of path.slice(base / this.#layout.pageSize).reverse()) {
      if (node.children.size > 0) return;
      prefixCache.remove(node);
    }
  }

  #differs(found: number, most: number): RequestError {
    return new RequestError(
      `What the far side has computed differs from what this device computes by ${found.toFixed(2)} steps of 4 bits, at ` +
        `most ${most} are expected; serve the same bundle's checkpoint with the same --quantization`,
      { code: "prefill_differs", found, most },
    );
  }
}

/** Of far's pages, those of this device and, for the comparison, as they came. */
class Received {
  readonly device: Pages;
  readonly wire: Pages;
  states: Bytes | null = null;

  constructor(private readonly layout: KvLayout) {
    this.device = layout.groups.map(() => new Map<number, Bytes>());
    this.wire = layout.groups.map(() => new Map<number, Bytes>());
  }

  add(block: PagesBlock | StatesBlock): void {
    if (block.type === "states") {
      this.states = this.layout.statesToDevice(block.content, block.dtype);
      return;
    }
    block.pages.forEach((pages, group) => {
      pages.forEach((page, index) => {
        const number = (block.first[group] ?? 0) + index;
        this.wire[group]?.set(number, page);
        this.device[group]?.set(number, this.layout.toDevice(group, page));
      });
    });
  }
}

/** The cache has too little room for the prompt. */
class NoRoom extends Error {}

class Mismatch extends Error {
  constructor(readonly reason: RequestError) {
    super(messageOf(reason));
  }
}

function joined(parts: readonly Bytes[]): Bytes {
  const all = new Uint8Array(parts.reduce((sum, { length }) => sum + length, 0));
  let from = 0;
  for (const part of parts) {
    all.set(part, from);
    from += part.length;
  }
  return all;
}
