// The native module, as Expo registers it.

import { requireNativeModule } from "expo";

import type { DownloadState, NativeDownloads } from "../../native/src/native_downloads.js";

/** The functions of ios/ and android/: structures travel as JSON texts. */
interface NearfarModule {
  start(job: string): Promise<void>;
  stop(id: string): Promise<void>;
  remove(id: string, record: string | null): Promise<void>;
  stored(record: string): Promise<string | null>;
  addListener(event: "download", listener: (event: { readonly state: string }) => void): { remove(): void };
}

export function nativeModule(): NativeDownloads {
  const module = requireNativeModule<NearfarModule>("Nearfar");
  return {
    start: (job) => module.start(JSON.stringify(job)),
    stop: (id) => module.stop(id),
    remove: (id, record) => module.remove(id, record),
    stored: (record) => module.stored(record),
    listen(listener) {
      const subscription = module.addListener("download", ({ state }) => {
        listener(JSON.parse(state) as DownloadState);
      });
      return Promise.resolve(() => {
        subscription.remove();
      });
    },
  };
}
