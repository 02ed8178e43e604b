// Constants that the build defines for the service worker: the files of all pages, those that only the documents page
// needs, and a hash of the contents.

declare global {
  const PAGE_BUILD: { readonly hash: string; readonly files: readonly string[]; readonly documents: readonly string[] };
}

export {};
