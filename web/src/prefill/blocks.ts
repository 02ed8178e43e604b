// Reads the blocks of /v1/nearfar/prefill, as server_fallback/schema/prefill.py defines them. The sizes of all of them
// are known before they arrive, so a server cannot make this device hold more.

import { RequestError, Unavailable } from "../errors.js";
import { sha256 } from "../runtime/read_file.js";
import type { Bytes } from "../runtime/source.js";
import type { Description, KvLayout, StatesDtype, StatesForm } from "./layout.js";

/** The version of the blocks that this client reads. */
const VERSION = 3;
/** The fields of the largest block name the layers of a model. */
const MAX_FIELDS_BYTES = 1 << 20;

/** Pages of keys and values: ``pages[group]`` are those from ``first[group]`` on, each as it travels. */
export interface PagesBlock {
  readonly type: "pages";
  readonly start: number;
  readonly tokens: number;
  readonly first: readonly number[];
  readonly pages: readonly (readonly Bytes[])[];
  /** How long the server computed them. */
  readonly seconds: number;
  /** Of the content, and how long it took to arrive. */
  readonly bytes: number;
  readonly transferMs: number;
}

export interface StatesBlock {
  readonly type: "states";
  readonly tokens: number;
  readonly dtype: StatesDtype;
  readonly content: Bytes;
}

type Fields = Readonly<Record<string, unknown>>;

/** The tokens that were asked for: those from ``start`` up to ``tokens``, in whole pages. */
export interface Asked {
  readonly start: number;
  readonly tokens: number;
}

/**
 * All blocks of an answer, complete and in their order. Throws RequestError ("model_differs") if the server's model has
 * other pages, and Unavailable for an answer that is damaged, or ends too early.
 */
export async function* readBlocks(
  body: ReadableStream<Uint8Array>,
  layout: KvLayout,
  { start, tokens }: Asked,
  now: () => number,
): AsyncGenerator<PagesBlock | StatesBlock, void, undefined> {
  const reader = new BlockReader(body, now);
  const last = tokens - layout.pageSize;
  const hasStates = layout.stateSize > 0;
  let done = start;
  let opened = false;
  let statesCame = !hasStates;
  try {
    for (;;) {
      const fields = await reader.fields();
      if (!opened) {
        requireSameModel(fields, layout);
        await reader.content(0);
        opened = true;
      } else if (fields.type === "pages" && fields.start === done && done < tokens) {
        const end = done + Number(fields.tokens);
        // Between the states before the last page and that page, nothing else comes.
        const isPart = end <= last || (done === last && end === tokens && statesCame);
        if (!isPart || end <= done || end % layout.pageSize > 0) throw invalid("the pages do not follow each other");
        const first = firstPages(layout, done, last, done === start);
        const counts = first.map((page) => Math.max(0, end / layout.pageSize - page));
        const size = counts.reduce((sum, count, group) => sum + count * (layout.groups[group]?.wireBytes ?? 0), 0);
        const { content, ms } = await reader.content(size);
        let from = 0;
        const pages = counts.map((count, group) => {
          const bytes = layout.groups[group]?.wireBytes ?? 0;
          return Array.from({ length: count }, () => content.slice(from, (from += bytes)));
        });
        const seconds = Number(fields.seconds ?? 0);
        yield { type: "pages", start: done, tokens: end - done, first, pages, seconds, bytes: size, transferMs: ms };
        done = end;
      } else if (fields.type === "states" && !statesCame && done === last && fields.tokens === last) {
        const { dtype } = fields;
        if (dtype !== "q4" && dtype !== "q8" && dtype !== "float16" && dtype !== "float32")
          throw invalid(`the states are ${String(dtype)}`);
        const { content } = await reader.content(layout.statesBytes(dtype));
        statesCame = true;
        yield { type: "states", tokens: last, dtype, content };
      } else if (fields.type === "end" && done === tokens) {
        await reader.content(0);
        return;
      } else {
        throw invalid(`a block '${String(fields.type)}' came after ${done} tokens`);
      }
    }
  } finally {
    reader.close();
  }
}

