// Routing: what all requests of a Hybrid share. It chooses a side for a request, and runs the answer over both sides;
// meanwhile it keeps the records of the sides and today's costs.

import { unlessAborted } from "../runtime/abort.js";
import { Circuit } from "./answer/side_record.js";
import type { AnswerItem, AnswerJob } from "./answer/running_answer.js";
import { runAnswer } from "./answer/running_answer.js";
import { SideRecord, rates } from "./answer/side_record.js";
import type { Ledger } from "./budget.js";
import { isSpent, paidUsd } from "../shared/decision/costs.js";
import type { Choice } from "../shared/decision/decide.js";
import { choose } from "../shared/decision/decide.js";
import type { Decision, Side } from "../shared/decision/decision.js";
import { refusal } from "../shared/decision/decision.js";
import type { DeviceSource } from "./device_hints.js";
import type { Policy } from "../shared/decision/policy.js";
import type { Speed } from "../shared/decision/speed.js";
import type { PrefixMessage } from "../shared/decision/prefix_memory.js";
import { PrivateCheck } from "../shared/decision/privacy.js";
import { budgetSpent } from "../shared/router/failures.js";
import type { MediaKind } from "../shared/decision/media.js";
import type { Situation } from "../shared/decision/situation.js";
import { UNKNOWN_SIDE } from "../shared/decision/situation.js";
import type { HybridRequest } from "./request.js";
import type { Clock } from "./sides/clock.js";
import type { FarSide } from "./sides/far.js";
import type { NearSide } from "./sides/near.js";
import { whyNoEngine } from "./sides/near.js";

export interface Wiring {
  readonly policy: Policy;
  readonly near: NearSide;
  readonly far: FarSide | null;
  readonly ledger: Ledger;
  readonly device: DeviceSource;
  readonly clock: Clock;
  /** How fast near is, until its answers show it. */
  readonly nearSpeed?: Partial<Speed> | null | undefined;
  /** Whether there is a transcriber. */
  readonly transcribes: boolean;
}

/** What is known about a request besides its properties; null if it is not known. */
export interface Prompt {
  readonly tokens: number | null;
  readonly conversation: readonly PrefixMessage[];
  readonly embedding: readonly number[] | null;
}

export interface SituatedChoice extends Choice {
  readonly situation: Situation;
}

export class Routing {
  readonly records: Readonly<Record<Side, SideRecord>>;
  readonly privacy: PrivateCheck;

  constructor(readonly wiring: Wiring) {
    const { policy, clock } = wiring;
    const { failures, open_ms: waitMs } = policy.breaker;
    const record = (expected?: Partial<Speed>): SideRecord =>
      new SideRecord(new Circuit(failures, waitMs, () => clock.now()), expected);
    this.records = { near: record(wiring.nearSpeed ?? {}), far: record() };
    this.privacy = PrivateCheck.of(policy.private);
  }

  /**
   * Chooses a side by a policy, or finds that the media must be described first. If only near may answer and it is still loading, it waits. ``isPrivate`` null: by the
   * policy. Throws RequestError or Unavailable if no side may or can answer, or the signal's reason.
   */
  async choose(
    policy: Policy,
    situate: () => Promise<Situation>,
    isPrivate: boolean | null,
    signal: AbortSignal,
  ): Promise<SituatedChoice> {
    const { near } = this.wiring;
    let situation = await situate();
    const { masks } = policy.private;
    // Only chats are searched by the model that finds entities, and only for them it is known what may leave.
    const isUnsearched = masks !== null && (masks.strict || masks.entities.length > 0);
    const staysNear = isPrivate ?? (isUnsearched || this.privacy.isPrivate(situation));
    let choice = choose(policy, situation, staysNear);
    if (near.state === "loading" && waitsForNear(policy, choice.decision, situation)) {
      await unlessAborted(near.settled, signal);
      situation = await situate();
      choice = choose(policy, situation, staysNear);
    }
    if (choice.decision.side === null && choice.describes.length === 0)
      throw this.refusal(choice.decision, situation, policy);
    return { ...choice, situation };
  }

