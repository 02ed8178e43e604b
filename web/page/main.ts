// The chat page: loads the bundle that ?bundle= names (./bundle/ by default) and chats with it, and with the server that ?far= names.

import type { Engine } from "../src/index.js";
import type { AnswerView } from "./answer_view.js";
import type { BundleFacts } from "./bundle_facts.js";
import { bundleOfAddress, fetchFacts } from "./bundle_facts.js";
import { LoadView } from "./load_view.js";
import { hostOf } from "./far_address.js";
import { FarForm } from "./far_form.js";
import type { Answerer, ChatMessage, Model, Settings } from "./model.js";
import { openModel } from "./model.js";
import { Network } from "./network.js";
import { SettingsForm } from "./settings.js";
import { SideControls } from "./side_controls.js";
import { connectSides } from "./sides.js";
import { View } from "./view.js";

declare global {
  interface Window {
    /** For tests and for the console. */
    nearfar?: { readonly engine: Engine };
  }
}

/** A question, and the view that has as much of its answer as there is. */
interface Turn {
  readonly question: string;
  /** Whether it is to stay on this device. */
  readonly private: boolean;
  readonly view: AnswerView;
}

class Chat {
  readonly #settings = new SettingsForm();
  readonly #turns: Turn[] = [];
  readonly #view: View;
  readonly #network = new Network();
  readonly #controls = new SideControls(this.#network);
  #answerer: Answerer;
  /** The far side's name; null where there is none. */
  #far: string | null = null;
  #running = new AbortController();
  #answered = Promise.resolve();

  constructor(
    private readonly model: Model,
    facts: BundleFacts | null,
  ) {
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
    this.#answerer = model;
    this.#view.ready(model.info, facts);
  }

  /** Once the page's address or its form names a far side. */
  async connect(): Promise<void> {
    const form = new FarForm(async (address) => {
      const sides = await connectSides(this.model.engine, address, this.#network, () => this.#controls.pin);
      this.#answerer = sides;
      this.#far = hostOf(address.url);
      this.#controls.appear();
      this.#view.bothSides(this.model.info, this.#far);
      this.carry();
      return sides.farModel;
    });
    this.#network.onSent = () => {
      form.traffic(this.#network.sent);
    };
    if (form.given) await form.submit();
  }

  private send(text: string): void {
    const settings = this.#settings.read();
    if (settings === null) return;
    const marked = this.#controls.private;
    const view = this.#view.ask({ text, private: marked }, this.model.info, this.#far);
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
    const pieces = this.#answerer.answer(this.messages(), settings, signal);
    try {
      for (;;) {
        const { done, value } = await pieces.next();
        if (done === true) {
          turn.view.finish(value, settings);
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

async function main(): Promise<void> {
  const bundle = bundleOfAddress();
  const loading = new LoadView();
  // Where the manifest cannot be read, the engine says why.
  const facts = fetchFacts(bundle).catch(() => null);
  void facts.then((known) => {
    if (known !== null) loading.expect(known);
  });
  try {
    const model = await openModel(bundle, {
      onProgress: (progress) => {
        loading.progress(progress);
      },
    });
    window.nearfar = { engine: model.engine };
    await new Chat(model, await facts).connect();
  } catch (error) {
    console.error(error);
    loading.fail(error, bundle);
  }
}

void main();
