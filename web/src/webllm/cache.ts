// WebLLM's functions for stored models, on this origin's store of bundles.

import { bundleAddress } from "../runtime/source.js";
import { cache } from "../store/cache.js";
import type { AppConfig } from "./config.js";
import { checkAppConfig, findRecord } from "./config.js";

/** Whether the model loads without a network. Throws RequestError for an id that is not listed. */
export async function hasModelInCache(modelId: string, appConfig?: AppConfig): Promise<boolean> {
  const { href } = bundleAddress(addressOf(modelId, appConfig));
  return (await cache.list()).some(({ url, complete }) => complete && url === href);
}

/**
 * Deletes the model's bundle, except files that another stored bundle shares. Throws RequestError, and StorageError
 * while it is being loaded.
 */
export async function deleteModelAllInfoInCache(modelId: string, appConfig?: AppConfig): Promise<void> {
  await cache.delete(addressOf(modelId, appConfig));
}

/** The same function, because a bundle is stored as a unit. */
export const deleteModelInCache = deleteModelAllInfoInCache;

/**
 * Deletes nothing: each load checks a bundle's manifest with its server, so a stored one is never out of date. Throws
 * RequestError.
 */
// Async, as WebLLM's is.
// oxlint-disable-next-line typescript/require-await
export async function deleteChatConfigInCache(modelId: string, appConfig?: AppConfig): Promise<void> {
  addressOf(modelId, appConfig);
}

/** The same function: the manifest names kernels by their SHA-256, so they are never out of date either. */
export const deleteModelWasmInCache = deleteChatConfigInCache;

function addressOf(modelId: string, appConfig?: AppConfig): string {
  if (appConfig !== undefined) checkAppConfig(appConfig);
  return findRecord(modelId, appConfig).model;
}
