// The generation loop: a prompt's tokens flow in, new tokens flow out one by one, until a stop token, a limit, or an abort.

import { RequestError } from "../errors.js";
import type { Batch, SampleSettings } from "../runtime/batch.js";
import type { Manifest } from "../runtime/manifest.js";
import { PREFILL_CHUNK } from "../runtime/memory.js";
import type { StepResult } from "../runtime/runner.js";
import { mulberry32 } from "./sampling.js";
import { Sequence } from "./sequence.js";

/** What the loop needs of a runner. */
export interface TokenRunner {
  readonly manifest: Pick<Manifest, "spec" | "context" | "page_size">;
  submit(batch: Batch): Promise<Pick<StepResult, "tokenIds">>;
}

export interface TokenOptions {
  /** At most this many tokens; as many as the context holds where it is not given. */
  readonly maxTokens?: number | undefined;
  /** 0, the default, takes the likeliest token. */
  readonly temperature?: number | undefined;
  /** A 32-bit unsigned integer; the same seed draws the same tokens. A random one where it is not given. */
  readonly seed?: number | undefined;
  readonly signal?: AbortSignal | undefined;
}

/** "stop": the model ended its answer. "length": maxTokens are there, or the context is full. */
export type FinishReason = "stop" | "length";

/** Yields each new token's id; a stop token is not yielded. Throws RequestError, DeviceError, or the signal's reason. */
export async function* generateTokens(
  runner: TokenRunner,
  promptIds: readonly number[],
  options: TokenOptions = {},
): AsyncGenerator<number, FinishReason, undefined> {
  const { spec, context, page_size } = runner.manifest;
  requirePrompt(promptIds, spec.vocab_size, context);
  requireOptions(options);
  const { maxTokens = context, signal } = options;
  const settings = settingsOf(options);
  const sequence = new Sequence(page_size);
  const next = async (tokenIds: readonly number[]): Promise<number> => (await runner.submit(sequence.append(tokenIds, settings()))).tokenIds[0] ?? -1;
  const stop = new Set(spec.eos_token_ids);

  const lastChunk = Math.floor((promptIds.length - 1) / PREFILL_CHUNK) * PREFILL_CHUNK;
  for (let start = 0; start < lastChunk; start += PREFILL_CHUNK) {
    signal?.throwIfAborted();
    await runner.submit(sequence.append(promptIds.slice(start, start + PREFILL_CHUNK), null));
  }
  signal?.throwIfAborted();
  let token = await next(promptIds.slice(lastChunk));
  for (let count = 1; !stop.has(token); count++) {
    signal?.throwIfAborted();
    yield token;
    if (count >= maxTokens || sequence.length >= context) return "length";
    signal?.throwIfAborted();
    token = await next([token]);
  }
  return "stop";
}

/** How each next token is chosen. */
function settingsOf({ temperature = 0, seed = randomSeed() }: TokenOptions): () => SampleSettings {
  const draw = mulberry32(seed);
  return () => ({ temperature, draw: temperature === 0 ? 0 : draw() });
}

function randomSeed(): number {
  return crypto.getRandomValues(new Uint32Array(1))[0] ?? 0;
}

function requirePrompt(ids: readonly number[], vocabSize: number, context: number): void {
  if (ids.length === 0) throw new RequestError("The prompt is empty; give it at least one token");
  if (ids.length > context) {
    throw new RequestError(`The prompt has ${ids.length} tokens, the bundle's context holds ${context}; shorten it, or compile with a longer context`, {
      tokens: ids.length,
      context,
    });
  }
  const index = ids.findIndex((id) => !Number.isInteger(id) || id < 0 || id >= vocabSize);
  if (index >= 0) {
    throw new RequestError(`Token ${index} of the prompt is ${String(ids[index])}; token ids of this model are 0 to ${vocabSize - 1}`, { index });
  }
}

function requireOptions({ maxTokens, temperature, seed }: TokenOptions): void {
  if (maxTokens !== undefined && !(Number.isInteger(maxTokens) && maxTokens >= 1)) throw outOfRange("maxTokens", maxTokens, "an integer of at least 1");
  if (temperature !== undefined && !(Number.isFinite(temperature) && temperature >= 0)) throw outOfRange("temperature", temperature, "0 or more");
  if (seed !== undefined && !(Number.isInteger(seed) && seed >= 0 && seed < 2 ** 32)) throw outOfRange("seed", seed, "an integer from 0 to 4294967295");
}

function outOfRange(option: string, found: number, range: string): RequestError {
  return new RequestError(`${option} is ${found}, it must be ${range}`, { option });
}
