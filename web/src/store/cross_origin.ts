// Cross-Origin Storage (https://wicg.github.io/cross-origin-storage/): a browser's store of files by hash, which pages
// of several origins share. If the browser has it, weights and tokenizers are looked up there before they are
// downloaded, and stored there afterwards.

import { problemOf, readFile } from "../runtime/read_file.js";
import type { Source } from "../runtime/source.js";

/**
 * The pages that may read the files that this page stores: pages of the same site (true), of the listed origins too, or
 * of any origin ("*"), within the browser's rules. False: Cross-Origin Storage is not used.
 */
export type CrossOriginStorage = boolean | "*" | readonly string[];

interface Manager {
  requestFileHandle(
    hash: { readonly algorithm: "SHA-256"; readonly value: string },
    options?: { readonly create: true; readonly origins?: "*" | readonly string[] },
  ): Promise<FileSystemFileHandle>;
}

/**
 * A source that looks in Cross-Origin Storage first, or the source itself if this browser has no such storage. If the
 * storage fails, the file counts as absent.
 */
export function crossOriginSource(source: Source, sharing: CrossOriginStorage): Source {
  const storage = (globalThis.navigator as { readonly crossOriginStorage?: Manager } | undefined)?.crossOriginStorage;
  if (!sharing || storage === undefined) return source;
  return {
    location: source.location,
    open: (file, signal) => source.open(file, signal),
    async stored(expected) {
      const own = (await source.stored?.(expected)) ?? null;
      if (own !== null || expected.sha256 === undefined) return own;
      const hash = { algorithm: "SHA-256", value: expected.sha256 } as const;
      return storage.requestFileHandle(hash).then(
        (handle) => handle.getFile(),
        () => null,
      );
    },
    async read(expected, signal, onBytes) {
      const { sha256: value, size } = expected;
      // Kernels, whose sizes are not in the manifest, are not worth the look-up.
      if (value === undefined || size === undefined) return readFile(source, expected, signal, onBytes);
      const hash = { algorithm: "SHA-256", value } as const;
      try {
        const bytes = new Uint8Array(await (await (await storage.requestFileHandle(hash)).getFile()).arrayBuffer());
        if ((await problemOf(bytes, expected)) === null) {
          onBytes(size, "store");
          return bytes;
        }
      } catch {
        // The file is absent or not available to this origin, or this page may not use the storage.
      }
      const bytes = await readFile(source, expected, signal, onBytes);
      const save = async (): Promise<void> => {
        const handle = await storage.requestFileHandle(hash, {
          create: true,
          ...(sharing === true ? {} : { origins: sharing }),
        });
        const writer = await handle.createWritable();
        await writer.write(bytes);
        await writer.close();
      };
      // The load does not wait for this, and ignores its failure.
      save().catch(() => undefined);
      return bytes;
    },
  };
}
