// @nearfar/web/prefixes: the prefixes of prompts that stay on this device across reloads.

import type { StoredPrefix } from "./prefix_store.js";
import { PrefixStore } from "./prefix_store.js";

export { PrefixStore } from "./prefix_store.js";
export type { PrefixKey, PrefixPages, StoredPrefix } from "./prefix_store.js";
export { before, Prefixes } from "./prefixes.js";
export type { PrefixHost, PrefixOptions } from "./prefixes.js";

/** The prefixes of all models that this origin keeps; `engine.prefixes` too clears them. */
export interface KeptPrefixes {
  /** The most recently used first. */
  list(): Promise<readonly StoredPrefix[]>;
  /** Delete all of them: also those that this or another tab is about to keep. */
  clear(): Promise<void>;
}

export const prefixes: KeptPrefixes = {
  async list() {
    return (await (await PrefixStore.open())?.list()) ?? [];
  },
  async clear() {
    await (await PrefixStore.open())?.clear();
  },
};
