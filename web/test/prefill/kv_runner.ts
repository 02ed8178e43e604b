// The fake runner with pages of keys and values, and a far side that has computed a prompt with it. The cells of a token
// are digits in its value, which 4 bits hold exactly; keys are zeros.

import { newConversation } from "../../src/engine/sequence.js";
import { TokenEngine } from "../../src/engine/token_engine.js";
import { KvLayout } from "../../src/prefill/layout.js";
import { Q4, packRows } from "../../src/prefill/rows.js";
import type { AnyManifest } from "../../src/runtime/any_manifest.js";
import type { RunnerLimits } from "../../src/runtime/memory.js";
import type { PagesByGroup } from "../../src/runtime/page_groups.js";
import { sha256 } from "../../src/runtime/read_file.js";
import type { Bytes } from "../../src/runtime/source.js";
import { collect, onePool } from "../engine/engine_set_up.js";
import { FakeRunner } from "../engine/fake_runner.js";

export const VOCAB = 64;
export const PAGE = 4;
export const BASE: RunnerLimits = {
  tokens: 32,
  sequences: 2,
  groups: onePool(200),
  pageSize: PAGE,
  context: 300,
  vocabSize: VOCAB,
};
const HEAD_DIM = 16;
const TOKEN_DIGITS = 2;
const DIGITS = 8;

export class KvRunner extends FakeRunner {
  override async readPages(pages: PagesByGroup): Promise<Bytes> {
    const cells = new Int32Array((await super.readPages(pages)).buffer);
    const rows = 2 * PAGE * this.#pagesOf(pages);
    return joined([...chunks(cells.slice(0, rows), 2 * PAGE).map(pageOf), new Uint8Array(cells.slice(rows).buffer)]);
  }

  override writePages(pages: PagesByGroup, bytes: Bytes): void {
    const size = 4 * 2 * PAGE * HEAD_DIM;
    const count = this.#pagesOf(pages);
    const cells = Array.from({ length: count }, (_, page) =>
      cellsOf(new Float32Array(bytes.slice(page * size, (page + 1) * size).buffer)),
    );
    super.writePages(pages, joined([...cells, bytes.slice(count * size)]));
  }

  #pagesOf(pages: PagesByGroup): number {
    return pages.slice(0, this.limits.groups.length).reduce((sum, some) => sum + some.length, 0);
  }
}

/** A manifest with one layer in each group, and states if the limits have slots. */
export function manifestOf({ groups, states = 0 }: RunnerLimits): AnyManifest {
  const layers = groups.map((_, group): [string, unknown] => [
    `layers.${group}.kv`,
    { shape: [["P", "PW"][group], 2, 1, PAGE, HEAD_DIM], dtype: "activation" },
  ]);
  const slots: [string, unknown][] = states === 0 ? [] : [["layers.9.state", { shape: ["Z", 2], dtype: "float32" }]];
  return {
    target: "webgpu",
    page_size: PAGE,
    kv: "activation",
    weights: {},
    host_weights: {},
    embedding: null,
    classifier: null,
    plans: { generate: { states: Object.fromEntries<unknown>([...layers, ...slots]) } },
  } as unknown as AnyManifest;
}

export function layoutOf(limits: RunnerLimits): KvLayout {
  return new KvLayout(
    manifestOf(limits),
    "float32",
    limits.groups.map(({ window }) => window),
  );
}

export interface SentBlock {
  fields: Record<string, unknown>;
  content: Bytes;
}

