// Prefixes that stay: the keys and values, and states, of the start of prompts, such as a system message, are kept on
// this device, so that a later page need not compute them. Also those that the compiler shipped with the bundle.

import type { TokenRequest } from "../engine/request.js";
import type { TokenEngine } from "../engine/token_engine.js";
import { newConversation } from "../engine/sequence.js";
import { RequestError } from "../errors.js";
import { requireKnown } from "../known_options.js";
import type { AnyManifest } from "../runtime/any_manifest.js";
import { isExport } from "../runtime/any_manifest.js";
import type { FileEntry } from "../runtime/manifest.js";
import { sizeBytes } from "../runtime/memory.js";
import { PAGE_DIMS, STATE_DIM } from "../runtime/page_groups.js";
import { planOf } from "../runtime/plan.js";
import { sha256 } from "../runtime/read_file.js";
import type { Bytes } from "../runtime/source.js";
import type { ActivationDtype } from "../runtime/variants.js";
import type { PrefixKey, PrefixPages } from "./prefix_store.js";
import { PrefixStore } from "./prefix_store.js";

export interface PrefixOptions {
  /**
   * Beyond these bytes, the prefixes that were not used for longest are deleted. By default 256 MiB, and 64 MiB on a
   * device whose browser reports 4 GiB of memory or less.
   */
  readonly budgetBytes?: number | undefined;
  /**
   * The uses from which on a prefix is kept, on this page and earlier ones; 2 by default, so that a system message that
   * is never the same again costs no storage.
   */
  readonly minUses?: number | undefined;
  /** Instead of this origin's file system and locks. */
  readonly store?: PrefixStore | undefined;
}

/** What prefixes need of an engine. */
export interface PrefixHost extends PrefixOptions {
  readonly tokens: Pick<
    TokenEngine,
    "runner" | "prefixCache" | "generateTokens" | "readRetained" | "writeRetained" | "foreign"
  >;
  readonly manifest: AnyManifest;
  /** The result of `bundleId`. */
  readonly id: string;
  /** Its options as they were given, and `read`. */
  readonly prefixes?: object | false | undefined;
  readonly info: () => { readonly adapter: string; readonly activation: ActivationDtype };
  /** A file of the bundle. */
  readonly read: (file: FileEntry) => Promise<Bytes>;
  /** Set by `before`. */
  opened?: Prefixes;
}

/** Call it before a request of an engine is answered; see `Prefixes.before`. */
export function before(host: PrefixHost, request: TokenRequest): Promise<() => void> {
  host.opened ??= new Prefixes(host);
  return host.opened.before(request);
}

/** A shorter prefix is computed about as fast as it is read. */
const LEAST_TOKENS = 64;
const MIB = 2 ** 20;
const SMALL_MEMORY_GIB = 4;
/** For what the compiler computed, and not a device. */
const SHIPPED = "compiler";

const nothing = (): void => undefined;

export class Prefixes {
  readonly #store: Promise<PrefixStore | null>;
  readonly #budgetBytes: number;
  readonly #minUses: number;
  /** By their tokens, those that are kept or shipped, or are not to be kept by this page. */
  readonly #settled = new Set<string>();
  /** By their tokens, those that are stored, and for which the engine's cache has too little room. */
  readonly #unfit = new Set<string>();
  /** By their tokens, what opens them now. */
  readonly #opening = new Map<string, Promise<boolean>>();
  /** Those that the compiler computed and that are in the engine's cache. */
  readonly #shipped: (readonly number[])[] = [];
  /** The writes that are under way, one after the other. */
  #writing: Promise<void> = Promise.resolve();

  /** Throws RequestError for an unknown option. */
  constructor(private readonly host: PrefixHost) {
    const { store, budgetBytes = defaultBudget(), minUses = 2, prefixes = {} } = host;
    requireKnown(prefixes === false ? {} : prefixes, ["budgetBytes", "minUses", "store", "read"], "prefixes.");
    // A browser that cannot store anything computes prefixes, as without this file.
    this.#store = store === undefined ? PrefixStore.open().catch(() => null) : Promise.resolve(store);
    this.#budgetBytes = budgetBytes;
    this.#minUses = minUses;
  }

