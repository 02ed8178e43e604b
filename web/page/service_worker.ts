/// <reference lib="webworker" />
// Caches the page's own files, so that it opens without a network. With a network, every file comes from the network
// and is never stale. Weights have their own store.

import type { KeepDocuments } from "./offline.js";
import type {} from "./service_worker_build.js";

const worker = self as unknown as ServiceWorkerGlobalScope;
const PREFIX = "nearfar page ";
const CACHE = `${PREFIX}${PAGE_BUILD.hash}`;
const ADDRESSES: readonly string[] = ["./", ...PAGE_BUILD.files].map(addressOf);
const OF_DOCUMENTS: readonly string[] = PAGE_BUILD.documents.map(addressOf);
const KNOWN: ReadonlySet<string> = new Set([...ADDRESSES, ...OF_DOCUMENTS]);

worker.addEventListener("install", (event) => {
  event.waitUntil(cacheFiles());
});

worker.addEventListener("activate", (event) => {
  event.waitUntil(deleteOldCaches());
});

worker.addEventListener("fetch", (event) => {
  const { request } = event;
  const address = plainAddress(request.url);
  // The documents page identifies its index's model by the manifest.
  const isKept = KNOWN.has(address) || address.endsWith("/manifest.json");
  if (request.method === "GET" && isKept) event.respondWith(answer(request, address));
});

worker.addEventListener("message", (event) => {
  event.waitUntil(cacheDocuments(event.data as KeepDocuments));
});

/** Cache the files of this build: all of them, or none. */
async function cacheFiles(): Promise<void> {
  const cache = await caches.open(CACHE);
  await addAll(cache, ADDRESSES);
  await worker.skipWaiting();
}

/** Cache what the documents page needs and other pages do not. Manifests may have changed. */
async function cacheDocuments({ addresses }: KeepDocuments): Promise<void> {
  const cache = await caches.open(CACHE);
  const kept = new Set((await cache.keys()).map(({ url }) => url));
  await Promise.all([
    addAll(cache, addresses),
    addAll(
      cache,
      OF_DOCUMENTS.filter((address) => !kept.has(address)),
    ),
  ]);
}

async function addAll(cache: Cache, addresses: readonly string[]): Promise<void> {
  await cache.addAll(addresses.map((address) => new Request(address, { cache: "reload" })));
}

async function deleteOldCaches(): Promise<void> {
  const names = await caches.keys();
  await Promise.all(
    names.filter((name) => name.startsWith(PREFIX) && name !== CACHE).map((name) => caches.delete(name)),
  );
}

async function answer(request: Request, address: string): Promise<Response> {
  try {
    return await fetch(request);
  } catch (error) {
    const cached = await (await caches.open(CACHE)).match(address);
    if (cached === undefined) throw error;
    return cached;
  }
}

function addressOf(file: string): string {
  return new URL(file, worker.location.href).href;
}

/** The address without its query and hash, which only the page reads. */
function plainAddress(url: string): string {
  const address = new URL(url);
  address.search = "";
  address.hash = "";
  return address.href;
}
