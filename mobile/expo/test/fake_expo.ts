// expo for tests: its native module is a FakePhone's plugin.

import { registerPlugin } from "../../capacitor/test/fake_capacitor.js";

export function requireNativeModule(name: string): unknown {
  const plugin = registerPlugin(name);
  return {
    start: (job: string) => plugin.start({ job }),
    stop: (id: string) => plugin.stop({ id }),
    remove: (id: string, record: string | null) => plugin.remove({ id, ...(record === null ? {} : { record }) }),
    stored: async (record: string) => (await plugin.stored({ record })).manifest ?? null,
    addListener(event: "download", listener: (state: { readonly state: string }) => void) {
      const handle = plugin.addListener(event, listener);
      return { remove: () => void handle.then((added) => added.remove()) };
    },
  };
}
