// The chat: its turns, who can answer them, which of them are private, and the kept conversation that they belong to.

import type { Engine } from "../src/index.js";
import { Unavailable } from "../src/index.js";
import type { AnswerView } from "./answer_view.js";
import type { Attachment } from "./attachments.js";
import { AttachmentTray, withAttachments } from "./attachments.js";
import type { BundleFacts } from "./bundle_facts.js";
import type { Conversation, SavedTurn } from "./conversations.js";
import { titleOf } from "./conversations.js";
import { element } from "./elements.js";
import type { FarAddress } from "./far_address.js";
import { hostOf } from "./far_address.js";
import { FarForm } from "./far_form.js";
import { withoutOldest } from "./fit_messages.js";
import { History } from "./history.js";
import type { AnswerEnd, Answerer, ChatMessage, EngineInfo, Model, Settings } from "./model.js";
import type { Near, NearNotice } from "./near_notice.js";
import { Network } from "./network.js";
import { isContextFull } from "./problem_words.js";
import { SettingsForm } from "./settings.js";
import { SideControls } from "./side_controls.js";
import type { Sides } from "./sides.js";
import { connectSides } from "./sides.js";
import { View } from "./view.js";

/** A question, and the view that has as much of its answer as there is. */
interface Turn {
  readonly question: string;
  readonly attachments: readonly Attachment[];
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
  readonly #tray = new AttachmentTray();
  readonly #history: History;
  readonly #system = element("system-prompt", HTMLTextAreaElement);
  /** Of the conversation in sight. */
  #id: string = crypto.randomUUID();
  /** The index of the turn that the message being typed replaces, with all that follow; null for a new turn. */
  #edited: number | null = null;
  readonly #view: View;
  readonly #network = new Network();
  readonly #controls = new SideControls(this.#network, () => void this.save());
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
      cancelEdit: () => {
        this.edit(null);
      },
    });
    this.#history = new History({
      open: (conversation) => void this.open(conversation),
      removed: () => void this.clear(),
      announce: (text) => {
        this.#view.announce(text);
      },
    });
    this.#system.addEventListener("change", () => void this.save());
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
    this.#view.present({
      near: this.#near.state,
      info: this.info,
      facts,
      far: far === null ? null : { host: far.host, model: far.sides.farModel },
    });
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
    const reached =
      sides.farModel === null
        ? `${host} does not answer. The page tries it again later.`
        : `${sides.farModel} at ${host}.`;
    return `${reached} ${sides.words(this.#near.state !== "failed")}`;
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
    // Read before the edited turn goes: the lock stays closed if only that turn had closed it.
    const marked = this.#controls.private;
    const { attachments } = this.#tray;
    if (this.#edited !== null) this.truncate(this.#edited);
    this.edit(null);
    this.#tray.set([]);
    const turn = this.add({ question: text, attachments, private: marked, answer: "" });
    this.#view.begin(turn.view);
    this.#answered = this.answer(turn, settings);
  }

  /** Show a turn at the end of the conversation. */
  private add({ question, attachments, private: marked, answer }: SavedTurn): Turn {
    const view = this.#view.ask(
      { text: question, attachments, private: marked, edit: () => void this.editTurn(view) },
      this.#far?.host ?? null,
    );
    if (answer !== "") view.restore(answer);
    // What was typed while there was no far side was not meant for one.
    const turn: Turn = { question, attachments, private: marked || this.#far === null, view };
    this.#turns.push(turn);
    return turn;
  }

  private async editTurn(view: AnswerView): Promise<void> {
    this.#running.abort();
    await this.#answered;
    const index = this.#turns.findIndex((turn) => turn.view === view);
    const turn = this.#turns[index];
    if (turn === undefined) return;
    this.edit(index);
    this.#view.type(turn.question);
    this.#tray.set(turn.attachments);
  }

  private edit(index: number | null): void {
    this.#edited = index;
    this.#view.editing(index === null ? null : (this.#turns[index]?.view ?? null));
    if (index === null) this.#tray.set([]);
  }

  private truncate(index: number): void {
    for (const { view } of this.#turns.splice(index)) this.#view.remove(view);
  }

  private regenerate(): void {
    const turn = this.#turns.at(-1);
    const settings = this.#settings.read();
    if (turn === undefined || settings === null) return;
    this.edit(null);
    turn.view.start();
    this.#view.begin(turn.view);
    this.#answered = this.answer(turn, settings);
  }

  private async clear(): Promise<void> {
    this.#running.abort();
    await this.#answered;
    this.#turns.length = 0;
    this.#id = crypto.randomUUID();
    this.#system.value = "";
    this.edit(null);
    this.carry();
    this.#history.select(null);
    this.#view.clear();
  }

  /** Show a kept conversation, to go on with. */
  private async open({ id, system, turns, locked }: Conversation): Promise<void> {
    await this.clear();
    this.#id = id;
    this.#system.value = system;
    for (const turn of turns) this.add(turn);
    this.carry();
    if (locked) this.#controls.lock();
    this.#history.select(id);
  }

  /** Keep the conversation on this device, once there is one. */
  private async save(): Promise<void> {
    const [first] = this.#turns;
    if (first === undefined) return;
    this.#history.select(this.#id);
    await this.#history.save({
      id: this.#id,
      title: titleOf(first.question),
      updatedMs: Date.now(),
      model: this.info?.model ?? null,
      system: this.#system.value,
      locked: this.#controls.private,
      turns: this.#turns.map(({ question, attachments, private: secret, view }) => ({
        question,
        attachments,
        private: secret,
        answer: view.written,
      })),
    });
  }

  private async answer(turn: Turn, settings: Settings): Promise<void> {
    this.#running = new AbortController();
    const { signal } = this.#running;
    this.#view.forget(null, 0);
    try {
      turn.view.finish(await this.follow(turn, settings, signal), settings, this.info);
    } catch (error) {
      if (signal.aborted) turn.view.stopped();
      else turn.view.fail(error);
    }
    this.carry();
    this.#view.end();
    await this.save();
  }

  /** Show an answer as it comes. If a side says that the conversation is too long, the oldest turns make way. */
  private async follow(turn: Turn, settings: Settings, signal: AbortSignal): Promise<AnswerEnd> {
    const all = this.messages();
    for (let dropped = 0; ; dropped++) {
      const messages = withoutOldest(all, dropped) ?? all;
      if (dropped > 0) this.forget(dropped);
      const pieces = this.answerer.answer(messages, settings, signal);
      try {
        for (;;) {
          const { done, value } = await pieces.next();
          if (done === true) return value;
          if (value.type === "dropped") this.forget(dropped + value.turns);
          else if (value.type === "route") turn.view.follow(value.route);
          else turn.view.append(value.text);
          this.#view.follow();
        }
      } catch (error) {
        if (!isContextFull(error) || turn.view.written !== "" || withoutOldest(all, dropped + 1) === null) throw error;
        turn.view.start();
      }
    }
  }

  /** Say above which turn the model reads no more. Turns without an answer were no part of the conversation anyway. */
  private forget(dropped: number): void {
    const read = this.#turns.filter((turn) => turn === this.#turns.at(-1) || turn.view.text !== "");
    const first = read[dropped];
    if (first !== undefined) this.#view.forget(first.view, dropped);
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
    const system = this.#system.value.trim();
    const carried = this.#turns.some((turn) => turn.private);
    const turns = this.#turns.flatMap((turn): ChatMessage[] => {
      const question: ChatMessage = {
        role: "user",
        content: withAttachments(turn.question, turn.attachments),
        private: turn.private,
      };
      if (turn === last) return [question];
      return turn.view.text === ""
        ? []
        : [question, { role: "assistant", content: turn.view.text, private: turn.private }];
    });
    return system === "" ? turns : [{ role: "system", content: system, private: carried }, ...turns];
  }
}

/** The problem of a server that does not answer, where nobody else does. */
function silent(host: string): Unavailable {
  return new Unavailable(
    `${host} does not answer; start it, and let it allow this page: nearfar serve --cors-origin ${location.origin}`,
    { retryable: true },
  );
}
