// The `download` of @nearfar/react-native's load, by the native side, which continues while the app is in the background.

import { BundleError } from "../../../web/src/errors.js";
import type { NativeDownloads } from "../../native/src/native_downloads.js";
import { BackgroundDownloads } from "../../native/src/native_downloads.js";
import type { DownloadFiles } from "../../react-native/src/download.js";
import { fileAddress } from "../../react-native/src/download.js";
import { nativeModule } from "./module.js";

export interface BackgroundOptions {
  /** Wait for a network that is not metered. */
  readonly wifiOnly?: boolean | undefined;
}

/**
 * Needs files whose `documents` is the app's documents folder, such as expoFiles. It throws BundleError, StorageError or
 * the signal's reason. Create it once: an abort stops a download only if no other load waits for it.
 */
export function backgroundDownload(
  { wifiOnly = false }: BackgroundOptions = {},
  native: NativeDownloads = nativeModule(),
): DownloadFiles {
  const downloads = new BackgroundDownloads(native);
  return async (files, folder, address, entries, { signal, onBytes }) => {
    const job = {
      id: folder.slice(folder.lastIndexOf("/") + 1),
      files: entries.map(({ file, size, sha256 }) => ({ url: fileAddress(address, file), file, size, sha256 })),
      wifiOnly,
    };
    let [stored, loaded] = [0, 0];
    const path = await downloads.download(job, {
      signal,
      onState: ({ storedBytes, loadedBytes }) => {
        const [more, fetched] = [storedBytes - stored, loadedBytes - storedBytes - (loaded - stored)];
        [stored, loaded] = [storedBytes, loadedBytes];
        if (more !== 0) onBytes(more, "store");
        if (fetched !== 0) onBytes(fetched, "network");
      },
    });
    for (const { file, size } of entries)
      if ((await files.size(`${folder}/${file}`)) !== size)
        throw new BundleError(
          `${file}: was downloaded to ${path}, which is not ${folder}; use expoFiles, or files of the same folder`,
          { file },
        );
  };
}