  /**
   * Call before a request is answered: its prefix is then in the engine's cache, if it is stored or shipped. Call the
   * result when the answer has ended: it keeps the prefix if that is new. Throws RequestError for a wrong ``prefix``, or
   * the signal's reason.
   */
  async before(request: TokenRequest): Promise<() => void> {
    const ids = this.#prefixOf(request);
    if (ids === null) return nothing;
    const name = ids.join();
    const opening = this.#opening.get(name);
    if (opening !== undefined) {
      // Answers to one prompt that begin together are one use.
      await opening.catch(nothing);
      return nothing;
    }
    const opened = this.#open(ids, name, request);
    this.#opening.set(name, opened);
    try {
      if (!(await opened)) return nothing;
    } finally {
      this.#opening.delete(name);
    }
    return () => {
      if (this.#settled.has(name)) return;
      this.#settled.add(name);
      this.#later(() => this.#keep(ids));
    };
  }

  /** Resolves when everything is written that is to be kept so far. */
  async settled(): Promise<void> {
    await this.#writing;
  }

  /** Whether the prefix is to be kept when its answer has ended. */
  async #open(ids: readonly number[], name: string, request: TokenRequest): Promise<boolean> {
    const { tokens } = this.host;
    const isCached = this.#isCached(ids);
    if (this.#unfit.has(name) || (isCached && this.#settled.has(name))) return false;
    const store = await this.#store;
    const key = this.#key(ids);
    const isStored = isCached ? await store?.has(key).catch(() => false) : await this.#restore(key);
    const isDone = isStored === true || (!isCached && (await this.#ship(ids)));
    // Pages that follow some of the compiler's are not those that the device would compute.
    const isForeign = [...this.#shipped, ...(tokens.foreign ?? [])].some((own) => startsWith(ids, own));
    if (isDone || isForeign || store === null || this.#bytesOf(ids.length) > this.#budgetBytes) this.#settled.add(name);
    if (store === null || this.#settled.has(name)) return false;
    if ((await store.count(key).catch(() => 0)) < this.#minUses) return false;
    // The state after a prefix is kept only where a prompt ends.
    if ((tokens.runner.limits.states ?? 0) > 0 && !isCached) await this.#compute(ids, request);
    return true;
  }

  /** The full pages of the prefix of a request; null if it has none that is worth keeping. */
  #prefixOf({ prefix, promptIds, adapter, promptLogprobs = 0 }: TokenRequest): readonly number[] | null {
    // The keys and values of an adapter are its own, and log-probabilities of the prompt are computed with it.
    if (prefix === undefined || adapter !== undefined || promptLogprobs > 0) return null;
    if (typeof prefix === "number" && !(Number.isInteger(prefix) && prefix >= 0 && prefix <= promptIds.length))
      throw new RequestError(`prefix is ${prefix}, it must be an integer from 0 to ${promptIds.length}`, {
        param: "prefix",
      });
    const { pageSize, context } = this.host.tokens.runner.limits;
    const shared = typeof prefix === "number" ? prefix : sharedLength(promptIds, prefix);
    // The last token of a prompt is always computed, as the next one is sampled from it.
    const most = Math.min(shared, promptIds.length - 1);
    const length = most - (most % pageSize);
    return length < LEAST_TOKENS || promptIds.length > context ? null : promptIds.slice(0, length);
  }

  /** Whether a prompt that continues these tokens computes none of them. */
  #isCached(ids: readonly number[]): boolean {
    return this.host.tokens.prefixCache.find(ids, ids.length).length === ids.length;
  }

  #key(tokenIds: readonly number[]): PrefixKey {
    const { id: bundle, info } = this.host;
    const { adapter, activation } = info();
    return { bundle, device: `${adapter} ${activation}`, tokenIds };
  }

  /** Whether pages are stored; they are in the engine's cache now, if it has room. */
  async #restore(key: PrefixKey): Promise<boolean> {
    const store = await this.#store;
    const pages = (await store?.read(key).catch(() => null)) ?? null;
    if (pages !== null) this.#write(key.tokenIds, pages);
    if (pages !== null && !this.#isCached(key.tokenIds)) this.#unfit.add(key.tokenIds.join());
    return pages !== null;
  }

  /** The same for pages that the compiler computed, which are stored too. */
  async #ship(ids: readonly number[]): Promise<boolean> {
    const { manifest, id: bundle, info, read } = this.host;
    const { activation } = info();
    for (const entry of manifest.prefixes) {
      const file = manifest.files.find(({ file }) => file === entry.file);
      const own = ids.slice(0, entry.tokens);
      if (entry.activation !== activation || file === undefined || own.length < entry.tokens) continue;
      if ((await tokensSha256(own)) !== entry.tokens_sha256) continue;
      const key = { bundle, device: `${SHIPPED} ${activation}`, tokenIds: own };
      const found = await this.#restore(key);
      const keysAndValues = found ? null : await read(file).catch(() => null);
      if (!found && keysAndValues === null) return false;
      this.#shipped.push(own);
      if (keysAndValues !== null) {
        const pages = { deadPages: this.#deadPages(own.length), keysAndValues };
        this.#write(own, pages);
        this.#later(() => this.#put(key, pages, Date.now()));
      }
      return true;
    }
    return false;
  }

  /** Put pages into the engine's cache, if it has room. Pages of another layout are not used. */
  #write(tokenIds: readonly number[], pages: PrefixPages): void {
    try {
      this.host.tokens.writeRetained({ tokenIds, adapter: "", ...pages });
    } catch (error) {
      if (!(error instanceof RequestError)) throw error;
    }
  }

  /** Compute a prefix as a prompt of its own, which leaves its state in the engine's cache. */
  async #compute(ids: readonly number[], { promptIds, signal, priority }: TokenRequest): Promise<void> {
    const prompt = promptIds.slice(0, ids.length + 1);
    const tokens = this.host.tokens.generateTokens({ promptIds: prompt, maxTokens: 1, signal, priority });
    while ((await tokens.next()).done !== true);
  }

  async #keep(ids: readonly number[]): Promise<void> {
    // Other answers may have needed the space.
    if (!this.#isCached(ids)) return;
    const [key, readAtMs] = [this.#key(ids), Date.now()];
    const pages = await this.host.tokens.readRetained({ ...newConversation(), keys: ids });
    if (pages.tokenIds.length === ids.length) await this.#put(key, pages, readAtMs);
  }

  async #put(key: PrefixKey, pages: PrefixPages, readAtMs: number): Promise<void> {
    await (await this.#store)?.write(key, this.host.manifest.model, pages, this.#budgetBytes, readAtMs);
  }

  /** Run a task when those before it have ended. What cannot be kept is computed again. */
  #later(task: () => Promise<void>): void {
    this.#writing = this.#writing.then(task).catch(nothing);
  }

  #deadPages(length: number): readonly number[] {
    const { groups, pageSize } = this.host.tokens.runner.limits;
    return groups.map(({ window }) => Math.max(0, Math.floor((length - window + 1) / pageSize)));
  }

  /** The bytes of the pages and states after this many tokens, in full pages. */
  #bytesOf(length: number): number {
    const { manifest, info, tokens } = this.host;
    if (isExport(manifest)) return 0;
    const { activation } = info();
    const dead = this.#deadPages(length);
    return Object.values(planOf(manifest).states).reduce((sum, state) => {
      const [dim] = state.shape;
      const group = PAGE_DIMS.indexOf(String(dim));
      const units = dim === STATE_DIM ? 1 : group < 0 ? 0 : length / tokens.runner.limits.pageSize - (dead[group] ?? 0);
      return units === 0 ? sum : sum + units * sizeBytes(state, activation, { [String(dim)]: 1 });
    }, 0);
  }
}

/** The SHA-256 of token ids as little-endian int32. */
function tokensSha256(ids: readonly number[]): Promise<string> {
  const bytes = new DataView(new ArrayBuffer(4 * ids.length));
  ids.forEach((id, index) => {
    bytes.setInt32(4 * index, id, true);
  });
  return sha256(new Uint8Array(bytes.buffer));
}

/** How many tokens a prompt has in common with another one; 0 if the chat template refuses that. */
function sharedLength(ids: readonly number[], another: () => readonly number[]): number {
  try {
    const other = another();
    const end = ids.findIndex((id, index) => id !== other[index]);
    return end < 0 ? ids.length : end;
  } catch {
    return 0;
  }
}

function startsWith(ids: readonly number[], start: readonly number[]): boolean {
  return start.length <= ids.length && start.every((id, index) => id === ids[index]);
}

function defaultBudget(): number {
  const { deviceMemory = Infinity } = Object(globalThis.navigator) as { readonly deviceMemory?: number };
  return (deviceMemory <= SMALL_MEMORY_GIB ? 64 : 256) * MIB;
}
