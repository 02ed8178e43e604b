// Connects the two sides: this page's engine is near, as soon as it is loaded, a server is far, and a policy decides.

import type { HybridOptions } from "../src/router/index.js";
import { Hybrid } from "../src/router/index.js";
import { platformDevice } from "../src/router/device_hints.js";
import type { Engine } from "../src/index.js";
import { journalled } from "../src/journal/index.js";
import type { Policy } from "../src/shared/decision/policy.js";
import type { BundleFacts } from "./bundle_facts.js";
import type { FarAddress } from "./far_address.js";
import { hostOf } from "./far_address.js";
import type { ChatFinder } from "./finder.js";
import type { KeepingAnswerer, Side } from "./model.js";
import type { Network } from "./network.js";
import type { ChatTranscriber } from "./transcriber.js";
import { fittedPolicy, givenPolicy, lockLabel, ownPolicy, policyWords, privacyWords, withLock } from "./policy.js";
import { answerFromSides } from "./sides_answer.js";
import { confirmLeaving } from "./what_leaves.js";

export interface Sides extends KeepingAnswerer {
  readonly policy: Policy;
  /** The server's name for its model; null if the server has not been reached yet. */
  readonly farModel: string | null;
  /**
   * Says when the server answers and which messages are private. ``hasNear``: whether this device has a model, or will.
   */
  readonly words: (hasNear: boolean) => string;
  /** Whether a private message can be answered: not if the policy sends every message to the server. */
  readonly locks: boolean;
}

/**
 * ``pin`` is called for each answer: null leaves the choice of the side to the policy. Resolves before ``engine`` does,
 * which answers as soon as it is loaded. Throws what Hybrid.create throws, and TypeError or SyntaxError if the policy's
 * file cannot be read.
 */
export async function connectSides(
  engine: Promise<Engine>,
  facts: Promise<BundleFacts | null>,
  far: FarAddress,
  network: Network,
  pin: () => Side | null,
  transcriber: ChatTranscriber | null = null,
  finder: ChatFinder | null = null,
): Promise<Sides> {
  const { url: baseURL, key: apiKey, model, dialect } = far;
  const platform = platformDevice();
  const near = engine.catch(() => null);
  const options: Omit<HybridOptions, "policy"> = {
    near: engine,
    far: { baseURL, apiKey, model, dialect },
    fetch: network.fetch,
    ...(transcriber !== null && { transcriber }),
    confirm: (texts) => confirmLeaving(hostOf(baseURL), texts),
    device: {
      read: async () => {
        const hints = await platform.read();
        return { ...hints, online: hints.online && network.on };
      },
    },
  };
  const connect = async (by: Policy): Promise<Hybrid> =>
    Hybrid.create({ ...options, policy: by, finder: (await finder?.for(by)) ?? undefined });
  const given = await givenPolicy();
  const own = ownPolicy(dialect, given === null ? await finder?.entities() : []);
  let policy = withLock(given ?? own);
  let hybrid = await connect(policy);
  const fitted = given === null ? await fittedPolicy((await facts)?.model ?? null, hybrid.far?.id ?? null, own) : null;
  if (fitted !== null) {
    policy = withLock(fitted);
    hybrid.close();
    hybrid = await connect(policy);
  }
  // Conversations with private messages are stored on this device as well.
  const answering = journalled(hybrid, { keepPrivate: true });
  return {
    policy,
    journals: answering.journals,
    get farModel() {
      return hybrid.far?.id ?? null;
    },
    words: (hasNear) => `${policyWords(policy, hasNear)} ${privacyWords(policy, given === null)}`.trim(),
    locks: lockLabel(policy) !== null,
    answer: (messages, settings, signal, kept = null) =>
      answerFromSides({ hybrid: answering, policy, near, messages, settings, pin: pin(), signal, kept }),
  };
}