/** The blocks of a server with the same model, which computes ``part`` tokens at a time. */
export async function blocksOf(
  limits: RunnerLimits,
  prompt: readonly number[],
  start: number,
  part = 16,
): Promise<SentBlock[]> {
  const layout = layoutOf(limits);
  const tokens = new TokenEngine(new KvRunner(limits), { vocabSize: VOCAB, endTokenIds: [] });
  const last = prompt.length - PAGE;
  const ends = [start + PAGE];
  while ((ends.at(-1) ?? 0) + part < last) ends.push((ends.at(-1) ?? 0) + part);
  if (ends.at(-1) !== last) ends.push(last);
  const blocks: SentBlock[] = [
    block({ type: "opened", version: 3, start, tokens: prompt.length, ...layout.description }),
  ];
  let done = start;
  for (const end of [...ends, prompt.length]) {
    const computed = prompt.slice(0, end);
    await collect(tokens.generateTokens({ promptIds: [...computed, prompt[end] ?? 0], maxTokens: 1 }));
    const read = await tokens.readRetained({ ...newConversation(), keys: computed });
    if (read.tokenIds.length !== end) throw new Error("the far cache has lost pages");
    const first = layout.dead(last).map((dead) => (done === start ? done / PAGE : Math.max(done / PAGE, dead)));
    const size = 4 * 2 * PAGE * HEAD_DIM;
    let from = 0;
    const pages = first.flatMap((page, group) => {
      const dead = read.deadPages[group] ?? 0;
      const at = from;
      from += (end / PAGE - dead) * size;
      return Array.from({ length: Math.max(0, end / PAGE - page) }, (_, index) => {
        const offset = at + (page + index - dead) * size;
        return wireOf(new Float32Array(read.keysAndValues.slice(offset, offset + size).buffer));
      });
    });
    blocks.push(block({ type: "pages", start: done, tokens: end - done, first, seconds: 0 }, joined(pages)));
    if (end === last && layout.stateSize > 0)
      blocks.push(block({ type: "states", tokens: end, dtype: "float32" }, read.keysAndValues.slice(from)));
    done = end;
  }
  return [...blocks, block({ type: "end", tokens: prompt.length, cached_tokens: 0 })];
}

function block(fields: Record<string, unknown>, content: Bytes = new Uint8Array()): SentBlock {
  return { fields, content };
}

/** The bytes of blocks. Their hashes are those of their contents, unless their fields have others. */
export async function written(blocks: readonly SentBlock[]): Promise<Bytes> {
  const parts = blocks.map(async ({ fields, content }) => {
    const sealed = { sha256: await sha256(content), ...fields };
    const header = new TextEncoder().encode(JSON.stringify(sealed));
    const sizes = new Uint8Array(Uint32Array.of(header.length, content.length).buffer);
    return joined([sizes, header, content]);
  });
  return joined(await Promise.all(parts));
}

/** A page as it travels. */
function wireOf(page: Float32Array): Bytes {
  const rows = page.length / 2;
  const words = new Uint32Array(2 * PAGE * (HEAD_DIM / 8 + 1));
  packRows(page.slice(0, rows), Q4, HEAD_DIM, words, 0);
  packRows(page.slice(rows), Q4, HEAD_DIM, words, words.length / 2);
  return new Uint8Array(words.buffer);
}

/** The page of these cells, two for each token. */
function pageOf(cells: Int32Array): Bytes {
  const page = new Float32Array(2 * PAGE * HEAD_DIM);
  for (let row = 0; row < PAGE; row++) {
    const [token = 0, hash = 0] = cells.slice(2 * row, 2 * row + 2);
    if (token < 0) continue;
    const start = (PAGE + row) * HEAD_DIM;
    page[start] = -8;
    for (let digit = 0; digit < TOKEN_DIGITS; digit++) page[start + 1 + digit] = (token >> (3 * digit)) & 7;
    for (let digit = 0; digit < DIGITS; digit++) page[start + 1 + TOKEN_DIGITS + digit] = (hash >> (3 * digit)) & 7;
  }
  return new Uint8Array(page.buffer);
}

function cellsOf(page: Float32Array): Bytes {
  const cells = new Int32Array(2 * PAGE).fill(-1);
  for (let row = 0; row < PAGE; row++) {
    const values = page.slice((PAGE + row) * HEAD_DIM, (PAGE + row + 1) * HEAD_DIM);
    if (values[0] === 0) continue;
    const number = (digits: Float32Array): number =>
      digits.reduce((sum, digit, index) => sum + Math.round(digit) * 8 ** index, 0);
    cells[2 * row] = number(values.slice(1, 1 + TOKEN_DIGITS));
    cells[2 * row + 1] = number(values.slice(1 + TOKEN_DIGITS, 1 + TOKEN_DIGITS + DIGITS));
  }
  return new Uint8Array(cells.buffer);
}

function chunks(cells: Int32Array<ArrayBuffer>, size: number): Int32Array<ArrayBuffer>[] {
  return Array.from({ length: cells.length / size }, (_, index) => cells.slice(index * size, (index + 1) * size));
}

export function joined(parts: readonly Bytes[]): Bytes {
  const all = new Uint8Array(parts.reduce((sum, { length }) => sum + length, 0));
  let from = 0;
  for (const part of parts) {
    all.set(part, from);
    from += part.length;
  }
  return all;
}
