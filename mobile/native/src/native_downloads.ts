// The native side's downloads of bundles, which continue while the app is in the background: a URLSession on iOS, a
// WorkManager on Android. The plugins for Capacitor and Expo implement the interface.

import type { ErrorJson } from "../../../web/src/errors.js";
import { BundleError, WorkerError, errorFromJson } from "../../../web/src/errors.js";

/** The files of one version of a bundle. Ids and records are SHA-256 hashes in hexadecimal. */
export interface DownloadJob {
  /** The hash of the manifest; the files are in ``<documents>/nearfar/<id>/``. */
  readonly id: string;
  readonly files: readonly {
    readonly url: string;
    readonly file: string;
    /** Null for kernels, whose size the manifest does not give. They do not count as bytes. */
    readonly size: number | null;
    readonly sha256: string;
  }[];
  /** Written beside the files, and as the record's text, when all files are checked. */
  readonly manifest?: string;
  /** The hash of the bundle's address. */
  readonly record?: string;
  readonly wifiOnly: boolean;
}

export interface DownloadState {
  readonly id: string;
  readonly state: "running" | "done" | "failed";
  /** The folder of the files. */
  readonly path: string;
  readonly loadedBytes: number;
  /** The part of ``loadedBytes`` that an earlier download had stored. */
  readonly storedBytes: number;
  readonly error?: ErrorJson;
}

export interface NativeDownloads {
  /** Starts a download, continues one, or joins the one that is running. Its states come to listeners. */
  start(job: DownloadJob): Promise<void>;
  /** Stops a download; its bytes stay. */
  stop(id: string): Promise<void>;
  /** Stops a download and deletes its files, and the record. */
  remove(id: string, record: string | null): Promise<void>;
  /** The manifest of the last complete download with this record. */
  stored(record: string): Promise<string | null>;
  /** Returns a function that stops listening. */
  listen(listener: (state: DownloadState) => void): Promise<() => void>;
}

export interface WaitOptions {
  /** An abort stops the download if nobody else waits for it. */
  readonly signal: AbortSignal | undefined;
  readonly onState: (state: DownloadState) => void;
}

/** Downloads for which JavaScript waits. */
export class BackgroundDownloads {
  /** For each download, the functions that fail those who wait. */
  readonly #waiting = new Map<string, Set<(error: Error) => void>>();

  constructor(readonly native: NativeDownloads) {}

  /** Resolves to the folder of the checked files. Throws BundleError, StorageError, WorkerError or the signal's reason. */
  async download(job: DownloadJob, { signal, onState }: WaitOptions): Promise<string> {
    signal?.throwIfAborted();
    let end: (state: DownloadState) => void = () => undefined;
    let fail: (error: Error) => void = () => undefined;
    const ended = new Promise<DownloadState>((resolve, reject) => ([end, fail] = [resolve, reject]));
    // It may fail while the native side is still called.
    ended.catch(() => undefined);
    const stop = (): void => {
      fail(signal?.reason as Error);
    };
    const waiting = this.#waiting.get(job.id) ?? new Set();
    this.#waiting.set(job.id, waiting.add(fail));
    signal?.addEventListener("abort", stop);
    let unlisten: (() => void) | undefined;
    try {
      unlisten = await this.native.listen((state) => {
        if (state.id !== job.id) return;
        onState(state);
        if (state.state !== "running") end(state);
      });
      await this.native.start(job);
      const state = await ended;
      if (state.state !== "failed") return state.path;
      throw state.error === undefined
        ? new BundleError("The download failed without a reason; load again")
        : errorFromJson(state.error);
    } finally {
      unlisten?.();
      signal?.removeEventListener("abort", stop);
      waiting.delete(fail);
      if (waiting.size === 0) this.#waiting.delete(job.id);
      if (signal?.aborted === true && waiting.size === 0) await this.native.stop(job.id);
    }
  }

  /** Deletes a download's files. Those who wait for it fail with a WorkerError. */
  async remove(id: string, record: string | null): Promise<void> {
    for (const fail of this.#waiting.get(id) ?? []) fail(new WorkerError("The bundle was removed during its download"));
    await this.native.remove(id, record);
  }
}