  /** The error of a decision without a side. */
  refusal(decision: Decision, situation: Situation, policy: Policy = this.wiring.policy): Error {
    const { near } = this.wiring;
    return refusal(decision, situation, policy, near.state === "ready" ? null : whyNoEngine(near));
  }

  /** A request with what is known about both sides now. */
  async situation(
    { properties, hasOwnSound = false }: Pick<HybridRequest, "properties"> & Partial<HybridRequest>,
    { tokens, conversation, embedding }: Prompt,
  ): Promise<Situation> {
    const { policy, near, far, ledger, device, transcribes } = this.wiring;
    const { usd, requests } = ledger.today();
    const { online, ...hints } = await device.read();
    const known = (side: Side, model: { readonly context: number | null; readonly tools: boolean } | null) => {
      const { speed, memory, circuitState } = this.records[side];
      return {
        ...UNKNOWN_SIDE,
        ...rates(speed),
        context: model?.context ?? null,
        tools: model?.tools ?? true,
        languages: policy.languages[side],
        prompt_tokens: tokens,
        cached_tokens: Math.floor((tokens ?? 0) * memory.cachedShare(conversation, this.seconds())),
        circuit: circuitState,
      };
    };
    const describes: readonly (MediaKind | false | undefined)[] = [
      near.info?.images && "picture",
      near.info?.video && "video",
      transcribes && "sound",
    ];
    return {
      ...properties,
      near: {
        ...known("near", near.info),
        ...hints,
        vision: near.info?.images ?? false,
        video: near.info?.video ?? false,
        sound: near.info?.sound ?? false,
        available: near.state === "ready",
        describes: describes.filter((kind) => kind !== false && kind !== undefined),
      },
      far: {
        ...known("far", far?.model ?? null),
        online: far !== null && online,
        vision: far?.vision ?? false,
        video: far?.video ?? false,
        sound: (far?.sound ?? false) && !hasOwnSound,
        queue_seconds: far?.queueSeconds ?? 0,
        round_trip_seconds: this.records.far.speed.round_trip_seconds ?? far?.roundTripSeconds ?? null,
        spent_usd_today: usd,
        requests_today: requests,
      },
      near_signals: null,
      embedding,
    };
  }

  /**
   * As `runAnswer`. ``learns``: whether a side's time is that of a generation, which shows its speed. ``replays``: the side
   * whose answer was counted when it was asked.
   */
  run(
    { situation, decision, standby }: Pick<SituatedChoice, "situation" | "standby"> & Pick<AnswerJob, "decision">,
    job: Omit<AnswerJob, "decision" | "standby" | "clock" | "observer">,
    learns: (side: Side) => boolean,
    replays: Side | null = null,
  ): AsyncGenerator<AnswerItem, void, undefined> {
    const { ledger, policy, far, clock } = this.wiring;
    const observer: AnswerJob["observer"] = {
      requested: (side) => {
        const counts = side === "far" && side !== replays;
        if (counts && isSpent(policy.budget, ledger.today())) throw budgetSpent();
        this.records[side].circuit.begin();
        if (counts) ledger.add({ requests: 1 });
      },
      circuit: (side, outcome) => {
        this.records[side].circuit[outcome]();
      },
      ended: (side, part) => {
        this.records[side].circuit.ended();
        if (side === "far") ledger.add({ usd: paidUsd(policy, part, situation.far.prompt_tokens) });
        if (part.complete && learns(side))
          this.records[side].learn(part, side === "far" ? (far?.roundTripSeconds ?? null) : null);
      },
    };
    return runAnswer({ ...job, decision, standby, clock, observer });
  }

  seconds(): number {
    return this.wiring.clock.now() / 1000;
  }
}

/** Whether near could answer if its model were loaded. */
function waitsForNear(policy: Policy, decision: Decision, situation: Situation): boolean {
  if (decision.side !== null || situation.near.available) return false;
  // What its model reads is known once it has loaded.
  const reads = { vision: true, video: true, sound: true };
  const loaded = { ...situation, near: { ...situation.near, ...reads, available: true } };
  return choose(policy, loaded, decision.private).decision.side === "near";
}
