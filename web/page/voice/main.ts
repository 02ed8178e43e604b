// The voice page: one loop in which the model that ?transcriber= names (./transcriber/) writes down what the user says,
// and the one that ?bundle= names (./bundle/), or the server of ?far=, answers.

import type { Engine } from "../../src/index.js";
import { openMicrophone } from "../../src/audio/index.js";
import type { Speaker, Voice } from "../../src/voice/index.js";
import { browserSpeaker, createVoice, farSpeaker } from "../../src/voice/index.js";
import type { WorkerEngine } from "../../src/worker/client.js";
import { bundleOfAddress, fetchFacts } from "../bundle_facts.js";
import { element } from "../elements.js";
import type { FarAddress } from "../far_address.js";
import { hostOf, urlOf } from "../far_address.js";
import { FarForm } from "../far_form.js";
import { loadState } from "../load_words.js";
import type { Model } from "../model.js";
import { openModel } from "../model.js";
import { Network } from "../network.js";
import { keepPage } from "../offline.js";
import type { Sides } from "../sides.js";
import { connectSides } from "../sides.js";
import { StoredModels } from "../stored_models.js";
import { folderOfAddress, openWorkerEngine } from "../worker_engine.js";
import { chatOf } from "./answerer_chat.js";
import { VoiceView } from "./voice_view.js";

declare global {
  interface Window {
    /** For tests and for the console. */
    nearfar?: { readonly engine: Engine };
    nearfarTranscriber?: WorkerEngine;
  }
}

class VoicePage {
  readonly #bundle = bundleOfAddress();
  readonly #facts = fetchFacts(this.#bundle).catch(() => null);
  readonly #network = new Network();
  readonly #view = new VoiceView({
    toggle: () => void this.#toggle(),
    interrupt: () => {
      this.#voice?.interrupt();
    },
  });
  readonly #opening = openModel(this.#bundle, {
    onProgress: (progress) => {
      if (progress.phase !== "ready") this.#view.progress(loadState(progress));
    },
  });
  #transcriber: WorkerEngine | null = null;
  #model: Model | null = null;
  #sides: Sides | null = null;
  #voice: Voice | null = null;

  async start(): Promise<void> {
    const form: FarForm = new FarForm((address) => this.#connect(address, form));
    this.#network.onSent = () => {
      form.traffic(this.#network.sent);
    };
    this.#opening.catch(() => undefined);
    const connected = form.given ? form.submit() : Promise.resolve();
    try {
      // One after the other, because both compile kernels.
      this.#model = await this.#opening.catch(async (error: unknown) => {
        await connected;
        if (this.#sides === null) throw error;
        return null;
      });
      this.#transcriber = await openWorkerEngine(folderOfAddress("transcriber") ?? "./transcriber/", (progress) => {
        if (progress.phase !== "ready") this.#view.progress(loadState(progress));
      });
      await connected;
      if (this.#model !== null) window.nearfar = { engine: this.#model.engine };
      window.nearfarTranscriber = this.#transcriber;
      const answers = this.#model?.info.model ?? this.#sides?.farModel ?? "";
      this.#view.ready(`${answers}, ${this.#transcriber.info.model}`);
    } catch (error) {
      this.#view.fail(error);
    }
    await new StoredModels().show();
  }

  /** What was said before a server was connected is not sent there: the conversation begins anew. */
  async #connect(address: FarAddress, form: FarForm): Promise<void> {
    const engine = this.#opening.then((model) => model.engine);
    engine.catch(() => undefined);
    const sides = await connectSides(engine, this.#facts, address, this.#network, () => null);
    this.#voice?.stop();
    this.#voice = null;
    this.#view.clear();
    this.#sides = sides;
    const host = hostOf(address.url);
    form.showState(`${sides.farModel ?? "A model"} at ${host}. ${sides.words(true)}`);
    this.#view.far(host);
  }

  async #toggle(): Promise<void> {
    if (this.#voice !== null && this.#voice.state !== "off") {
      this.#voice.stop();
      return;
    }
    this.#view.problem(null);
    let microphone: MediaStream | null = null;
    try {
      microphone = await openMicrophone();
      this.#voice ??= this.#open();
      await this.#voice.run(microphone);
    } catch (error) {
      this.#view.problem(error);
      this.#view.state("off");
    } finally {
      for (const track of microphone?.getTracks() ?? []) track.stop();
    }
  }

  #open(): Voice {
    const transcriber = this.#transcriber;
    if (transcriber === null) throw new Error("the button is disabled until the models are loaded");
    return createVoice({
      transcriber,
      chat: chatOf(() => {
        const answerer = this.#sides ?? this.#model;
        if (answerer === null) throw new Error("the button is disabled until a side answers");
        return { answerer, private: this.#sides === null };
      }),
      speaker: { prepare: (text, options) => chosenSpeaker().prepare(text, options) },
      onEvent: (event) => {
        if (event.type === "state") this.#view.state(event.state);
        else if (event.type === "partial") this.#view.said(event.text, false);
        else if (event.type === "heard") this.#view.said(event.text, true);
        else if (event.type === "answer") this.#view.answer(event.text, event.route);
        else if (event.type === "turn") this.#view.turn(event.interrupted, event.timings);
        else if (event.type === "error") this.#view.problem(event.error);
      },
    });
  }
}

/** The speaker of the settings, as they are now. */
function chosenSpeaker(): Speaker {
  if (element("speaker", HTMLSelectElement).value === "browser") return browserSpeaker();
  const typed = (id: string): string => element(id, HTMLInputElement).value.trim();
  return farSpeaker(urlOf(typed("speech-url")), { model: typed("speech-model"), voice: typed("speech-voice") });
}

keepPage();

void new VoicePage().start();
