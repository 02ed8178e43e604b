// The chat: the sides that can answer its turns, which turns are private, and the stored conversation.

import type { Engine } from "../src/index.js";
import { Unavailable } from "../src/index.js";
import type { PictureCounts } from "../src/images/feature_cache.js";
import type { AnswerView, PicturesRead, SoundsRead } from "./answer_view.js";
import { AttachmentTray } from "./attachments.js";
import type { BundleFacts } from "./bundle_facts.js";
import type { Conversation, SavedTurn } from "./conversations.js";
import { titleOf } from "./conversations.js";
import { Dictation } from "./dictation.js";
import { KeptDraft, readDraft } from "./draft.js";
import { element } from "./elements.js";
import type { FarAddress } from "./far_address.js";
import { hostOf } from "./far_address.js";
import { FarForm } from "./far_form.js";
import { ChatFinder } from "./finder.js";
import { withoutOldest } from "./fit_messages.js";
import { History } from "./history.js";
import type { Kept } from "./kept_answer.js";
import { forget, keptAnew, keptBefore } from "./kept_answer.js";
import type { AnswerEnd, EngineInfo, KeepingAnswerer, Model, Settings } from "./model.js";
import type { Near, NearNotice } from "./near_notice.js";
import { Network } from "./network.js";
import { isContextFull } from "./problem_words.js";
import type { Content } from "./saved_conversation.js";
import { SavedConversation } from "./saved_conversation.js";
import { SettingsForm } from "./settings.js";
import { SideControls } from "./side_controls.js";
import type { ChatTranscriber } from "./transcriber.js";
import type { Sides } from "./sides.js";
import { connectSides } from "./sides.js";
import type { Turn } from "./turns.js";
import { Turns } from "./turns.js";
import { View } from "./view.js";

interface Far {
  readonly host: string;
  readonly sides: Sides;
}

