// The chat: who can answer by now, its turns, and what of them is private. Loaded models, servers, questions and clicks flow in; the page shows it.

import type { Engine } from "../src/index.js";
import { Unavailable } from "../src/index.js";
import type { AnswerView } from "./answer_view.js";
import type { BundleFacts } from "./bundle_facts.js";
import type { FarAddress } from "./far_address.js";
import { hostOf } from "./far_address.js";
import { FarForm } from "./far_form.js";
import type { Answerer, ChatMessage, EngineInfo, Model, Settings } from "./model.js";
import type { Near, NearNotice } from "./near_notice.js";
import { Network } from "./network.js";
import { SettingsForm } from "./settings.js";
import { SideControls } from "./side_controls.js";
import type { Sides } from "./sides.js";
import { connectSides } from "./sides.js";
import { View } from "./view.js";

/** A question, and the view that has as much of its answer as there is. */
interface Turn {
  readonly question: string;
  /** Whether it is to stay on this device. */
  readonly private: boolean;
  readonly view: AnswerView;
}

interface Far {
  readonly host: string;
  readonly sides: Sides;
}

export class Chat {
  readonly #settings = new SettingsForm();
  readonly #turns: Turn[] = [];
  readonly #view: View;
  readonly #network = new Network();
  readonly #controls = new SideControls(this.#network);
  readonly #form = new FarForm((address) => this.join(address));
  readonly #engine: Promise<Engine>;
  #near: Near = { state: "loading" };
  #model: Model | null = null;
  /** Null where no server was named. */
  #far: Far | null = null;
  #running = new AbortController();
  #answered = Promise.resolve();

  /** ``facts``: of the bundle, null where its manifest cannot be read. */
  constructor(
    opening: Promise<Model>,
    private readonly facts: Promise<BundleFacts | null>,
    private readonly notice: NearNotice,
  ) {
    this.#engine = opening.then(({ engine }) => engine);
    // Who opened the model is told of its failure.
    this.#engine.catch(() => undefined);
    this.#view = new View({
      send: (question) => {
        this.send(question);
      },
      stop: () => {
        this.#running.abort();
      },
      newChat: () => void this.clear(),
      regenerate: () => {
        this.regenerate();
      },
    });
    this.#network.onSent = () => {
      this.#form.traffic(this.#network.sent);
    };
  }

  /** Asks the server that the page's address names, where it names one. */
  async connect(): Promise<void> {
    if (this.#form.given) await this.#form.submit();
  }

  async nearReady(model: Model): Promise<void> {
    this.#near = { state: "ready" };
    this.#model = model;
    await this.arrange();
    this.#view.announce(`${model.info.model} is ready`);
  }

  /** Whether somebody else answers. Else the form of the far side stands in the explanation of the failure. */
  async nearFailed(error: unknown): Promise<boolean> {
    this.#near = { state: "failed", error };
    await this.#form.settled;
    await this.arrange();
    if (this.answerable) return true;
    // As long as near might have answered it was none.
    if (this.#far !== null) this.#form.fail(silent(this.#far.host));
    this.#form.moveTo("failure-far");
    return false;
  }

  /** Throws what connectSides throws, and Unavailable where nobody could answer. */
  private async join(address: FarAddress): Promise<void> {
    const host = hostOf(address.url);
    const sides = await connectSides(this.#engine, this.facts, address, this.#network, () => this.#controls.pin);
    if (sides.farModel === null && this.#near.state === "failed") {
      throw silent(host);
    }
    this.#far = { host, sides };
    await this.arrange();
  }

  /** Whether anybody is there to answer. */
  private get answerable(): boolean {
    return this.#model !== null || (this.#far?.sides.farModel ?? null) !== null;
  }

  /** Shows who can answer by now. */
  private async arrange(): Promise<void> {
    const facts = await this.facts;
    if (!this.answerable) return;
    const far = this.#far;
    document.body.dataset.near = this.#near.state;
    this.#view.present({ near: this.#near.state, info: this.info, facts, far: far === null ? null : { host: far.host, model: far.sides.farModel } });
    this.#form.moveTo("far-details");
    this.#controls.near(this.#near.state);
    this.notice.show(this.#near, far?.host ?? null);
    if (far === null) return;
    this.#controls.appear(far.sides.locks);
    this.#form.tell(this.farWords(far));
    this.carry();
  }

  /** Who is far, and when it is asked. */
  private farWords({ host, sides }: Far): string {
    const reached = sides.farModel === null ? `${host} does not answer; it is tried again later.` : `${sides.farModel} at ${host}.`;
    return `${reached} ${this.#near.state === "failed" ? "It answers everything, for there is no model on this device." : sides.words}`;
  }

  private get info(): EngineInfo | null {
    return this.#model?.info ?? null;
  }

  private send(text: string): void {
    const settings = this.#settings.read();
    if (settings === null) return;
    const refused = this.#controls.refused;
    if (refused !== null) {
      this.#view.announce(`Not sent. ${refused}`);
      return;
    }
    const marked = this.#controls.private;
    const view = this.#view.ask({ text, private: marked }, this.#far?.host ?? null);
    // What was typed while there was no far side was not meant for one.
    const turn: Turn = { question: text, private: marked || this.#far === null, view };
    this.#turns.push(turn);
    this.#answered = this.answer(turn, settings);
  }

  private regenerate(): void {
    const turn = this.#turns.at(-1);
    const settings = this.#settings.read();
    if (turn === undefined || settings === null) return;
    turn.view.start();
    this.#view.begin(turn.view);
    this.#answered = this.answer(turn, settings);
  }

  private async clear(): Promise<void> {
    this.#running.abort();
    await this.#answered;
    this.#turns.length = 0;
    this.carry();
    this.#view.clear();
  }

  private async answer(turn: Turn, settings: Settings): Promise<void> {
    this.#running = new AbortController();
    const { signal } = this.#running;
    const pieces = this.answerer.answer(this.messages(), settings, signal);
    try {
      for (;;) {
        const { done, value } = await pieces.next();
        if (done === true) {
          turn.view.finish(value, settings, this.info);
          break;
        }
        if (value.type === "route") turn.view.follow(value.route);
        else turn.view.append(value.text);
        this.#view.follow();
      }
    } catch (error) {
      if (signal.aborted) turn.view.stopped();
      else turn.view.fail(error);
    }
    this.carry();
    this.#view.end();
  }

  private get answerer(): Answerer {
    const answerer = this.#far?.sides ?? this.#model;
    if (answerer === null) throw new Error("a question came before anybody could answer");
    return answerer;
  }

  private carry(): void {
    if (this.#far !== null) this.#controls.carry(this.#turns.some((turn) => turn.private && turn.view.text !== ""));
  }

  /** What was not answered is not part of the conversation, but for the last question. */
  private messages(): readonly ChatMessage[] {
    const last = this.#turns.at(-1);
    return this.#turns.flatMap((turn): ChatMessage[] => {
      const question: ChatMessage = { role: "user", content: turn.question, private: turn.private };
      if (turn === last) return [question];
      return turn.view.text === "" ? [] : [question, { role: "assistant", content: turn.view.text, private: turn.private }];
    });
  }
}

/** The problem of a server that does not answer, where nobody else does. */
function silent(host: string): Unavailable {
  return new Unavailable(`${host} does not answer; start it, and let it allow this page: nearfar serve --cors-origin ${location.origin}`, { retryable: true });
}
