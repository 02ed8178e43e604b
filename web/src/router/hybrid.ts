// Hybrid: one client over two sides, an engine on this device ("near") and a server ("far"). A policy and chats flow in; answers in OpenAI's form flow out,
// each with the route that it took.

import { readParams } from "../api/params.js";
import type { Engine } from "../engine.js";
import { RequestError, Unavailable } from "../errors.js";
import type { LoadOptions } from "../load.js";
import type { Ledger } from "./decision/budget.js";
import { browserLedger } from "./decision/budget.js";
import type { Clock } from "./sides/clock.js";
import { SYSTEM_CLOCK, withTimeout } from "./sides/clock.js";
import type { DeviceSource } from "./decision/device_hints.js";
import { platformDevice } from "./decision/device_hints.js";
import type { FarModel, FarOptions } from "./sides/far.js";
import { FarSide } from "./sides/far.js";
import type { Fetch } from "./sides/far_http.js";
import { HybridCompletions } from "./hybrid_completions.js";
import { FAR_OPTIONS, HYBRID_OPTIONS } from "./hybrid_options.js";
import type { LoadNear, NearGiven } from "./sides/near.js";
import { NearSide } from "./sides/near.js";
import { PrivateCheck } from "./decision/privacy.js";
import type { Policy } from "./decision/policy.js";
import { parsePolicy } from "./decision/policy.js";
import type { SpeculatingFar } from "./sides/speculating_far.js";
import type { SocketClass } from "./sides/verify_socket.js";
import type { WireCounts } from "./sides/wire_speculation.js";

export interface HybridOptions {
  /** An engine, the promise of one that loads, a bundle's address (or several, as Engine.load takes them), or nothing. */
  readonly near: NearGiven | null;
  readonly far: FarOptions | null;
  /** What the policy's file holds. */
  readonly policy: unknown;
  /** For a bundle's address: as Engine.load takes them. */
  readonly load?: LoadOptions | undefined;
  readonly fetch?: Fetch | undefined;
  /** For a policy's `speculation`; the platform's where it is not given. */
  readonly WebSocket?: SocketClass | undefined;
  /** What the far side cost today; kept in localStorage where it is not given and there is one. */
  readonly ledger?: Ledger | undefined;
  readonly device?: DeviceSource | undefined;
  readonly clock?: Clock | undefined;
}

export class Hybrid {
  /** As OpenAI's client has it: chat.completions.create. */
  readonly chat: { readonly completions: HybridCompletions };

  private constructor(
    private readonly nearSide: NearSide,
    private readonly farSide: FarSide | null,
    private readonly speculating: SpeculatingFar | null,
    completions: HybridCompletions,
  ) {
    this.chat = { completions };
  }

  /**
   * Resolves once the far side has said what it serves. If near may answer, it also resolves when far cannot be reached, or says nothing for a second while
   * near is ready; a bundle goes on loading meanwhile. If only near may answer, it resolves once near is there. Throws RequestError (``details.code``: bad_policy, wrong_key, api_version, unknown_model),
   * Unavailable, and what Engine.load throws.
   */
  static async create(given: HybridOptions): Promise<Hybrid> {
    // What is left out and what is null are the same.
    const { near: nearGiven = null, far: farGiven = null, ...rest } = readParams(given, HYBRID_OPTIONS);
    const options: HybridOptions = { policy: null, ...rest, near: nearGiven, far: farGiven };
    const {
      clock = SYSTEM_CLOCK,
      device = platformDevice(),
      load = {},
      ledger = browserLedger(() => clock.date()),
    } = options;
    const fetch: Fetch = options.fetch ?? ((url, init) => globalThis.fetch(url, init));
    const policy = parsePolicy(options.policy);
    checkSides(policy, options);
    const far = options.far === null || policy.mode === "near-only" ? null : new FarSide(options.far, fetch, clock);
    const near = new NearSide(policy.mode === "far-only" ? null : options.near, loadEngine, load);
    try {
      if (far === null) await near.settled;
      else await reach(far, near, policy, clock);
      if (far === null && near.state === "failed") throw near.error;
      const speculating = far === null ? null : await speculatingFar(far, near, policy, options);
      return new Hybrid(
        near,
        far,
        speculating,
        new HybridCompletions({ policy, near, far, speculating, ledger, device, clock }),
      );
    } catch (error) {
      near.close();
      throw error;
    }
  }

  /** The engine on this device: whether it is there, and how far its load is. */
  get near(): Pick<NearSide, "state" | "progress" | "error" | "info" | "settled"> {
    return this.nearSide;
  }

  /** What the server serves; null while it was not reached. */
  get far(): FarModel | null {
    return this.farSide?.model ?? null;
  }

  /** What near guessed for far, and how much of it held; null where the policy has no `speculation`. */
  get speculation(): WireCounts | null {
    return this.speculating?.counts ?? null;
  }

  /** Ends a load, and frees the engine where it was loaded here. */
  close(): void {
    this.nearSide.close();
  }
}

/** Its code comes with the first bundle that is given by its address: a page that passes an engine has no need of it. */
const loadEngine: LoadNear = async (bundle, options): Promise<Engine> =>
  (await import("../index.js")).Engine.load(bundle, options);

function checkSides({ mode, escalation }: Policy, { near, far }: HybridOptions): void {
  if (far !== null) readParams(far, FAR_OPTIONS);
  if (near === null && (far === null || mode === "near-only"))
    throw new RequestError(
      `near is null, but the policy's mode is ${mode} and no other side answers; set near to a bundle or an engine`,
      { param: "near" },
    );
  if (far === null && mode === "far-only")
    throw new RequestError("far is null, but the policy's mode is far-only; set far to the server's baseURL", {
      param: "far",
    });
  if (escalation.then === "continue" && far?.dialect === "openai") {
    throw new RequestError(
      'The policy\'s escalation.then is "continue", but a server of dialect openai can only start over; use "restart"',
      { code: "bad_policy", param: "escalation.then" },
    );
  }
}

/** Its code comes where the policy wants it. */
async function speculatingFar(
  far: FarSide,
  near: NearSide,
  { speculation, private: rules }: Policy,
  options: HybridOptions,
): Promise<SpeculatingFar | null> {
  if (speculation === null || options.far === null) return null;
  const { SpeculatingFar } = await import("./speculation.js");
  const check = PrivateCheck.of(rules);
  const isPrivate = rules.patterns.length === 0 ? undefined : (text: string) => check.matches(text);
  return new SpeculatingFar(far, near, {
    ...options.far,
    draftTokens: speculation.draft_tokens,
    WebSocket: options.WebSocket,
    isPrivate,
  });
}

/** How long a far side that says nothing may delay an engine that is ready to answer, in milliseconds. */
const FAR_GRACE_MS = 1000;

/** If near may answer, a missing network is not an error, and a silent far side is waited for only until near is ready; it is asked again with the next chat. */
async function reach(far: FarSide, near: NearSide, { timeouts }: Policy, clock: Clock): Promise<void> {
  const reaching = withTimeout(clock, timeouts.far_first_token_ms, (signal) => far.reach(signal)).catch(
    (error: unknown) => {
      if (!(error instanceof Unavailable) || near.state === "none") throw error;
    },
  );
  const nearAlone = near.settled.then(
    () =>
      new Promise<void>((resolve) => {
        if (near.state === "ready") clock.after(FAR_GRACE_MS, resolve);
      }),
  );
  await Promise.race([reaching, nearAlone]);
}
