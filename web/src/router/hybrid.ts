// Hybrid: one client over two sides, an engine on this device ("near") and a server ("far"). Answers are in OpenAI's
// form, each with the route that it took.

import { readParams } from "../api/params.js";
import type { RequestOptions } from "../api/types.js";
import type { Engine } from "../engine.js";
import { Unavailable } from "../errors.js";
import type { LoadOptions } from "../load_options.js";
import type { Ledger } from "./budget.js";
import { browserLedger } from "./budget.js";
import type { Clock } from "./sides/clock.js";
import { SYSTEM_CLOCK, withTimeout } from "./sides/clock.js";
import type { DeviceSource } from "./device_hints.js";
import { platformDevice } from "./device_hints.js";
import type { FarModel, FarOptions } from "./sides/far.js";
import { FarSide } from "./sides/far.js";
import type { Fetch } from "./sides/far_http.js";
import type { SoundTranscriber } from "./describer.js";
import type { Embedder } from "./hybrid_completions.js";
import type { Confirm, EntityFinder, LeavingChat, Masker } from "./masks.js";
import type { HybridParams } from "./request.js";
import { withMessages } from "./request.js";
import { HybridCompletions } from "./hybrid_completions.js";
import type {
  HybridEmbeddingParams,
  HybridEmbeddings,
  HybridEncoding,
  HybridRerank,
  HybridRerankParams,
} from "./hybrid_encoding.js";
import type { DecideContext, HybridDecideOptions, HybridDecisions } from "./hybrid_decisions.js";
import { FAR_OPTIONS, HYBRID_OPTIONS } from "./hybrid_options.js";
import type { DeviceReport } from "../probe/schema.js";
import type { LoadNear, NearOption } from "./sides/near.js";
import { NearSide } from "./sides/near.js";
import type { Policy } from "../shared/decision/policy.js";
import { parsePolicy } from "../shared/decision/policy.js";
import { checkSides } from "../shared/decision/contradictions.js";
import { badPolicy } from "../shared/decision/schema_check.js";
import type { Questions } from "../shared/questions/questions.js";
import { Routing } from "./routing.js";
import type { PrefillCounts, PrefilledNear } from "./sides/prefilled_near.js";
import type { SpeculatingFar } from "./sides/speculating_far.js";
import type { SocketClass } from "./sides/verify_socket.js";
import type { WireCounts } from "./sides/wire_speculation.js";

export interface HybridOptions {
  /**
   * An engine, the promise of one that is loading, a bundle's address (or several, as Engine.load accepts them), or
   * null.
   */
  readonly near: NearOption | null;
  readonly far: FarOptions | null;
  /** The content of the policy's file. */
  readonly policy: unknown;
  /** The options of Engine.load for a bundle's address. */
  readonly load?: LoadOptions | undefined;
  readonly fetch?: Fetch | undefined;
  /** For a policy with `speculation`. Default: the platform's. */
  readonly WebSocket?: SocketClass | undefined;
  /** Counts today's cost of the far side. Default: stored in localStorage if there is one. */
  readonly ledger?: Ledger | undefined;
  readonly device?: DeviceSource | undefined;
  readonly clock?: Clock | undefined;
  /**
   * The report of a probe of near's bundle (probe.js): how fast near is, until its answers have shown it. A bundle that
   * the probe refuses is not loaded.
   */
  readonly probe?: Pick<DeviceReport, "speed" | "fit" | "refusals"> | undefined;
  /** For a policy whose predictor reads embeddings. */
  readonly embedder?: Embedder | undefined;
  /**
   * Writes down sound on this device, such as an engine with Whisper, for a policy whose `private.media` is "describe", or
   * for a far side that does not hear, if media may leave.
   */
  readonly transcriber?: SoundTranscriber | undefined;
  /**
   * Finds the entities of a policy's `private.masks` on this device: a `Finder`, or an object of yours whose `classify`
   * labels spans as the policy's entities do. The texts are private.
   */
  readonly finder?: EntityFinder | undefined;
  /** For a policy whose `private.masks.then` is "ask": whether far may receive these texts. */
  readonly confirm?: Confirm | undefined;
}

