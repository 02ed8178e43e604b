// The keys and values of a conversation outside of the device, as a saved session keeps them.

import type { KvCache } from "./kv_cache.js";
import { PageTable } from "./pages.js";
import type { RetainedSequence } from "./sequence.js";
import { PLAIN, Sequence, newConversation } from "./sequence.js";
import { StateTable } from "./states.js";
import type { StepRunner } from "./step_runner.js";

/** A conversation's tokens, as the prefix cache compares them, and their keys and values, without the first ``deadPages`` of each page group. */
export interface RetainedPages {
  readonly tokenIds: readonly number[];
  readonly deadPages: readonly number[];
  /** The id of the adapter that computed them; "" for none. */
  readonly adapter: string;
  readonly keysAndValues: Uint8Array<ArrayBuffer>;
}

/** See `TokenEngine.readRetained`. */
export async function readRetained(
  { kinds, pages, prefixes }: KvCache,
  runner: StepRunner,
  { keys, adapter }: RetainedSequence,
): Promise<RetainedPages> {
  const { length, path } = prefixes.find(keys, keys.length, adapter, true);
  const units = kinds.map((kind, index) =>
    path.slice(kind.unread(length)).map(({ snapshots }) => snapshots[index] ?? -1),
  );
  return {
    tokenIds: keys.slice(0, length),
    deadPages: pages.map((pool) => pool.unread(length)),
    adapter,
    keysAndValues: await runner.readPages(units),
  };
}

/** See `TokenEngine.writeRetained`. */
export function writeRetained(
  kv: KvCache,
  runner: StepRunner,
  { tokenIds, deadPages, adapter, keysAndValues }: RetainedPages,
): RetainedSequence {
  const retained = newConversation();
  const sequence = new Sequence(-1, tokenIds, { ...PLAIN, retained, adapter: { name: "", id: adapter, slot: -1 } });
  sequence.tables = [
    ...deadPages.map((dead) => new PageTable(dead)),
    ...(kv.states === null ? [] : [new StateTable()]),
  ];
  sequence.computed = tokenIds.length;
  if (tokenIds.length === 0 || !kv.reserve(sequence, tokenIds.length)) return retained;
  try {
    runner.writePages(
      sequence.tables.map((table) => table.live),
      keysAndValues,
    );
  } catch (error) {
    kv.restart(sequence);
    throw error;
  }
  kv.cachePages(sequence);
  kv.release(sequence);
  return retained;
}
