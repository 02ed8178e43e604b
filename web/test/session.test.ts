// Saved sessions hold the pages that their conversation still needs, of each page group.

import { afterEach, expect, test, vi } from "vitest";

import { Engine } from "../src/index.js";
import type { Bytes } from "../src/runtime/source.js";
import type { SessionRecord } from "../src/store/session_store.js";
import { packSession, unpackSession } from "../src/store/session_store.js";
import { dawn } from "../tools/dawn.js";
import { lettersBundle, memorySource, windowedBundle } from "./letters_bundle.js";
import { memoryDisk } from "./store/memory_folder.js";

const gpu = dawn();
const hasAdapter = (await gpu.requestAdapter()) !== null;
const disk = memoryDisk();
// Two pages behind the window, and two within it.
const QUESTION = "abcdefgh".repeat(7);

afterEach(() => {
  vi.unstubAllGlobals();
});

/**
 * Save a session of a bundle, change its file, and restore it. Returns the record, and the start of the next answer.
 *
 */
async function saveAndRestore(
  files: Parameters<typeof memorySource>[0],
  change: (record: SessionRecord, keysAndValues: Bytes) => Bytes,
): Promise<{ readonly record: SessionRecord; readonly pageBytes: number; readonly cachedTokens: number }> {
  vi.stubGlobal("navigator", { userAgent: "test", storage: { getDirectory: () => Promise.resolve(disk.root) } });
  vi.stubGlobal(
    "FileSystemFileHandle",
    Object.assign(() => undefined, { prototype: { createWritable: 0 } }),
  );
  const engine = await Engine.load(memorySource(files), { gpu });
  try {
    const session = engine.createSession();
    for await (const event of session.generate(QUESTION, { maxTokens: 3 })) expect(event.type).not.toBe("error");
    await session.save("kept");
    const [path] = [...disk.files.keys()].filter((name) => name.endsWith("kept"));
    const { record, keysAndValues } = unpackSession("kept", disk.files.get(path ?? "") ?? new Uint8Array());
    disk.files.set(path ?? "", change(record, keysAndValues));
    // No other pages can be used.
    engine.unload();
    const restored = engine.createSession();
    await restored.restore("kept");
    let cachedTokens = -1;
    for await (const event of restored.generate("ab", { maxTokens: 3 }))
      if (event.type === "done") ({ cachedTokens } = event.timings);
    return { record, pageBytes: keysAndValues.length, cachedTokens };
  } finally {
    engine.destroy();
  }
}

const asSaved = packSession;
/** The form in which versions without page groups saved sessions. */
const withoutGroups: typeof asSaved = ({ bundle, activation, messages, tokenIds }, keysAndValues) =>
  packSession({ bundle, activation, messages, tokenIds }, keysAndValues);

test.runIf(hasAdapter)(
  "a session is saved without the pages behind the window, and continues from the others",
  async () => {
    const { record, pageBytes, cachedTokens } = await saveAndRestore(windowedBundle(20).files, asSaved);
    const tokens = record.tokenIds.length;
    expect([Math.ceil(tokens / 16), record.deadPages]).toEqual([4, [0, 2]]);
    expect(pageBytes).toBe(4 * 256 + 2 * 512);
    expect(cachedTokens).toBe(tokens);
  },
);

test.runIf(hasAdapter)(
  "a session that was saved before there were page groups is restored with all of its pages",
  async () => {
    const { record, pageBytes, cachedTokens } = await saveAndRestore(lettersBundle().files, withoutGroups);
    expect([pageBytes, cachedTokens]).toEqual([4 * 256, record.tokenIds.length]);
  },
);

test.runIf(hasAdapter)("a session with other page groups than the model's is refused by name", async () => {
  await expect(saveAndRestore(windowedBundle(20).files, withoutGroups)).rejects.toMatchObject({
    code: "storage_error",
    message: expect.stringContaining("The saved session 'kept' has 1 page groups, this model has 2") as string,
    details: { session: "kept", found: 1, expected: 2 },
  });
});