export class Hybrid {
  /** As in OpenAI's client: chat.completions.create. */
  readonly chat: { readonly completions: HybridCompletions };

  /** As in OpenAI's client, if both sides have the same embedding model. See `HybridEncoding.embed`. */
  readonly embeddings: {
    create(params: HybridEmbeddingParams, options?: Pick<RequestOptions, "signal">): Promise<HybridEmbeddings>;
  };
  #encoding: HybridEncoding | null = null;

  private constructor(
    private readonly routing: Routing,
    private readonly speculating: SpeculatingFar | null,
    private readonly prefilled: PrefilledNear | null,
    completions: HybridCompletions,
  ) {
    this.chat = { completions };
    this.embeddings = { create: async (params, options) => (await this.encoding()).embed(params, options) };
  }

  /**
   * Resolves once the far side has reported what it serves. If near may answer, it also resolves when far cannot be
   * reached, which then gets no requests for the time of the policy's breaker, or sends nothing for a second while near is ready; a bundle goes on loading meanwhile. If only near may
   * answer, it resolves once near is ready. Throws RequestError (``details.code``: bad_policy, wrong_key, api_version,
   * unknown_model), Unavailable, and what Engine.load throws.
   */
  static async create(raw: HybridOptions): Promise<Hybrid> {
    // A missing option and null mean the same.
    const { near: nearOption = null, far: farOption = null, ...rest } = readParams(raw, HYBRID_OPTIONS);
    const options: HybridOptions = { policy: null, ...rest, near: nearOption, far: farOption };
    const {
      clock = SYSTEM_CLOCK,
      device = platformDevice(),
      load = {},
      ledger = browserLedger(() => clock.date()),
    } = options;
    const fetch: Fetch = options.fetch ?? ((url, init) => globalThis.fetch(url, init));
    const policy = parsePolicy(options.policy);
    checkOptions(policy, options);
    const far = options.far === null || policy.mode === "near-only" ? null : new FarSide(options.far, fetch, clock);
    const { probe } = options;
    const asProbed = probe === undefined ? load : { probe: () => Promise.resolve(probe), ...load };
    const near = new NearSide(policy.mode === "far-only" ? null : options.near, loadEngine, asProbed);
    try {
      const isReached = far === null || (await reach(far, near, policy, clock));
      if (far === null) await near.settled;
      if (far === null && near.state === "failed") throw near.error;
      const { transcriber = null } = options;
      const routing = new Routing({
        policy,
        near,
        far,
        ledger,
        device,
        clock,
        transcribes: transcriber !== null,
        nearSpeed: probe?.speed,
      });
      if (!isReached) routing.records.far.circuit.failed(true);
      const speculating = far && (await speculatingFar(far, routing, options));
      const prefilled = far && (await prefilledNear(far, routing));
      const { embedder = null } = options;
      const masker = await maskerOf(routing, options);
      const completions = new HybridCompletions({ routing, speculating, prefilled, embedder, transcriber, masker });
      return new Hybrid(routing, speculating, prefilled, completions);
    } catch (error) {
      near.close();
      throw error;
    }
  }

  /** The engine on this device: whether it is ready, and the progress of its load. */
  get near(): Pick<NearSide, "state" | "progress" | "error" | "info" | "settled"> {
    return this.routing.wiring.near;
  }

  /** The server's report about its models; null until it was reached. */
  get far(): FarModel | null {
    return this.routing.wiring.far?.model ?? null;
  }

  /** Counts of near's guesses for far and of accepted ones; null if the policy has no `speculation`. */
  get speculation(): WireCounts | null {
    return this.speculating?.counts ?? null;
  }

  /** Counts of the prompts that far has computed for near, and how the last one was decided; null without `prefill`. */
  get prefill(): PrefillCounts | null {
    return this.prefilled?.counts ?? null;
  }

  /** Orders documents by their relevance to a query. See `HybridEncoding.rerank`. */
  async rerank(params: HybridRerankParams, options?: Pick<RequestOptions, "signal">): Promise<HybridRerank> {
    return (await this.encoding()).rerank(params, options);
  }

