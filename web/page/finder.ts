// The model that finds the private texts of a policy's `private.masks`, if ?finder= names its bundle: an engine in a
// worker, so that the page stays responsive. It is loaded with the first message that it reads.

import type { EntityFinder } from "../src/router/index.js";
import type { Policy } from "../src/shared/decision/policy.js";
import type { WorkerEngine } from "../src/worker/client.js";
import { folderOfAddress, openWorkerEngine } from "./worker_engine.js";

export class ChatFinder implements EntityFinder {
  #engine: Promise<WorkerEngine> | null = null;

  constructor(private readonly bundle: string) {}

  /** Null without ?finder=. */
  static ofAddress(): ChatFinder | null {
    const bundle = folderOfAddress("finder");
    return bundle === null ? null : new ChatFinder(bundle);
  }

  /**
   * It for a policy, whose entities are kinds or the model's own labels; null if the policy has none. Throws RequestError
   * for a model that labels no tokens, or has labels without a kind, and BundleError.
   */
  async for({ private: { masks } }: Policy): Promise<EntityFinder | null> {
    if (masks === null || masks.entities.length === 0) return null;
    const { fitted, tokenLabels } = await import("../src/router/finder.js");
    return fitted(this, await tokenLabels(this.bundle), masks.entities);
  }

  /** Throws what `connectEngine` throws; a failed load is tried again. */
  async classify(
    ...given: Parameters<EntityFinder["classify"]>
  ): Promise<Awaited<ReturnType<EntityFinder["classify"]>>> {
    this.#engine ??= openWorkerEngine(this.bundle);
    this.#engine.catch(() => (this.#engine = null));
    return (await this.#engine).classify(...given);
  }
}
