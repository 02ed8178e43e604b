// The bundles that this browser keeps, for a page that shows or frees them. Where the browser keeps none, the list is empty.

import type { StoredBundle } from "./bundle_store.js";
import { BundleStore } from "./bundle_store.js";

export interface Cache {
  /** All bundles of which something is stored, the last used first. */
  list(): Promise<StoredBundle[]>;
  /** Delete a bundle; files that another has as well stay. False where nothing of it is stored. Throws StorageError while it is loaded. */
  delete(url: string | URL): Promise<boolean>;
  /** Delete all bundles. Throws StorageError while one is loaded. */
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
