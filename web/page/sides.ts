// Both sides as one that answers: this page's engine is near, from when it is loaded on, a server is far, and a policy decides. Messages flow in, text and
// routes flow out.

import type { HybridOptions } from "../src/router/index.js";
import { Hybrid } from "../src/router/index.js";
import { platformDevice } from "../src/router/decision/device_hints.js";
import type { Policy } from "../src/router/decision/policy.js";
import type { Engine } from "../src/index.js";
import type { BundleFacts } from "./bundle_facts.js";
import type { FarAddress } from "./far_address.js";
import type { AnswerEnd, Answerer, ChatMessage, Piece, Settings, Side } from "./model.js";
import type { Network } from "./network.js";
import { fittedPolicy, givenPolicy, labelsOf, lockLabel, ownPolicy, policyWords, withLock } from "./policy.js";

export interface Sides extends Answerer {
  /** What the server calls its model; null where it could not be reached yet. */
  readonly farModel: string | null;
  /** When the server is asked. */
  readonly words: string;
  /** Whether a private message can be answered: not if the policy sends every message to the server. */
  readonly locks: boolean;
}

/**
 * ``pin`` is asked for each answer anew: null leaves it to the policy. Resolves before ``engine`` does, which answers from then on. Throws what Hybrid.create
 * throws, and where the policy's file cannot be read.
 */
export async function connectSides(
  engine: Promise<Engine>,
  facts: Promise<BundleFacts | null>,
  far: FarAddress,
  network: Network,
  pin: () => Side | null,
): Promise<Sides> {
  const { url: baseURL, key: apiKey, model, dialect } = far;
  const platform = platformDevice();
  const options: Omit<HybridOptions, "policy"> = {
    near: engine,
    far: { baseURL, apiKey, model, dialect },
    fetch: network.fetch,
    device: {
      read: async () => {
        const hints = await platform.read();
        return { ...hints, online: hints.online && network.on };
      },
    },
  };
  const given = await givenPolicy();
  let policy = withLock(given ?? ownPolicy(dialect));
  let hybrid = await Hybrid.create({ ...options, policy });
  const fitted =
    given === null ? await fittedPolicy((await facts)?.model ?? null, hybrid.far?.id ?? null, dialect) : null;
  if (fitted !== null) {
    policy = withLock(fitted);
    hybrid.close();
    hybrid = await Hybrid.create({ ...options, policy });
  }
  return {
    get farModel() {
      return hybrid.far?.id ?? null;
    },
    words: policyWords(policy),
    locks: lockLabel(policy) !== null,
    answer: (messages, settings, signal) => answer(hybrid, policy, messages, settings, pin(), signal),
  };
}

async function* answer(
  hybrid: Hybrid,
  policy: Policy,
  messages: readonly ChatMessage[],
  { temperature, maxTokens, seed }: Settings,
  pin: Side | null,
  signal: AbortSignal,
): AsyncGenerator<Piece, AnswerEnd, undefined> {
  const start = performance.now();
  let first: number | null = null;
  let finishReason = "stop";
  let usage: {
    prompt_tokens: number;
    completion_tokens: number;
    prompt_tokens_details?: { cached_tokens: number };
  } | null = null;
  const stream = await hybrid.chat.completions.create(
    {
      messages: messages.map(({ role, content, private: secret }) => ({
        role,
        content,
        labels: labelsOf(policy, secret),
      })),
      stream: true,
      stream_options: { include_usage: true },
      temperature,
      max_tokens: maxTokens,
      seed,
      pin,
    },
    { signal },
  );
  for await (const { choices, route, usage: told } of stream) {
    if (route !== undefined) yield { type: "route", route };
    const [choice] = choices;
    const text = choice?.delta.content ?? "";
    if (text !== "") {
      first ??= performance.now();
      yield { type: "text", text };
    }
    finishReason = choice?.finish_reason ?? finishReason;
    usage = told ?? usage;
  }
  signal.throwIfAborted();
  const end = performance.now();
  const count = usage?.completion_tokens ?? null;
  return {
    finishReason,
    promptTokens: usage?.prompt_tokens ?? null,
    cachedTokens: usage?.prompt_tokens_details?.cached_tokens ?? 0,
    completionTokens: count,
    timeToFirstTokenMs: (first ?? end) - start,
    totalMs: end - start,
    tokensPerSecond: count === null || count < 2 || first === null ? null : ((count - 1) * 1000) / (end - first),
  };
}
