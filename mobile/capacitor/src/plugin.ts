// The native plugin, as Capacitor registers it.

import { registerPlugin } from "@capacitor/core";

import type { DownloadState, NativeDownloads } from "../../native/src/native_downloads.js";

/** The methods of ios/Sources/NearfarPlugin and android/: structures travel as JSON texts. */
interface NearfarPlugin {
  start(call: { readonly job: string }): Promise<void>;
  stop(call: { readonly id: string }): Promise<void>;
  remove(call: { readonly id: string; readonly record?: string }): Promise<void>;
  stored(call: { readonly record: string }): Promise<{ readonly manifest?: string }>;
  addListener(
    event: "download",
    listener: (event: { readonly state: string }) => void,
  ): Promise<{ remove(): Promise<void> }>;
}

export function nativePlugin(): NativeDownloads {
  const plugin = registerPlugin<NearfarPlugin>("Nearfar");
  return {
    start: (job) => plugin.start({ job: JSON.stringify(job) }),
    stop: (id) => plugin.stop({ id }),
    remove: (id, record) => plugin.remove({ id, ...(record === null ? {} : { record }) }),
    stored: async (record) => (await plugin.stored({ record })).manifest ?? null,
    async listen(listener) {
      const handle = await plugin.addListener("download", ({ state }) => {
        listener(JSON.parse(state) as DownloadState);
      });
      return () => void handle.remove();
    },
  };
}
