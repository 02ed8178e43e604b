// Constants that the build defines for the service worker: the page's files, and a hash of their contents.

declare global {
  const PAGE_BUILD: { readonly hash: string; readonly files: readonly string[] };
}

export {};
