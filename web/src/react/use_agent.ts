// useAgent: a run of an agent, with the calls that wait for approval, as a store that React reads through
// useSyncExternalStore. agent.js is not in react.js: the component makes the agent.

import { useEffect, useState, useSyncExternalStore } from "react";

import type {
  Agent,
  AgentCall,
  AgentEvent,
  AgentMessage,
  AgentOptions,
  AgentResult,
  AskedCall,
} from "../agent/agent.js";
import type { Route } from "../api/types.js";
import { RequestError } from "../errors.js";
import type { ReasonedStake } from "../shared/agent/stake.js";

/** A call on a page: ``outcome`` is null while it waits for approval or runs. */
export type ShownCall = Pick<AgentCall, "name" | "server" | "arguments"> &
  ({ readonly outcome: null; readonly text: null; readonly left: null } | Pick<AgentCall, "outcome" | "text" | "left">);

export interface ShownStep {
  readonly stake: ReasonedStake;
  /** Null before the model has answered, and without a Hybrid. */
  readonly route: Route | null;
  readonly reasoning: string;
  /** What the model writes of its answer. */
  readonly text: string;
  readonly calls: readonly ShownCall[];
}

/** "asking": `asked` waits for `allow` or `deny`. */
export type AgentStatus = "ready" | "running" | "asking" | "error";

export interface AgentSnapshot {
  readonly status: AgentStatus;
  readonly steps: readonly ShownStep[];
  /** The text of the answer, as far as it is written. */
  readonly text: string;
  /** The call that waits for approval, with its arguments and what would leave this device. */
  readonly asked: AskedCall | null;
  /** Null until the run has ended by itself. */
  readonly result: AgentResult | null;
  /** Null unless the status is error. */
  readonly error: unknown;
}

/** Makes the agent of a run: pass ``approve`` on to it. */
export type MakeAgent = (approve: NonNullable<AgentOptions["approve"]>) => Pick<Agent, "events">;

export interface UseAgent extends AgentSnapshot {
  /** Runs a task; with ``continues``, after the messages of the last result. Never rejects. */
  readonly run: (task: string | readonly AgentMessage[], options?: { readonly continues?: boolean }) => Promise<void>;
  /** Ends the run; what was shown remains. */
  readonly stop: () => void;
  readonly allow: () => void;
  readonly deny: () => void;
}

const NOTHING: AgentSnapshot = { status: "ready", steps: [], text: "", asked: null, result: null, error: null };

class AgentRuns {
  /** The latest of the hook's; null while the engine loads. */
  make: MakeAgent | null = null;
  #snapshot = NOTHING;
  #running: AbortController | null = null;
  #decide: ((allowed: boolean) => void) | null = null;
  readonly #listeners = new Set<() => void>();

  readonly subscribe = (listener: () => void): (() => void) => {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  };

  readonly snapshot = (): AgentSnapshot => this.#snapshot;

  readonly run: UseAgent["run"] = async (task, { continues = false } = {}) => {
    const before = continues ? (this.#snapshot.result?.messages ?? []) : [];
    this.stop();
    const running = new AbortController();
    const { signal } = running;
    this.#running = running;
    this.change({ ...NOTHING, status: "running" });
    try {
      if (this.make === null) throw new RequestError("The agent's engine is not loaded yet; wait until it is ready");
      const agent = this.make((call, until) => this.ask(call, AbortSignal.any([until, signal])));
      const given = typeof task === "string" ? [{ role: "user" as const, content: task }] : task;
      for await (const event of agent.events([...before, ...given], { signal })) {
        // Ignore what happens after stop.
        if (signal.aborted) return;
        this.show(event);
      }
      this.change({ status: "ready" });
    } catch (error) {
      if (!signal.aborted) this.change({ status: "error", asked: null, error });
    } finally {
      if (this.#running === running) this.#running = null;
    }
  };

  readonly stop = (): void => {
    this.#running?.abort();
    this.#running = null;
    this.#decide = null;
    const { status } = this.#snapshot;
    if (status === "running" || status === "asking") this.change({ status: "ready", asked: null });
  };

  readonly allow = (): void => {
    this.#decide?.(true);
  };

  readonly deny = (): void => {
    this.#decide?.(false);
  };

  private ask(asked: AskedCall, signal: AbortSignal): Promise<boolean> {
    this.change({ status: "asking", asked });
    return new Promise((resolve) => {
      const decide = (allowed: boolean): void => {
        // The run may have ended meanwhile, and another one may ask.
        if (this.#decide !== decide) return;
        this.#decide = null;
        this.change({ status: "running", asked: null });
        resolve(allowed);
      };
      this.#decide = decide;
      signal.addEventListener("abort", () => {
        decide(false);
      });
    });
  }

  private show(event: AgentEvent): void {
    const { steps } = this.#snapshot;
    const last = steps.at(-1);
    const changed = (part: Partial<ShownStep>): readonly ShownStep[] =>
      last === undefined ? steps : [...steps.slice(0, -1), { ...last, ...part }];
    const calls = last?.calls ?? [];
    switch (event.type) {
      case "step":
        this.change({
          steps: [...steps, { stake: event.stake, route: null, reasoning: "", text: "", calls: [] }],
          text: "",
        });
        return;
      case "text":
        if (event.tool !== null) return;
        this.write(changed({ text: (last?.text ?? "") + event.text }));
        return;
      case "reasoning":
        this.change({ steps: changed({ reasoning: (last?.reasoning ?? "") + event.text }) });
        return;
      case "withdrawn":
        this.write(changed({ text: "", reasoning: "" }));
        return;
      case "routed":
        this.change({ steps: changed({ route: event.route }) });
        return;
      case "call":
        this.change({
          steps: changed({ calls: [...calls, { ...event.call, outcome: null, text: null, left: null }] }),
        });
        return;
      case "result":
        this.change({ steps: changed({ calls: [...calls.slice(0, -1), event.call] }) });
        return;
      case "end":
        this.change({ result: event.result, text: event.result.text ?? this.#snapshot.text });
        return;
      default:
        event satisfies never;
    }
  }

  private write(steps: readonly ShownStep[]): void {
    this.change({ steps, text: steps.at(-1)?.text ?? "" });
  }

  private change(part: Partial<AgentSnapshot>): void {
    this.#snapshot = { ...this.#snapshot, ...part };
    for (const listener of this.#listeners) listener();
  }
}

/**
 * Runs of an agent, one at a time. ``make`` makes the agent when a run starts, so it may be another function at each
 * render; null while the engine loads. `run`, `stop`, `allow` and `deny` are the same functions at every render. Errors
 * are reported as `error`, never as rejections. A run ends when the component unmounts.
 */
export function useAgent(make: MakeAgent | null): UseAgent {
  const [runs] = useState(() => new AgentRuns());
  useEffect(() => {
    runs.make = make;
  });
  useEffect(() => runs.stop, [runs]);
  const snapshot = useSyncExternalStore(runs.subscribe, runs.snapshot, runs.snapshot);
  const { run, stop, allow, deny } = runs;
  return { ...snapshot, run, stop, allow, deny };
}
