// A Hybrid over fakes, and how a page reads its answers.

import type { ChatCompletionChunk } from "../../src/api/types.js";
import type { DeviceHints } from "../../src/router/device_hints.js";
import type { HybridOptions } from "../../src/router/hybrid.js";
import { Hybrid } from "../../src/router/hybrid.js";
import type { FarScript, NearScript } from "./fakes.js";
import { FAR, FakeClock, FakeFar, MemoryLedger, near } from "./fakes.js";

export const QUESTION = { role: "user" as const, content: "what is 27 + 58?" };
export const MESSAGES = [QUESTION];
export const SURE: NearScript = { text: "near by" };
/** Sure of its first three tokens, but not of those after them. */
export const LOST: NearScript = { text: "abcdefgh", logprobs: [-0.1, -0.1, -0.1, -9] };
export const WATCHED = { then: "continue", window_tokens: 2, min_mean_logprob: -3 };
const ONLINE: DeviceHints = { online: true, battery: null, charging: null, thermal: null };

interface Setup extends Partial<Omit<HybridOptions, "policy" | "far">> {
  readonly policy?: object;
  readonly scripts?: readonly NearScript[];
  readonly far?: readonly FarScript[] | FakeFar;
  readonly dialect?: "openai" | "vllm" | "nearfar";
  readonly hints?: Partial<DeviceHints>;
  readonly farOptions?: { readonly vision?: boolean; readonly video?: boolean; readonly sound?: boolean };
}

export async function setUp({
  policy = {},
  scripts = [SURE],
  far: given = [{ texts: ["far", " away"] }],
  dialect,
  hints = {},
  farOptions = {},
  ...options
}: Setup = {}) {
  const far = given instanceof FakeFar ? given : new FakeFar(given);
  const clock = new FakeClock();
  const ledger = new MemoryLedger();
  const { engine, source } = near(...scripts);
  const device = { ...ONLINE, ...hints };
  const nf = await Hybrid.create({
    near: engine,
    far: { baseURL: FAR, apiKey: "secret", dialect, ...farOptions },
    policy: { version: 1, mode: "prefer-near", ...policy },
    fetch: far.fetch,
    device: { read: () => Promise.resolve(device) },
    ledger,
    clock,
    ...options,
  });
  return { nf, far, clock, ledger, source, device };
}

export async function read(nf: Hybrid, rest: object = {}): Promise<ChatCompletionChunk[]> {
  const chunks: ChatCompletionChunk[] = [];
  for await (const chunk of await nf.chat.completions.create({ messages: MESSAGES, stream: true, ...rest }))
    chunks.push(chunk);
  return chunks;
}

/** The text of a stream as a page shows it, without the text that a restart withdraws. */
export function shown(chunks: readonly ChatCompletionChunk[]): string {
  let text = "";
  for (const { choices, route } of chunks) {
    if (route?.switched_at === 0 && choices[0]?.finish_reason === null) text = "";
    text += choices[0]?.delta.content ?? "";
  }
  return text;
}

/** The routes of the chunks that have one. */
export const routes = (chunks: readonly ChatCompletionChunk[]) =>
  chunks.flatMap(({ route }) =>
    route === undefined ? [] : [{ side: route.side, reason: route.reason, at: route.switched_at }],
  );
