// Loads a bundle in a Capacitor app: the native side downloads it, also in the background, and the page's engine reads
// its files through Capacitor's own server. In a browser, the engine downloads and stores it.

import { Capacitor } from "@capacitor/core";

import { DeviceError } from "../../../web/src/errors.js";
import type { LoadProgress } from "../../../web/src/load_options.js";
import { LOAD_START } from "../../../web/src/load_options.js";
import { isExport } from "../../../web/src/runtime/any_manifest.js";
import type { Manifest } from "../../../web/src/runtime/manifest.js";
import { filesToLoad } from "../../../web/src/shared/files_to_load.js";
import type { DownloadJob, NativeDownloads } from "../../native/src/native_downloads.js";
import { BackgroundDownloads } from "../../native/src/native_downloads.js";
import { hashOf, readManifest } from "../../native/src/read_manifest.js";
import { fileAddress } from "../../react-native/src/download.js";
import { nativePlugin } from "./plugin.js";

interface HostOptions {
  readonly store?: boolean | undefined;
  readonly signal?: AbortSignal | undefined;
  readonly onProgress?: ((progress: LoadProgress) => void) | undefined;
}

/** The EngineHost of @nearfar/webview. */
export interface BundleHost<Options extends HostOptions, Info> {
  load(bundle: string, options?: Options): Promise<Info>;
}

export interface DownloadOptions {
  /** Wait for a network that is not metered. */
  readonly wifiOnly?: boolean | undefined;
  /** Fetches the manifest; default: the page's fetch. */
  readonly fetch?: typeof fetch | undefined;
}

/** Downloads and removes bundles, and loads them into a host. Create one per page. */
export class BundleLoader {
  readonly #downloads: BackgroundDownloads | null;

  constructor(native: NativeDownloads | null = Capacitor.isNativePlatform() ? nativePlugin() : null) {
    this.#downloads = native === null ? null : new BackgroundDownloads(native);
  }

  /**
   * The host's load, with the bundle's files from the phone's storage. Missing files are downloaded first, and the
   * download continues while the app is in the background. Throws BundleError, DeviceError, StorageError, WorkerError,
   * or the signal's reason.
   */
  async load<Options extends HostOptions, Info>(
    host: BundleHost<Options, Info>,
    address: string,
    options: Options & DownloadOptions,
  ): Promise<Info> {
    const { wifiOnly = false, fetch: get = fetch, ...others } = options;
    const downloads = this.#downloads;
    if (downloads === null) return host.load(address, others as unknown as Options);
    const { signal, onProgress = () => undefined } = options;
    let progress = LOAD_START;
    const report = (change: Partial<LoadProgress>): void => {
      progress = { ...progress, ...change };
      onProgress(progress);
    };
    report({});
    const record = hashOf(address);
    const before = await downloads.native.stored(record);
    const { manifest, text, id } = await readManifest(address, before, get, signal);
    if (isExport(manifest))
      throw new DeviceError(`${manifest.model}: is compiled for onnx; web views need --target webgpu`, {
        target: manifest.target,
      });
    const entries = filesOf(manifest);
    const totalBytes = entries.reduce((sum, { size }) => sum + (size ?? 0), 0);
    const job: DownloadJob = {
      id,
      files: entries.map(({ file, size, sha256 }) => ({ url: fileAddress(address, file), file, size, sha256 })),
      manifest: text,
      record,
      wifiOnly,
    };
    report({ totalBytes });
    const path = await downloads.download(job, {
      signal,
      onState: ({ loadedBytes, storedBytes }) => {
        report({ phase: loadedBytes < totalBytes ? "download" : progress.phase, loadedBytes, storedBytes });
      },
    });
    // Files of an older version are not needed any more.
    if (before !== null && hashOf(before) !== id) await downloads.remove(hashOf(before), null);
    // The host reads all bytes again, from the app's own server; for the user they are loaded.
    const onLoad = ({ phase, ...rest }: LoadProgress): void => {
      const { storedBytes } = progress;
      report({
        ...rest,
        phase: phase === "manifest" || phase === "download" ? "upload" : phase,
        loadedBytes: totalBytes,
        storedBytes,
        totalBytes,
      });
    };
    const bundle = `${Capacitor.convertFileSrc(path)}/`;
    return host.load(bundle, { ...others, store: false, onProgress: onLoad } as unknown as Options);
  }

  /** Deletes a bundle's files from this phone, also those of an unfinished download if the network is there. */
  async remove(address: string, get: typeof fetch = fetch): Promise<void> {
    const downloads = this.#downloads;
    if (downloads === null) return;
    const record = hashOf(address);
    const stored = await downloads.native.stored(record);
    const current = await readManifest(address, stored, get, undefined).then(
      ({ id }) => id,
      () => null,
    );
    const ids = new Set([current, stored === null ? null : hashOf(stored)]);
    for (const id of ids) if (id !== null) await downloads.remove(id, record);
  }
}

/** All files that a load may read, each once. */
function filesOf(manifest: Manifest): readonly Pick<DownloadJob["files"][number], "file" | "size" | "sha256">[] {
  const sizeless = Object.values(manifest.kernels).map(({ file, sha256 }) => ({ file, sha256, size: null }));
  return [...new Map([...sizeless, ...filesToLoad(manifest)].map((entry) => [entry.file, entry])).values()];
}
