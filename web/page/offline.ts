// Keeps the page for visits without a network. The page also works without a service worker, for example in a browser
// that forbids it.

/** What the documents page sends to the service worker: other addresses that it reads, besides its own files. */
export interface KeepDocuments {
  readonly addresses: readonly string[];
}

export function keepPage(): void {
  if ("serviceWorker" in navigator) navigator.serviceWorker.register("service_worker.js").catch(() => undefined);
}

/** As `keepPage`, with the files that only the documents page needs, such as PDF.js. */
export function keepDocuments(message: KeepDocuments): void {
  if (!("serviceWorker" in navigator)) return;
  const workers = navigator.serviceWorker;
  const send = (): void => {
    void workers.ready.then(({ active }) => active?.postMessage(message));
  };
  keepPage();
  send();
  // The worker of a new build has a new cache.
  workers.addEventListener("controllerchange", send);
}
