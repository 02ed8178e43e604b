// The chat page: loads the bundle that ?bundle= names (./bundle/ by default) and chats with it.

import type { Engine } from "../src/index.js";
import type { AnswerView } from "./answer_view.js";
import type { BundleFacts } from "./bundle_facts.js";
import { bundleOfAddress, fetchFacts } from "./bundle_facts.js";
import { LoadView } from "./load_view.js";
import type { Message, Model, Settings } from "./model.js";
import { openModel } from "./model.js";
import { SettingsForm } from "./settings.js";
import { View } from "./view.js";

declare global {
  interface Window {
    /** For tests and for the console. */
    nearfar?: { readonly engine: Engine };
  }
}

/** A question with as much of its answer as there is. */
interface Turn {
  readonly question: string;
  readonly view: AnswerView;
  answer: string;
}

class Chat {
  readonly #settings = new SettingsForm();
  readonly #turns: Turn[] = [];
  readonly #view: View;
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
    this.#view.ready(model.info, facts);
  }

  private send(question: string): void {
    const settings = this.#settings.read();
    if (settings === null) return;
    const turn: Turn = { question, view: this.#view.ask(question, this.model.info), answer: "" };
    this.#turns.push(turn);
    this.#answered = this.answer(turn, settings);
  }

  private regenerate(): void {
    const turn = this.#turns.at(-1);
    const settings = this.#settings.read();
    if (turn === undefined || settings === null) return;
    turn.answer = "";
    turn.view.start();
    this.#view.begin(turn.view);
    this.#answered = this.answer(turn, settings);
  }

  private async clear(): Promise<void> {
    this.#running.abort();
    await this.#answered;
    this.#turns.length = 0;
    this.#view.clear();
  }

  private async answer(turn: Turn, settings: Settings): Promise<void> {
    this.#running = new AbortController();
    const { signal } = this.#running;
    const pieces = this.model.answer(this.messages(), settings, signal);
    try {
      for (;;) {
        const { done, value } = await pieces.next();
        if (done === true) {
          turn.view.finish(value, settings);
          break;
        }
        turn.answer += value;
        turn.view.append(value);
        this.#view.follow();
      }
    } catch (error) {
      if (signal.aborted) turn.view.stopped();
      else turn.view.fail(error);
    }
    this.#view.end();
  }

  /** What was not answered is not part of the conversation, but for the last question. */
  private messages(): readonly Message[] {
    const last = this.#turns.at(-1);
    return this.#turns.flatMap((turn): Message[] => {
      const question: Message = { role: "user", content: turn.question };
      if (turn === last) return [question];
      return turn.answer === "" ? [] : [question, { role: "assistant", content: turn.answer }];
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
    new Chat(model, await facts);
  } catch (error) {
    console.error(error);
    loading.fail(error, bundle);
  }
}

void main();