  /**
   * Decides typed questions about a text or the messages of a chat. What near leaves open below ``abstain_below``, far
   * decides, if the policy's ``escalation`` hands answers over and the request may leave. See `decideOverSides`.
   */
  async decide(
    context: DecideContext,
    questions: Questions,
    options: HybridDecideOptions = {},
  ): Promise<HybridDecisions> {
    const { decideOverSides } = await import("./hybrid_decisions.js");
    return decideOverSides(this.routing, context, questions, options);
  }

  /** A chat as the policy lets it leave this device, for others than far, with its masks; null if it must stay. */
  leaving(params: HybridParams, signal: AbortSignal): Promise<LeavingChat | null> {
    return this.chat.completions.leaving(params, signal);
  }

  /** Ends a load, and frees the engine if it was loaded here. */
  close(): void {
    this.routing.wiring.near.close();
  }

  /** Its code is loaded with the first request that needs it. */
  private async encoding(): Promise<HybridEncoding> {
    const { HybridEncoding } = await import("./hybrid_encoding.js");
    return (this.#encoding ??= new HybridEncoding(this.routing));
  }
}

/** The engine's code is loaded with the first bundle address: a page that passes an engine does not need it. */
const loadEngine: LoadNear = async (bundle, options): Promise<Engine> =>
  (await import("../index.js")).Engine.load(bundle, options);

function checkOptions(policy: Policy, { near, far, embedder }: HybridOptions): void {
  if (far !== null) readParams(far, FAR_OPTIONS);
  checkSides(policy, near !== null, far === null ? null : (far.dialect ?? "nearfar"));
  const read = policy.quality.predictor?.embedding?.model;
  if (read && read !== embedder?.model)
    throw badPolicy("quality.predictor", `it reads embeddings of ${read}; set embedder to that model's`);
}

/** The code is loaded only if the policy has `private.masks`. */
async function maskerOf(
  { privacy, wiring: { policy } }: Routing,
  { finder, confirm }: HybridOptions,
): Promise<Masker | null> {
  if (policy.private.masks === null) return null;
  const { Masker } = await import("./masks.js");
  return new Masker(policy, privacy, { finder: finder ?? null, confirm: confirm ?? null }, withMessages);
}

/** The code is loaded only if the policy has `speculation`. */
async function speculatingFar(
  far: FarSide,
  { privacy, wiring: { near, policy } }: Routing,
  options: HybridOptions,
): Promise<SpeculatingFar | null> {
  if (policy.speculation === null || options.far === null) return null;
  const { SpeculatingFar } = await import("./speculation.js");
  const isPrivate = policy.private.patterns.length === 0 ? undefined : (text: string) => privacy.matches(text);
  return new SpeculatingFar(far, near, {
    ...options.far,
    draftTokens: policy.speculation.draft_tokens,
    WebSocket: options.WebSocket,
    isPrivate,
  });
}

/** The code is loaded only if the policy has `prefill`. */
async function prefilledNear(far: FarSide, routing: Routing): Promise<PrefilledNear | null> {
  const { near, policy } = routing.wiring;
  if (policy.prefill === null) return null;
  const { PrefilledNear } = await import("./prefill.js");
  return new PrefilledNear(far, near, routing);
}

/** The time for which a silent far side may delay an engine that is ready to answer, in milliseconds. */
const FAR_GRACE_MS = 1000;

/**
 * False if far cannot be reached, which is not an error if near may answer. The router waits for a silent far side only
 * until near is ready; the next chat asks it again.
 */
async function reach(far: FarSide, near: NearSide, { timeouts }: Policy, clock: Clock): Promise<boolean> {
  const reaching = withTimeout(clock, timeouts.far_first_token_ms, (signal) => far.reach(signal)).catch(
    (error: unknown) => {
      if (!(error instanceof Unavailable) || near.state === "none") throw error;
      return false;
    },
  );
  const nearAlone = near.settled.then(
    () =>
      new Promise<void>((resolve) => {
        if (near.state === "ready") clock.after(FAR_GRACE_MS, resolve);
      }),
  );
  return (await Promise.race([reaching, nearAlone])) !== false;
}