/** As in server_fallback/far_prefill/blocks.py. */
function firstPages(layout: KvLayout, done: number, last: number, isFirst: boolean): readonly number[] {
  const page = done / layout.pageSize;
  return layout.dead(last).map((dead) => (isFirst ? page : Math.max(page, dead)));
}

/** The bytes that travel for these tokens. */
export function wireBytes(layout: KvLayout, { start, tokens }: Asked, states: StatesForm): number {
  const last = tokens - layout.pageSize;
  const dead = layout.dead(last);
  const pages = layout.groups.reduce((sum, group, index) => {
    const second = start / layout.pageSize + 1;
    return sum + (1 + tokens / layout.pageSize - Math.max(second, dead[index] ?? 0)) * group.wireBytes;
  }, 0);
  return pages + layout.statesBytes(states);
}

function requireSameModel(fields: Fields, { description }: KvLayout): void {
  if (fields.type !== "opened") throw invalid(`it begins with '${String(fields.type)}'`);
  if (fields.version !== VERSION) {
    throw new RequestError(
      `The far side sends version ${String(fields.version)} of computed prompts, this client reads version ${VERSION}; ` +
        "update the older of them",
      { code: "prefill_version" },
    );
  }
  for (const name of Object.keys(description) as (keyof Description)[]) {
    const [theirs, ours] = [JSON.stringify(fields[name]), JSON.stringify(description[name])];
    if (theirs !== ours)
      throw new RequestError(
        `The far side's model has ${name} ${shown(theirs)}, this device's has ${shown(ours)}; serve the same ` +
          "checkpoint, compiled with the same --quantization and --context",
        { code: "model_differs", field: name },
      );
  }
}

function shown(json: string | undefined): string {
  return (json ?? "nothing").slice(0, 200);
}

function invalid(what: string): Unavailable {
  return new Unavailable(`The far side's computed prompt cannot be read: ${what}`, { retryable: false });
}

class BlockReader {
  readonly #reader: ReadableStreamDefaultReader<Uint8Array>;
  readonly #parts: Uint8Array[] = [];
  #held = 0;
  #fields: Fields = {};
  #contentBytes = 0;

  constructor(
    body: ReadableStream<Uint8Array>,
    private readonly now: () => number,
  ) {
    this.#reader = body.getReader();
  }

  /** The fields of the next block. */
  async fields(): Promise<Fields> {
    const sizes = new DataView((await this.#take(8)).buffer);
    const length = sizes.getUint32(0, true);
    this.#contentBytes = sizes.getUint32(4, true);
    if (length > MAX_FIELDS_BYTES) throw invalid(`a block has ${length} bytes of fields`);
    const text = new TextDecoder().decode(await this.#take(length));
    try {
      const value: unknown = JSON.parse(text);
      if (typeof value === "object" && value !== null) return (this.#fields = value as Fields);
    } catch {
      // Reported below.
    }
    throw invalid("the fields of a block are not a JSON object");
  }

  /** The content of the block, which must have this size, and how long it took to arrive. */
  async content(size: number): Promise<{ content: Bytes; ms: number }> {
    if (this.#contentBytes !== size) throw invalid(`a block has ${this.#contentBytes} bytes, ${size} were expected`);
    const beganAt = this.now();
    const content = await this.#take(size);
    const ms = this.now() - beganAt;
    if ((await sha256(content)) !== this.#fields.sha256) throw invalid("a block has another SHA-256 than it says");
    return { content, ms };
  }

  close(): void {
    // Nothing waits for the connection to close.
    this.#reader.cancel().catch(() => undefined);
  }

  async #take(size: number): Promise<Bytes> {
    while (this.#held < size) {
      const { done, value } = await this.#reader.read();
      if (done) throw new Unavailable("The far side's computed prompt stopped before the end", { retryable: true });
      this.#parts.push(value);
      this.#held += value.length;
    }
    const taken = new Uint8Array(size);
    for (let filled = 0; filled < size;) {
      const [part = new Uint8Array()] = this.#parts;
      const some = part.subarray(0, size - filled);
      taken.set(some, filled);
      filled += some.length;
      if (some.length === part.length) this.#parts.shift();
      else this.#parts[0] = part.subarray(some.length);
    }
    this.#held -= size;
    return taken;
  }
}
