// What the documents page shows: the documents, the answer with its citations, the passages, and a document's text.

import { takeFiles } from "../dropped_files.js";
import { element, icon, iconButton, make } from "../elements.js";
import { explain } from "../explain.js";
import { formatCount } from "../format.js";
import type { Side } from "../model.js";
import type { DocumentInfo } from "../../src/retrieval/index.js";
import type { CitedPart } from "./citations.js";
import type { Source } from "./sources.js";

export interface DocumentsActions {
  readonly add: (files: readonly File[]) => void;
  readonly remove: (id: string) => void;
  readonly lock: (id: string, isLocked: boolean) => void;
  readonly ask: (question: string) => void;
  readonly open: (source: Source) => void;
}

export class DocumentsView {
  readonly #answer = element("answer", HTMLElement);
  readonly #sources = element("sources", HTMLOListElement);
  readonly #reader = element("reader", HTMLDialogElement);
  #host: string | null = null;

  constructor(private readonly actions: DocumentsActions) {
    const input = element("files", HTMLInputElement);
    element("choose", HTMLButtonElement).addEventListener("click", () => {
      input.click();
    });
    takeFiles(input, actions.add);
    element("form", HTMLFormElement).addEventListener("submit", (event) => {
      event.preventDefault();
      const question = element("question", HTMLInputElement).value.trim();
      if (question !== "" && document.body.dataset.state === "ready") actions.ask(question);
    });
    element("close-reader", HTMLButtonElement).addEventListener("click", () => {
      this.#reader.close();
    });
  }

  /** ``model`` is null if only a server answers. */
  ready(model: string | null): void {
    document.body.dataset.state = "ready";
    element("model", HTMLElement).textContent = model ?? this.#host ?? "";
    element("choose", HTMLButtonElement).disabled = false;
    element("send", HTMLButtonElement).disabled = false;
  }

  fail(error: unknown): void {
    document.body.dataset.state = "error";
    this.state("The page cannot answer.");
    this.problems([error]);
  }

  far(host: string): void {
    this.#host = host;
    element("library-words", HTMLElement).textContent =
      `They stay on this device. ${host} may answer a question; it then receives the question and passages that are ` +
      "not private.";
  }

  state(words: string): void {
    element("library-state", HTMLElement).textContent = words;
  }

  problems(errors: readonly unknown[]): void {
    const items = errors.map((error) => {
      const item = make("li", "problem explained");
      explain(error, item);
      return item;
    });
    element("library-problems", HTMLUListElement).replaceChildren(...items);
  }

  documents(documents: readonly DocumentInfo[], locked: ReadonlySet<string>): void {
    const passages = documents.reduce((sum, one) => sum + one.passages, 0);
    this.state(
      documents.length === 0 ? "No documents yet." : `${formatCount(passages)} passages, searched on this device.`,
    );
    element("documents", HTMLUListElement).replaceChildren(
      ...documents.map(({ id, title, passages: count }) => {
        const lock = iconButton("lock", `Keep ${title} on this device`, () => {
          const isLocked = lock.getAttribute("aria-pressed") !== "true";
          lock.setAttribute("aria-pressed", String(isLocked));
          this.actions.lock(id, isLocked);
        });
        lock.setAttribute("aria-pressed", String(locked.has(id)));
        const remove = iconButton("remove", `Remove ${title}`, () => {
          this.actions.remove(id);
        });
        return make(
          "li",
          "",
          make("span", "name", title),
          make("span", "quiet number", formatCount(count)),
          lock,
          remove,
        );
      }),
    );
  }

  begin(question: string): void {
    element("result", HTMLElement).hidden = false;
    element("result", HTMLElement).dataset.state = "running";
    element("asked", HTMLElement).textContent = question;
    element("answer-problem", HTMLElement).hidden = true;
    this.#answer.textContent = "";
    element("route", HTMLElement).textContent = "Searching";
    this.#sources.replaceChildren();
  }

  sources(sources: readonly Source[]): void {
    this.#sources.replaceChildren(
      ...sources.map((source) => {
        const { number, title, passage, private: isPrivate } = source;
        const place = [title, ...passage.headings].join(" › ");
        const open = make("button", "plain", "Show in the document");
        open.type = "button";
        open.setAttribute("aria-label", `Show in the document: passage ${number} of ${title}`);
        open.addEventListener("click", () => {
          this.actions.open(source);
        });
        const head = make("p", "place", make("span", "number", String(number)), make("span", "quiet", place));
        if (isPrivate) head.append(make("span", "stays", icon("lock"), "stays here"));
        const item = make("li", "", head, make("p", "passage", passage.text), open);
        item.id = `source-${number}`;
        item.tabIndex = -1;
        return item;
      }),
    );
  }

  side(side: Side, given: readonly Source[], all: readonly Source[]): void {
    this.#answer.textContent = "";
    const kept = all.filter((source) => source.private).length;
    const where = side === "near" ? "Answered on this device" : `Answered by ${this.#host ?? "the server"}`;
    const read = `from ${given.length} of ${all.length} passages`;
    const words = side === "far" && kept > 0 ? `; ${kept} did not leave this device` : "";
    element("route", HTMLElement).textContent = `${where}, ${read}${words}.`;
    element("route", HTMLElement).dataset.side = side;
    const numbers = new Set(given.map(({ number }) => number));
    for (const { number } of all)
      element(`source-${number}`, HTMLLIElement).classList.toggle("unread", !numbers.has(number));
  }

  answer(text: string): void {
    this.#answer.textContent = text;
  }

  /** Show the citations, and light up the passages. */
  finish(parts: readonly CitedPart[]): void {
    element("result", HTMLElement).dataset.state = "done";
    this.#answer.replaceChildren(
      ...parts.flatMap(({ text, numbers, matched }) => {
        const [, words = text, space = ""] = /^(.*?)(\s*)$/s.exec(text) ?? [];
        return [words, ...numbers.map((number) => this.#mark(number, matched)), space];
      }),
    );
    const cited = new Set(parts.flatMap(({ numbers }) => numbers));
    for (const item of this.#sources.children)
      item.classList.toggle("cited", cited.has(Number(item.id.replace("source-", ""))));
  }

  failAnswer(error: unknown): void {
    element("result", HTMLElement).dataset.state = "failed";
    element("route", HTMLElement).textContent = "";
    const problem = element("answer-problem", HTMLElement);
    explain(error, problem);
    problem.hidden = false;
  }

  read({ title, passage: { start, end } }: Source, text: string): void {
    element("reader-title", HTMLElement).textContent = title;
    const mark = make("mark", "", text.slice(start, end));
    element("reader-text", HTMLElement).replaceChildren(text.slice(0, start), mark, text.slice(end));
    this.#reader.showModal();
    mark.scrollIntoView({ block: "center" });
  }

  #mark(number: number, matched: boolean): HTMLButtonElement {
    const button = make("button", "citation", String(number));
    button.type = "button";
    const words = matched ? `Passage ${number} has the words of this sentence` : `The model cites passage ${number}`;
    button.setAttribute("aria-label", words);
    button.title = words;
    const item = element(`source-${number}`, HTMLLIElement);
    const light = (isLit: boolean) => () => item.classList.toggle("lit", isLit);
    for (const type of ["pointerenter", "focus"]) button.addEventListener(type, light(true));
    for (const type of ["pointerleave", "blur"]) button.addEventListener(type, light(false));
    button.addEventListener("click", () => {
      item.scrollIntoView({ block: "nearest" });
      item.classList.add("lit");
    });
    return button;
  }
}
