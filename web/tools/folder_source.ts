// A bundle's folder on disk, as a source.

import { openAsBlob } from "node:fs";
import { join } from "node:path";

import { BundleError } from "../src/errors.js";
import type { Source } from "../src/runtime/source.js";

export function folderSource(folder: string): Source {
  return {
    location: folder,
    // Parts of a file are read from the folder itself.
    stored: ({ file }) => openAsBlob(join(folder, file)),
    async open(file) {
      try {
        return (await openAsBlob(join(folder, file))).stream();
      } catch (error) {
        throw new BundleError(
          `${file}: is not in ${folder}; check that it is a bundle's folder`,
          { file },
          { cause: error },
        );
      }
    },
  };
}
