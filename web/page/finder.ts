// The model that finds private texts, if ?finder= names its bundle: an engine in a worker, so that the page stays
// responsive. It is loaded with the first message that it reads. The page's own policy masks all that it finds.

import { RequestError } from "../src/index.js";
import type { Finder } from "../src/router/finder.js";
import type { EntityFinder } from "../src/router/index.js";
import type { MaskEntity, Policy } from "../src/shared/decision/policy_schema.js";
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
   * The entities of a policy that masks all that it finds. Throws RequestError for a model that labels no tokens, or has
   * labels without a kind, and BundleError.
   */
  async entities(): Promise<readonly MaskEntity[]> {
    return (await this.#finder([])).entities;
  }

  /** It for a policy. Throws what ``entities`` throws, and RequestError for a policy without any. */
  async for({ private: { masks } }: Policy): Promise<EntityFinder> {
    if (masks === null || masks.entities.length === 0)
      throw new RequestError(
        "?finder= names a model, but the policy masks nothing that it finds; list private.masks.entities in the policy, " +
          "or open the page without ?finder=",
        { code: "bad_policy", param: "private.masks.entities" },
      );
    return this.#finder(masks.entities);
  }

  async #finder(entities: readonly MaskEntity[]): Promise<Finder> {
    const { finderFor, tokenLabels } = await import("../src/router/finder.js");
    return finderFor<EntityFinder>(this, await tokenLabels(this.bundle), entities);
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
