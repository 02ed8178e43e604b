// The bundles that this browser stores, for a page that lists or deletes them. If the browser has no store, the list is
// empty.

import type { StoredBundle } from "./bundle_store.js";
import { BundleStore } from "./bundle_store.js";

export interface Cache {
  /** All bundles with stored files, the most recently used first. */
  list(): Promise<StoredBundle[]>;
  /**
   * Delete a bundle, except files that another bundle also uses. False if nothing of it is stored. Throws StorageError
   * while the bundle is being loaded.
   */
  delete(url: string | URL): Promise<boolean>;
  /** Delete all bundles. Throws StorageError while one of them is being loaded. */
  clear(): Promise<void>;
}

export const cache: Cache = {
  async list() {
    return (await (await BundleStore.open())?.list()) ?? [];
  },
  async delete(url) {
    return (await (await BundleStore.open())?.delete(url)) ?? false;
  },
  async clear() {
    await (await BundleStore.open())?.clear();
  },
};
