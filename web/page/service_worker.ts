/// <reference lib="webworker" />
// Caches the page's own files, so that it opens without a network. With a network, every file comes from the network
// and is never stale. Weights have their own store.

import type {} from "./service_worker_build.js";

const worker = self as unknown as ServiceWorkerGlobalScope;
const PREFIX = "nearfar page ";
const CACHE = `${PREFIX}${PAGE_BUILD.hash}`;
const ADDRESSES: ReadonlySet<string> = new Set(
  ["./", ...PAGE_BUILD.files].map((file) => new URL(file, worker.location.href).href),
);

worker.addEventListener("install", (event) => {
  event.waitUntil(cacheFiles());
});

worker.addEventListener("activate", (event) => {
  event.waitUntil(deleteOldCaches());
});

worker.addEventListener("fetch", (event) => {
  const { request } = event;
  const address = plainAddress(request.url);
  if (request.method === "GET" && ADDRESSES.has(address)) event.respondWith(answer(request, address));
});

/** Cache the files of this build: all of them, or none. */
async function cacheFiles(): Promise<void> {
  const cache = await caches.open(CACHE);
  await cache.addAll([...ADDRESSES].map((address) => new Request(address, { cache: "reload" })));
  await worker.skipWaiting();
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

/** The address without its query and hash, which only the page reads. */
function plainAddress(url: string): string {
  const address = new URL(url);
  address.search = "";
  address.hash = "";
  return address.href;
}
