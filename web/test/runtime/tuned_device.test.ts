// Tuning on a device whose variants are slow.

import { expect, vi } from "vitest";

import type { LoadOptions } from "../../src/index.js";
import { Runner } from "../../src/runtime/runner.js";
import type { LettersBundle } from "../letters_bundle.js";
import { lettersBundle } from "../letters_bundle.js";
import { MemoryNotes } from "./memory_notes.js";
import { answer, bundleOf, load, RIGHT, row, withGpu, withReportedTimes } from "./trusted_letters.js";

withReportedTimes();

const SLOW_FIRST = [
  row("embed_slow", { when: ["<=", "S", 4] }),
  row("embed_few", { when: ["<=", "S", 4] }),
  row("embed_slow"),
  row("embed_many"),
];

withGpu(
  "a slow first choice is not used, on this load and the next, and the record contains the faster one",
  async () => {
    const bundle = bundleOf([...SLOW_FIRST, row("embed_wrong")]);
    const notes = new MemoryNotes();
    const engine = await load(bundle, { notes, tuning: true });
    const record = await engine.exportTuning();
    expect(record?.activation).toBe("float32");
    expect(Object.keys(record?.variants ?? {})).toEqual(["embed"]);
    for (const { variant } of record?.variants.embed ?? []) expect(variant).toMatch(/^embed_(few|many)$/);
    expect(record?.variants.embed?.map(({ when }) => when)).toEqual([
      ["<=", "S", 1],
      [">=", "S", 32],
      ["and", [">", "S", 1], ["<=", "S", 4]],
      ["and", [">", "S", 4], ["<=", "S", 8]],
    ]);
    expect(await answer(engine)).toEqual(RIGHT);
    engine.destroy();

    const again = await load(bundle, { notes, tuning: true });
    expect(await again.exportTuning()).toEqual(record);
    // The slow variant still runs for sizes in between.
    expect(again.info).toMatchObject({ selfTest: { remembered: true, switchedOff: ["embed_wrong"] } });
    expect(await answer(again)).toEqual(RIGHT);
    again.destroy();
  },
);

withGpu("a record that the bundle ships for this adapter is used unchanged, and nothing is measured", async () => {
  const measured = await load(bundleOf(SLOW_FIRST), { tuning: true });
  const record = await measured.exportTuning();
  measured.destroy();
  const shipped = record === null ? [] : [record];
  const engine = await load(bundleOf(SLOW_FIRST, { tuning: shipped }), { tuning: true });
  expect(await engine.exportTuning()).toEqual(record);
  expect(engine.info.selfTest.state).toBe("passed");
  expect(await answer(engine)).toEqual(RIGHT);
  engine.destroy();
});

// Wrong answers show that the wrong variant runs, which only the record can have caused.
withGpu("the faster variant runs as soon as it is found, and immediately if the bundle ships the record", async () => {
  const embed = [row("embed_slow"), row("embed_wrong")];
  const options = { selfTest: "never", tuning: true } as const;
  const measured = await load(bundleOf(embed), options);
  const record = await measured.exportTuning();
  expect(record?.variants.embed).toContainEqual({ when: ["<=", "S", 1], variant: "embed_wrong" });
  expect(await answer(measured)).not.toEqual(RIGHT);
  measured.destroy();
  const shipped = await load(bundleOf(embed, { tuning: record === null ? [] : [record] }), options);
  expect(await answer(shipped)).not.toEqual(RIGHT);
  shipped.destroy();
});

// Many pages, beside which a larger chunk takes little memory.
const ROOM = { pages: 4000 };

withGpu("a chunk is chosen once, and used by later loads, also of a bundle that ships the record", async () => {
  const notes = new MemoryNotes();
  const slow = vi.spyOn(Runner.prototype, "submit");
  const first = await load(lettersBundle(), { notes, tuning: true, ...ROOM });
  expect(first.info.prefillChunk).toBe(64);
  const record = await first.exportTuning();
  const chunk = record?.steps?.chunk ?? 0;
  expect([64, 128, 256]).toContain(chunk);
  expect(first.info.prefillChunk).toBe(chunk);
  expect(await answer(first)).toEqual(RIGHT);
  first.destroy();

  const loads: [LettersBundle, LoadOptions][] = [
    [lettersBundle(), { notes, tuning: true }],
    [lettersBundle({ tuning: record === null ? [] : [record] }), {}],
  ];
  for (const [bundle, options] of loads) {
    slow.mockClear();
    const again = await load(bundle, { ...options, ...ROOM });
    expect(await again.exportTuning()).toEqual(record);
    expect(again.info).toMatchObject({ prefillChunk: chunk });
    expect(slow.mock.calls.every(([{ token_ids }]) => token_ids.length < 64)).toBe(true);
    again.destroy();
  }
});

withGpu("a shipped record without a chunk keeps its variants, and its chunk is measured", async () => {
  const { files } = lettersBundle();
  const measured = await load({ files, manifest: lettersBundle().manifest }, { tuning: true, ...ROOM });
  const whole = await measured.exportTuning();
  measured.destroy();
  if (whole === null) throw new Error("nothing was measured");
  const old = { ...whole, variants: { embed: [{ when: null, variant: "embed_many" }] }, steps: null };
  const time = vi.spyOn(Runner.prototype, "time").mockClear();
  const notes = new MemoryNotes();
  const engine = await load(lettersBundle({ tuning: [old] }), { notes, tuning: true, ...ROOM });
  const record = await engine.exportTuning();
  expect(record).toMatchObject({ variants: old.variants, steps: { chunk: engine.info.prefillChunk } });
  expect(time).not.toHaveBeenCalled();
  engine.destroy();
  // Without tuning, the first chunk remains.
  const plain = await load(lettersBundle({ tuning: [old] }), ROOM);
  expect(await plain.exportTuning()).toEqual(old);
  expect(plain.info.prefillChunk).toBe(64);
  plain.destroy();
});

withGpu("a chunk that an application sets is used, and none is measured", async () => {
  const engine = await load(lettersBundle(), { tuning: true, prefillChunk: 100, ...ROOM });
  expect((await engine.exportTuning())?.steps?.chunk).toBe(null);
  expect(engine.info.prefillChunk).toBe(100);
  expect(await answer(engine)).toEqual(RIGHT);
  engine.destroy();
  await expect(load(lettersBundle(), { prefillChunk: 0 })).rejects.toThrow("prefillChunk");
});

withGpu("without tuning there is no record", async () => {
  const engine = await load(bundleOf(SLOW_FIRST));
  expect(await engine.exportTuning()).toBe(null);
  engine.destroy();
});

withGpu("an engine that is destroyed stops tuning, and answers come while it works", async () => {
  const engine = await load(bundleOf(SLOW_FIRST), { tuning: true });
  expect(await answer(engine)).toEqual(RIGHT);
  engine.destroy();
  expect(await engine.exportTuning()).toBe(null);
});
