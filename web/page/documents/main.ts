// The documents page: the user drops files and asks, and an answer cites the passages that it comes from. ?bundle=
// names the model that answers (./bundle/), ?encoder= the one that embeds (./encoder/), ?far= a server.

import type { Engine } from "../../src/index.js";
import { RequestError } from "../../src/index.js";
import { connectRetrieval } from "../../src/retrieval/index.js";
import { bundleOfAddress, fetchFacts } from "../bundle_facts.js";
import { DEMO_MODELS } from "../demo_models.js";
import type { FarAddress } from "../far_address.js";
import { hostOf } from "../far_address.js";
import { FarForm } from "../far_form.js";
import { KeptNames } from "../kept_names.js";
import type { Model } from "../model.js";
import { openModel } from "../model.js";
import { Network } from "../network.js";
import { keepDocuments } from "../offline.js";
import type { Sides } from "../sides.js";
import { connectSides } from "../sides.js";
import { StoredModels } from "../stored_models.js";
import { askDocuments } from "./ask.js";
import { citedParts } from "./citations.js";
import { DocumentsView } from "./documents_view.js";
import { Library } from "./library.js";
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
  /** The documents that the user keeps on this device. */
  readonly #locked = new KeptNames("nearfar locked documents", () => localStorage);
  /** The files that are being read: those of a page that closed before their end were not added. */
  readonly #pending = new KeptNames("nearfar pending documents", () => sessionStorage);
  /** Tells other tabs that the index was saved. */
  readonly #saved = new BroadcastChannel("nearfar documents");
  #library: Library | null = null;
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
    open: (source) => void this.read(source),
  });

  async start(): Promise<void> {
    await this.open();
    await new StoredModels().show();
  }

  private async open(): Promise<void> {
    const form: FarForm = new FarForm((address) => this.connect(address, form));
    this.#network.onSent = () => {
      form.traffic(this.#network.sent);
    };
    const connected = form.given ? form.submit() : Promise.resolve();
    this.#opening.catch(() => undefined);
    try {
      const worker = new Worker("documents_worker.js", { type: "module" });
      this.#library = await Library.open(() => connectRetrieval(connectLibrary(worker), INDEX));
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
    this.#saved.addEventListener("message", () => void this.reload());
    await this.show();
    this.#view.problems(
      [...this.#pending.names].map(
        (name) => new RequestError(`The page closed before it had read ${name}; add the file again`),
      ),
    );
    for (const name of this.#pending.names) this.#pending.delete(name);
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
    const library = this.#library;
    if (library === null) return;
    const most = (await this.isDemo()) ? PASSAGE_CHARACTERS.demo : PASSAGE_CHARACTERS.other;
    const problems: unknown[] = [];
    this.#pending.add(...files.map(({ name }) => name));
    for (const file of files) {
      try {
        this.#view.state(`Reading ${file.name}`);
        await library.add(await readDocumentFile(file, most), (done, total) => {
          this.#view.state(`Reading ${file.name}: ${done} of ${total} passages`);
        });
        await this.changed();
      } catch (error) {
        problems.push(error);
      }
      this.#pending.delete(file.name);
    }
    await this.show();
    this.#view.problems(problems);
  }

  private async remove(id: string): Promise<void> {
    const problems: unknown[] = [];
    try {
      await this.#library?.delete(id);
      this.#locked.delete(id);
    } catch (error) {
      problems.push(error);
    }
    await this.changed();
    this.#view.problems(problems);
  }

  private async changed(): Promise<void> {
    this.#saved.postMessage(null);
    await this.show();
  }

  /** Another tab has saved the index. */
  private async reload(): Promise<void> {
    await this.#library?.reload();
    await this.show();
  }

  private async show(): Promise<void> {
    this.#view.documents((await this.#library?.index.documents()) ?? [], this.#locked.names);
  }

  private async ask(question: string): Promise<void> {
    this.#running.abort();
    const index = this.#library?.index;
    if (index === undefined) return;
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
        { index, near, sides: this.#sides, locked: this.#locked.names, style },
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

  private async read(source: Source): Promise<void> {
    const text = await this.#library?.index.textOf(source.document);
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

/** A port on which the worker, which embeds and searches, serves the index as it is saved. */
function connectLibrary(worker: Worker): MessagePort {
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
