// The documents page: the user drops files and asks, and an answer cites the passages that it comes from. ?bundle=
// names the model that answers (./bundle/), ?encoder= the one that embeds (./encoder/), ?far= a server.

import type { Engine } from "../../src/index.js";
import { RequestError } from "../../src/index.js";
import type { IndexApi } from "../../src/retrieval/index.js";
import { connectRetrieval } from "../../src/retrieval/index.js";
import { bundleOfAddress, fetchFacts } from "../bundle_facts.js";
import { DEMO_MODELS } from "../demo_models.js";
import type { FarAddress } from "../far_address.js";
import { hostOf } from "../far_address.js";
import { FarForm } from "../far_form.js";
import type { Model } from "../model.js";
import { openModel } from "../model.js";
import { Network } from "../network.js";
import { keepDocuments } from "../offline.js";
import type { Sides } from "../sides.js";
import { connectSides } from "../sides.js";
import { askDocuments } from "./ask.js";
import { citedParts } from "./citations.js";
import { DocumentsView } from "./documents_view.js";
import type { LibraryStart } from "./library_worker.js";
import { readDocumentFile } from "./read_document.js";
import type { Source } from "./sources.js";

declare global {
  interface Window {
    /** For tests and for the console. */
    nearfar?: { readonly engine: Engine };
  }
}

const INDEX = "documents page";
/** Demo models read little at once. */
const PASSAGE_CHARACTERS = { demo: 240, other: 600 } as const;

class DocumentsPage {
  readonly #bundle = bundleOfAddress();
  readonly #facts = fetchFacts(this.#bundle).catch(() => null);
  readonly #opening = openModel(this.#bundle);
  readonly #network = new Network();
  readonly #locked = new Set<string>();
  #index: IndexApi | null = null;
  #model: Model | null = null;
  #sides: Sides | null = null;
  #running = new AbortController();

  readonly #view = new DocumentsView({
    add: (files) => void this.add(files),
    remove: (id) => void this.remove(id),
    lock: (id, isLocked) => {
      if (isLocked) this.#locked.add(id);
      else this.#locked.delete(id);
    },
    ask: (question) => void this.ask(question),
    open: (source) => void this.open(source),
  });

  async start(): Promise<void> {
    const form: FarForm = new FarForm((address) => this.connect(address, form));
    this.#network.onSent = () => {
      form.traffic(this.#network.sent);
    };
    const connected = form.given ? form.submit() : Promise.resolve();
    this.#opening.catch(() => undefined);
    try {
      this.#index = await connectRetrieval(startLibrary(), INDEX);
    } catch (error) {
      this.#view.fail(error);
      return;
    }
    await connected;
    try {
      this.#model = await this.#opening;
      window.nearfar = { engine: this.#model.engine };
    } catch (error) {
      if (this.#sides === null) {
        this.#view.fail(error);
        return;
      }
    }
    await this.show();
    this.#view.ready(this.#model?.info.model ?? null);
    // After the models, so that it does not delay them. The manifest identifies the model of the index.
    keepDocuments({ addresses: [new URL("manifest.json", encoderAddress()).href] });
  }

  private async connect(address: FarAddress, form: FarForm): Promise<void> {
    const engine = this.#opening.then((model) => model.engine);
    engine.catch(() => undefined);
    this.#sides = await connectSides(engine, this.#facts, address, this.#network, () => null);
    const { farModel } = this.#sides;
    const host = hostOf(address.url);
    form.showState(
      `${farModel === null ? `${host} does not answer yet.` : `${farModel} at ${host}.`} It receives the question and ` +
        "passages that match no private pattern of the policy, and none of a locked document. " +
        this.#sides.words(true),
    );
    this.#view.far(host);
  }

  private async add(files: readonly File[]): Promise<void> {
    const index = this.#index;
    if (index === null) return;
    const most = (await this.isDemo()) ? PASSAGE_CHARACTERS.demo : PASSAGE_CHARACTERS.other;
    const problems: unknown[] = [];
    for (const file of files) {
      try {
        this.#view.state(`Reading ${file.name}`);
        const document = await readDocumentFile(file, most);
        await index.add([document], {
          onProgress: (done, total) => {
            this.#view.state(`Reading ${file.name}: ${done} of ${total} passages`);
          },
        });
      } catch (error) {
        problems.push(error);
      }
    }
    await this.save(problems);
  }

  private async remove(id: string): Promise<void> {
    await this.#index?.delete(id);
    this.#locked.delete(id);
    await this.save([]);
  }

  private async save(problems: readonly unknown[]): Promise<void> {
    let all = problems;
    try {
      await this.#index?.save();
    } catch (error) {
      all = [...problems, error];
    }
    await this.show();
    this.#view.problems(all);
  }

  private async show(): Promise<void> {
    this.#view.documents((await this.#index?.documents()) ?? [], this.#locked);
  }

  private async ask(question: string): Promise<void> {
    this.#running.abort();
    const index = this.#index;
    if (index === null) return;
    this.#running = new AbortController();
    const { signal } = this.#running;
    this.#view.begin(question);
    const near = this.#model === null ? null : { engine: this.#model.engine, answerer: this.#model };
    const style = (await this.isDemo()) ? "plain" : "numbered";
    let text = "";
    let sources: readonly Source[] = [];
    let given: readonly Source[] = [];
    try {
      for await (const event of askDocuments(
        question,
        { index, near, sides: this.#sides, locked: this.#locked, style },
        signal,
      )) {
        if (event.type === "sources") {
          ({ sources } = event);
          if (sources.length === 0) throw new RequestError("No passage was found; add documents first");
          this.#view.sources(sources);
        } else if (event.type === "side") {
          text = "";
          ({ given } = event);
          this.#view.side(event.side, given, sources);
        } else {
          text += event.text;
          this.#view.answer(text);
        }
      }
      this.#view.finish(citedParts(text, given));
    } catch (error) {
      if (!signal.aborted) this.#view.failAnswer(error);
    }
  }

  private async open(source: Source): Promise<void> {
    const text = await this.#index?.textOf(source.document);
    if (text != null) this.#view.read(source, text);
  }

  /** The demo models read a text with a question, and short passages. */
  private async isDemo(): Promise<boolean> {
    const models: readonly (string | null | undefined)[] = [(await this.#facts)?.model];
    const demos: readonly string[] = Object.values(DEMO_MODELS);
    return models.some(
      (model) => model != null && (demos.includes(model) || demos.includes(model.replace("nearfar-", ""))),
    );
  }
}

/** Start the worker that embeds and searches, and return the port of its index. */
function startLibrary(): MessagePort {
  const worker = new Worker("documents_worker.js", { type: "module" });
  const { port1, port2 } = new MessageChannel();
  const start: LibraryStart = { bundle: encoderAddress(), port: port2 };
  worker.postMessage(start, [port2]);
  return port1;
}

/** The folder of the embedding model's bundle. */
function encoderAddress(): string {
  const encoder = new URLSearchParams(location.search).get("encoder") ?? "./encoder/";
  return new URL(encoder.endsWith("/") ? encoder : `${encoder}/`, document.baseURI).href;
}

void new DocumentsPage().start();
