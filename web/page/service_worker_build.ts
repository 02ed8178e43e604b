// What the build tells the service worker: the page's files, and a hash that changes with any of them.

declare global {
  const PAGE_BUILD: { readonly hash: string; readonly files: readonly string[] };
}

export {};
