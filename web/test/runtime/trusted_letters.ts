// The letters bundle on a device, Dawn in Node on any adapter that Vulkan finds, with variants that are wrong or slow. A
// slow variant is one that is reported as slow: no clock runs, so no test needs an idle machine.

import { afterEach, beforeEach, expect, test, vi } from "vitest";

import type { LoadOptions } from "../../src/index.js";
import { Engine } from "../../src/index.js";
import type { Manifest, VariantEntry } from "../../src/runtime/manifest.js";
import { Runner } from "../../src/runtime/runner.js";
import { dawn } from "../../tools/dawn.js";
import type { LettersBundle } from "../letters_bundle.js";
import { lettersBundle, memorySource } from "../letters_bundle.js";
import { EMBED } from "../letters_kernels.js";
import { MemoryNotes } from "./memory_notes.js";

export const gpu = dawn();
const hasAdapter = (await gpu.requestAdapter()) !== null;
const REASON = "Dawn finds no adapter; set VK_ICD_FILENAMES to a Vulkan driver such as SwiftShader";
if (!hasAdapter && process.env.CI !== undefined) throw new Error(`${REASON} (CI is set, so this is not skipped)`);
if (!hasAdapter) console.warn(`skipped: ${REASON}`);
export const withGpu = test.runIf(hasAdapter);

const WRONG = EMBED.replace("u32(id)", "(u32(id) ^ 1u)");
const NOT_A_NUMBER = EMBED.replace("y[g.y * 8u + l.x] =", "y[g.y * 8u + l.x] = sqrt(f32(u.S) * -1.0) +");
const KERNELS = {
  embed_wrong: WRONG,
  embed_refused: EMBED.replace("fn main", "fn nowhere"),
  embed_nan: NOT_A_NUMBER,
  embed_slow: EMBED,
};

// Tuning runs each variant on the device once, and then sees these times.
// oxlint-disable-next-line typescript/unbound-method -- It is called with its runner.
const time = Runner.prototype.time;

/** In every test of the file, no clock runs, and a variant takes the time that it is said to take. */
export function withReportedTimes(): void {
  beforeEach(() => {
    vi.useFakeTimers({ toFake: ["performance"] });
    vi.spyOn(Runner.prototype, "time").mockImplementation(async function (this: Runner, batch, list, variant, count) {
      expect(await time.call(this, batch, list, variant, 1)).toBeGreaterThanOrEqual(0);
      return count * (variant === "embed_slow" ? 8 : 1);
    });
  });
  afterEach(() => {
    vi.useRealTimers();
    vi.restoreAllMocks();
  });
}

export const row = (name: string, rest: Partial<VariantEntry> = {}): VariantEntry => ({
  kernels: [name],
  activation: null,
  needs: [],
  when: null,
  ...rest,
});

/** The letters bundle with other variants of "embed". */
export function bundleOf(embed: readonly VariantEntry[], changes: Partial<Manifest> = {}): LettersBundle {
  const { variants } = lettersBundle().manifest;
  return lettersBundle({ variants: { ...variants, embed }, ...changes }, KERNELS);
}

export async function load({ files }: LettersBundle, options: LoadOptions = {}): Promise<Engine> {
  return Engine.load(memorySource(files), { gpu, tuning: false, notes: new MemoryNotes(), ...options });
}

export async function answer(engine: Engine): Promise<readonly number[]> {
  const ids: number[] = [];
  // Token 7 is followed by 6 and 3, then by 2 and 7 again.
  for await (const { tokenId } of engine.generateTokens({ promptIds: [7], maxTokens: 5 })) ids.push(tokenId);
  return ids;
}

export const RIGHT = [6, 3, 2, 7, 6];
