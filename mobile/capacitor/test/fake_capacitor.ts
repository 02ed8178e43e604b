// @capacitor/core for tests: its native side is a FakePhone, which downloads from a map of files and keeps them.

import { createHash } from "node:crypto";

import type { DownloadJob, DownloadState } from "../../native/src/native_downloads.js";

type Bytes = Uint8Array<ArrayBuffer>;
type Listener = (event: { readonly state: string }) => void;

/** The native plugin of a phone. Its files survive a restart of the app, its listeners do not. */
export class FakePhone {
  readonly calls: string[] = [];
  /** Files by their path below <documents>/nearfar. */
  readonly files = new Map<string, Bytes | string>();
  readonly jobs = new Map<string, DownloadJob>();
  /** Downloads wait for ``proceed`` if it is true. */
  waits = false;
  #listeners = new Set<Listener>();

  /** ``server`` has the files by their addresses. */
  constructor(readonly server: ReadonlyMap<string, Bytes>) {}

  get listeners(): number {
    return this.#listeners.size;
  }

  restart(): void {
    this.#listeners = new Set();
  }

  /** Downloads the next files of all jobs, as the system does, with or without the app. */
  proceed(count = Infinity): void {
    for (const job of this.jobs.values()) {
      const stored = this.bytesOf(job);
      for (const { url, file, sha256 } of job.files
        .filter(({ file: name }) => !this.files.has(`${job.id}/${name}`))
        .slice(0, count)) {
        const bytes = this.server.get(url) ?? new Uint8Array();
        if (createHash("sha256").update(bytes).digest("hex") !== sha256) {
          this.jobs.delete(job.id);
          const error = { code: "bundle_error" as const, message: `${file}: has another SHA-256`, details: { file } };
          this.report(job, "failed", stored, error);
          return;
        }
        this.files.set(`${job.id}/${file}`, bytes);
        this.report(job, "running", stored);
      }
      if (!job.files.every(({ file }) => this.files.has(`${job.id}/${file}`))) continue;
      this.jobs.delete(job.id);
      this.files.set(`${job.id}/manifest.json`, job.manifest ?? "");
      this.files.set(`${job.record ?? ""}.json`, job.manifest ?? "");
      this.report(job, "done", stored);
    }
  }

  private bytesOf(job: DownloadJob): number {
    return job.files.reduce((sum, { file, size }) => sum + (this.files.has(`${job.id}/${file}`) ? (size ?? 0) : 0), 0);
  }

  private report(
    job: DownloadJob,
    state: DownloadState["state"],
    storedBytes: number,
    error?: NonNullable<DownloadState["error"]>,
  ): void {
    const path = `/documents/nearfar/${job.id}`;
    const text = JSON.stringify({ id: job.id, state, path, loadedBytes: this.bytesOf(job), storedBytes, error });
    for (const listener of this.#listeners) listener({ state: text });
  }

  readonly plugin = {
    start: ({ job: text }: { readonly job: string }): Promise<void> => {
      const job = JSON.parse(text) as DownloadJob;
      this.calls.push(`start ${job.wifiOnly ? "on Wi-Fi" : ""}`.trim());
      this.jobs.set(job.id, job);
      this.report(job, "running", this.bytesOf(job));
      if (!this.waits) queueMicrotask(this.proceed.bind(this));
      return Promise.resolve();
    },
    stop: ({ id }: { readonly id: string }): Promise<void> => {
      this.calls.push("stop");
      this.jobs.delete(id);
      return Promise.resolve();
    },
    remove: ({ id, record }: { readonly id: string; readonly record?: string }): Promise<void> => {
      this.calls.push("remove");
      this.jobs.delete(id);
      for (const name of this.files.keys())
        if (name.startsWith(`${id}/`) || name === `${record ?? ""}.json`) this.files.delete(name);
      return Promise.resolve();
    },
    stored: ({ record }: { readonly record: string }): Promise<{ readonly manifest?: string }> => {
      const manifest = this.files.get(`${record}.json`) as string | undefined;
      return Promise.resolve(manifest === undefined ? {} : { manifest });
    },
    addListener: (_: "download", listener: Listener): Promise<{ remove(): Promise<void> }> => {
      this.#listeners.add(listener);
      const remove = (): Promise<void> => {
        this.#listeners.delete(listener);
        return Promise.resolve();
      };
      return Promise.resolve({ remove });
    },
  };
}

let current: FakePhone | null = null;

/** The phone of the next registerPlugin; null for a browser. */
export function usePhone(phone: FakePhone | null): void {
  current = phone;
}

export function registerPlugin(name: string): FakePhone["plugin"] {
  if (name !== "Nearfar" || current === null) throw new Error(`no plugin '${name}'`);
  return current.plugin;
}

export const Capacitor = {
  isNativePlatform: (): boolean => current !== null,
  convertFileSrc: (path: string): string => `capacitor://localhost/_capacitor_file_${path}`,
};
