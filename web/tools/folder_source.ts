// A bundle's folder on disk, as a source.

import { createReadStream, openAsBlob } from "node:fs";
import { access } from "node:fs/promises";
import { join } from "node:path";
import { Readable } from "node:stream";

import { BundleError } from "../src/errors.js";
import type { Source } from "../src/runtime/source.js";

export function folderSource(folder: string): Source {
  return {
    location: folder,
    // Parts of a file are read from the folder itself.
    stored: ({ file }) => openAsBlob(join(folder, file)),
    async open(file, signal) {
      const path = join(folder, file);
      try {
        await access(path);
      } catch (error) {
        throw new BundleError(
          `${file}: is not in ${folder}; check that it is a bundle's folder`,
          { file },
          { cause: error },
        );
      }
      return Readable.toWeb(createReadStream(path, { signal })) as ReadableStream<Uint8Array>;
    },
  };
}