export class Chat {
  readonly #settings = new SettingsForm();
  readonly #turns = new Turns();
  readonly #tray = new AttachmentTray(() => {
    this.#draft.changed();
  });
  readonly #history: History;
  readonly #system = element("system-prompt", HTMLTextAreaElement);
  readonly #saved = new SavedConversation({
    content: () => this.content(),
    store: (conversation, ended) => this.#history.save(conversation, ended),
    copied: (id) => {
      this.#history.select(id);
      this.#view.elsewhere("copied");
      this.#draft.changed();
    },
  });
  readonly #draft = new KeptDraft(() => ({
    id: this.#saved.id,
    text: this.#view.typed,
    attachments: this.#tray.attachments,
    system: this.#system.value,
    locked: this.#controls.private,
  }));
  /** Resolves when what the last page of this tab showed is shown again. */
  readonly #restored: Promise<void>;
  /** The turn that is being answered. */
  #answering: Turn | null = null;
  /** The index of the turn that the message being typed replaces, with all later turns; null for a new turn. */
  #edited: number | null = null;
  readonly #view: View;
  readonly #network = new Network();
  readonly #controls = new SideControls(this.#network, () => {
    void this.#saved.now();
    this.#draft.changed();
  });
  readonly #form = new FarForm((address) => this.join(address));
  readonly #engine: Promise<Engine>;
  readonly #finder = ChatFinder.ofAddress();
  #near: Near = { state: "loading" };
  #model: Model | null = null;
  /** Null if no server is connected. */
  #far: Far | null = null;
  #running = new AbortController();
  /** Whether the page shows what the last page of this tab showed. */
  #isRestored = false;
  #answered = Promise.resolve();

  /** ``facts`` resolves to null if the bundle's manifest cannot be read. */
  constructor(
    opening: Promise<Model>,
    private readonly facts: Promise<BundleFacts | null>,
    private readonly notice: NearNotice,
    private readonly transcriber: ChatTranscriber | null,
  ) {
    this.#engine = opening.then(({ engine }) => engine);
    // The caller, who opened the model, handles its failure.
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
        this.again((view) => {
          view.start();
        });
      },
      resume: () => {
        this.again((view) => {
          view.resume();
        });
      },
      cancelEdit: () => {
        this.edit(null);
      },
      typed: () => {
        this.#draft.changed();
      },
      showElsewhere: () => void this.reopen(),
      leave: () => void this.clear(),
    });
    this.#history = new History({
      open: (conversation) => void this.open(conversation),
      removed: () => void this.clear(),
      announce: (text) => {
        this.#view.announce(text);
      },
      changedElsewhere: (id) => void this.compare(id),
    });
    new Dictation(
      transcriber,
      (text) => {
        this.#view.type([this.#view.typed.trimEnd(), text].filter((part) => part !== "").join(" "));
      },
      (error) => {
        this.#tray.report(error);
      },
    );
    this.#system.addEventListener("change", () => void this.#saved.now());
    this.#system.addEventListener("input", () => {
      this.#draft.changed();
    });
    // The last events of a page that a phone closes.
    for (const event of ["visibilitychange", "pagehide"])
      window.addEventListener(event, () => {
        this.#saved.flush();
        this.#draft.keep();
      });
    this.#restored = this.restore();
    this.#network.onSent = () => {
      this.#form.traffic(this.#network.sent);
    };
  }

  /** Connect the server that the page's address names, if it names one. */
  async connect(): Promise<void> {
    if (this.#form.given) await this.#form.submit();
  }

  async nearReady(model: Model): Promise<void> {
    this.#near = { state: "ready" };
    this.#model = model;
    await this.arrange();
    this.#view.announce(`${model.info.model} is ready`);
  }

  /** Returns whether a server answers. If not, the explanation of the failure shows the form to connect one. */
  async nearFailed(error: unknown): Promise<boolean> {
    this.#near = { state: "failed", error };
    await this.#form.settled;
    await this.arrange();
    if (this.answerable) return true;
    // While near might still have answered, a silent server was not yet a failure.
    if (this.#far !== null) this.#form.fail(silent(this.#far.host));
    this.#form.moveTo("failure-far");
    return false;
  }

  /** Throws what connectSides throws, and Unavailable if neither side could answer. */
  private async join(address: FarAddress): Promise<void> {
    const host = hostOf(address.url);
    const sides = await connectSides(
      this.#engine,
      this.facts,
      address,
      this.#network,
      () => this.#controls.pin,
      this.transcriber,
      this.#finder,
    );
    if (sides.farModel === null && this.#near.state === "failed") {
      throw silent(host);
    }
    this.#far = { host, sides };
    await this.arrange();
  }

  /** Whether any side can answer. */
  private get answerable(): boolean {
    return this.#model !== null || (this.#far?.sides.farModel ?? null) !== null;
  }

  /** Show the sides that can answer now. */
  private async arrange(): Promise<void> {
    await this.#restored;
    const facts = await this.facts;
    if (!this.answerable) {
      this.notice.show(this.#near, null);
      return;
    }
    const far = this.#far;
    document.body.dataset.near = this.#near.state;
    this.#tray.reads = this.info ?? { images: false, video: false, sound: this.transcriber !== null };
    this.#view.present({
      near: this.#near.state,
      info: this.info,
      facts,
      far: far === null ? null : { host: far.host, model: far.sides.farModel },
    });
    this.#form.moveTo("far-details");
    this.#controls.near(this.#near.state);
    this.notice.show(this.#near, far?.host ?? null);
    void this.goOn();
    if (far === null) return;
    this.#controls.appear(far.sides.locks);
    this.#form.showState(this.farWords(far));
    this.showCarried();
  }

  /** Names the server, and says when it answers. */
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
    // Read before the edited turn is removed, so that the lock stays closed if only that turn had closed it.
    const isPrivate = this.#controls.private;
    const { attachments } = this.#tray;
    if (this.#edited !== null) this.truncate(this.#edited);
    this.edit(null);
    this.#tray.set([]);
    const turn = this.add({ question: text, attachments, private: isPrivate, answer: "" });
    this.#view.begin(turn.view);
    this.#answered = this.answer(turn, settings);
  }

  /** Show a turn at the end of the conversation. */
  private add({ question, attachments, private: isPrivate, answer, unfinished }: SavedTurn, isStored = false): Turn {
    const view = this.#view.addTurn(
      { text: question, attachments, private: isPrivate, edit: () => void this.editTurn(view) },
      this.#far?.host ?? null,
    );
    if (isStored) view.restore(answer, unfinished === true);
    // A message that was typed without a server connected was not meant for a server. A stored one knows this already.
    const turn: Turn = { question, attachments, private: isPrivate || (!isStored && this.#far === null), view };
    this.#turns.add(turn);
    return turn;
  }

  private async editTurn(view: AnswerView): Promise<void> {
    this.#running.abort();
    await this.#answered;
    const index = this.#turns.indexOf(view);
    const turn = this.#turns.at(index);
    if (turn === undefined) return;
    this.edit(index);
    this.#view.type(turn.question);
    this.#tray.set(turn.attachments);
  }

  private edit(index: number | null): void {
    this.#edited = index;
    this.#view.editing(index === null ? null : (this.#turns.at(index)?.view ?? null));
    if (index === null) this.#tray.set([]);
  }

  private truncate(index: number): void {
    for (const { view } of this.#turns.removeFrom(index)) this.#view.remove(view);
  }

  /**
   * Answer the last question, after ``prepare`` has emptied its answer or left its text to be continued. ``kept``: what an
   * earlier page has begun.
   */
  private again(prepare: (view: AnswerView) => void, kept: Kept | null = null): void {
    const turn = this.#turns.last;
    const settings = this.#settings.read();
    if (turn === undefined || settings === null) return;
    this.edit(null);
    prepare(turn.view);
    this.#view.begin(turn.view);
    this.#answered = this.answer(turn, settings, kept);
  }

  /** Go on with the answer in whose middle the last page of this tab was loaded again. */
  private async goOn(): Promise<void> {
    const turn = this.#turns.last;
    if (!this.#isRestored || !this.answerable || turn === undefined || !this.isInterrupted(turn)) return;
    const kept = await keptBefore(this.answerer.journals, this.#saved.id, this.#far === null ? "generate" : "chat");
    // The user may have begun something else meanwhile.
    if (kept === null || !this.isInterrupted(turn)) return;
    this.#isRestored = false;
    this.again((view) => {
      view.start();
      view.append(kept.begun);
    }, kept);
  }

  private isInterrupted(turn: Turn): boolean {
    return this.#answering === null && turn === this.#turns.last && turn.view.isInterrupted;
  }

  private async clear(): Promise<void> {
    this.#running.abort();
    await this.#answered;
    this.#turns.removeFrom(0);
    this.#saved.switchTo();
    this.#system.value = "";
    this.edit(null);
    this.showCarried();
    this.#history.select(null);
    this.#view.clear(this.answerable);
    this.notice.show(this.#near, this.#far?.host ?? null);
    this.#draft.changed();
  }

  /** Show a stored conversation, which the user can continue once a side can answer. */
  private async open(stored: Conversation): Promise<void> {
    await this.clear();
    this.#saved.switchTo(stored);
    this.#system.value = stored.system;
    for (const turn of stored.turns) this.add(turn, true);
    this.showCarried();
    if (stored.locked) this.#controls.lock();
    this.#history.select(stored.id);
    if (!this.answerable) this.read();
    this.#draft.changed();
  }

  /** Show a conversation that nothing can continue now. */
  private read(): void {
    document.body.dataset.reading = "";
    this.notice.show(this.#near, this.#far?.host ?? null);
  }

  /** Show the open conversation as another tab has stored it. */
  private async reopen(): Promise<void> {
    const stored = await this.#history.find(this.#saved.id);
    if (stored === undefined) await this.clear();
    else await this.open(stored);
  }

  /** Say so if another tab has changed the open conversation. */
  private async compare(id: string): Promise<void> {
    if (id !== this.#saved.id || this.#turns.length === 0) return;
    const stored = await this.#history.find(id);
    if (id !== this.#saved.id || stored?.revision === this.#saved.revision) return;
    this.#view.elsewhere(stored === undefined ? "deleted" : "changed");
  }

  /** Show what the last page of this tab showed: its conversation, and what was typed. */
  private async restore(): Promise<void> {
    const draft = readDraft();
    if (draft === null) return;
    const stored = await this.#history.find(draft.id).catch(() => undefined);
    if (stored !== undefined) await this.open(stored);
    this.#isRestored = stored !== undefined;
    this.#system.value = draft.system;
    this.#view.type(draft.text);
    this.#tray.set(draft.attachments);
    if (draft.locked) this.#controls.lock();
  }

  /** What is stored of the conversation on this device; null if it is empty. */
  private content(): Content | null {
    const first = this.#turns.at(0);
    if (first === undefined) return null;
    return {
      title: titleOf(first.question),
      model: this.info?.model ?? null,
      system: this.#system.value,
      locked: this.#controls.private,
      turns: this.#turns.saved(this.#answering),
    };
  }

  private async answer(turn: Turn, settings: Settings, resumed: Kept | null = null): Promise<void> {
    this.#running = new AbortController();
    const { signal } = this.#running;
    this.#answering = turn;
    this.#history.select(this.#saved.id);
    void this.#saved.now();
    this.#view.forget(null, 0);
    const before = this.#model?.engine.counts.pictures ?? null;
    const written = this.transcriber?.written.length ?? 0;
    const { journals } = this.answerer;
    const kept = resumed ?? (await keptAnew(journals, this.#saved.id));
    let isOver = true;
    try {
      const end = await this.follow(turn, settings, signal, kept);
      turn.view.finish(end, settings, this.info, this.picturesSince(before), this.soundsSince(written));
    } catch (error) {
      isOver = signal.aborted;
      if (signal.aborted) turn.view.stopped();
      else turn.view.fail(error);
    }
    this.#answering = null;
    this.showCarried();
    this.#view.end();
    await this.#saved.now();
    if (isOver && kept !== null) await forget(journals, kept);
  }

  /** Show an answer as it arrives. If a side reports that the conversation is too long, drop the oldest turns. */
  private async follow(turn: Turn, settings: Settings, signal: AbortSignal, kept: Kept | null): Promise<AnswerEnd> {
    const all = this.#turns.messages(this.#system.value.trim());
    const begun = turn.view.written;
    for (let dropped = 0; ; dropped++) {
      const messages = withoutOldest(all, dropped) ?? all;
      if (dropped > 0) this.forget(dropped);
      const pieces = this.answerer.answer(messages, settings, signal, kept);
      try {
        for (;;) {
          const { done, value } = await pieces.next();
          if (done === true) return value;
          if (value.type === "dropped") this.forget(dropped + value.turns);
          else if (value.type === "route") turn.view.follow(value.route);
          else turn.view.append(value.text);
          this.#saved.soon();
          this.#view.follow();
        }
      } catch (error) {
        if (!isContextFull(error) || turn.view.written !== begun || withoutOldest(all, dropped + 1) === null)
          throw error;
        turn.view.resume();
      }
    }
  }

  /** Show the first turn that the model still reads. */
  private forget(dropped: number): void {
    const first = this.#turns.read(dropped);
    if (first !== undefined) this.#view.forget(first.view, dropped);
  }

  private picturesSince(before: PictureCounts | null): PicturesRead {
    const now = this.#model?.engine.counts.pictures ?? null;
    const read = (now?.queries ?? 0) - (before?.queries ?? 0);
    return { ...this.#turns.media, read, computed: read - (now?.hits ?? 0) + (before?.hits ?? 0) };
  }

  private soundsSince(before: number): SoundsRead {
    const { written = [] } = this.transcriber ?? {};
    const transcriber = written.at(-1)?.model ?? null;
    return { sounds: this.#turns.media.sounds, written: written.slice(before), transcriber };
  }

  private get answerer(): KeepingAnswerer {
    const answerer = this.#far?.sides ?? this.#model;
    if (answerer === null) throw new Error("a message was sent before any side could answer");
    return answerer;
  }

  private showCarried(): void {
    if (this.#far !== null) this.#controls.setCarried(this.#turns.carriesPrivate);
  }
}

/** The error if the server does not answer and this device has no model. */
function silent(host: string): Unavailable {
  return new Unavailable(
    `${host} does not answer; start it so that it accepts requests of this page: nearfar serve ` +
      `--cors-origin ${location.origin}`,
    { retryable: true },
  );
}
