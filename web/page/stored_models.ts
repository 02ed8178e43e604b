// The models that this browser stores, and what it keeps of system messages, with their sizes and buttons that delete them.

import type { StoredBundle } from "../src/index.js";
import { StorageError, cache } from "../src/index.js";
import { prefixes } from "../src/prefixes/index.js";
import { element, make } from "./elements.js";
import { formatBytes } from "../src/format_bytes.js";

const HELP = "They load without a network. Delete one to free storage; it is downloaded again when you open it.";
const NONE = "This browser stores no models of this page.";
const KEPT = "System messages";
const IN_USE = "This model is being loaded, here or in another tab. Wait until it is ready, or close that tab.";

export class StoredModels {
  readonly #list = element("stored-list", HTMLUListElement);
  readonly #problem = element("stored-problem", HTMLElement);

  /** Show what is stored now. */
  async show(): Promise<void> {
    const stored = await cache.list().catch(() => []);
    const kept = await prefixes.list().catch(() => []);
    element("stored-help", HTMLElement).textContent = stored.length === 0 ? NONE : HELP;
    const names = stored.map(({ model }) => model);
    const rows = stored.map((bundle) => this.model(bundle, names.filter((name) => name === bundle.model).length > 1));
    if (kept.length > 0) {
      const bytes = kept.reduce((sum, prefix) => sum + prefix.bytes, 0);
      const words = `${formatBytes(bytes)}, computed for ${kept.length} of them, which need not be computed again`;
      rows.push(this.row(KEPT, words, () => prefixes.clear()));
    }
    this.#list.replaceChildren(...rows);
  }

  /** Move the list, for example to the explanation of a failure. */
  moveTo(id: string): void {
    element(id, HTMLElement).append(element("stored", HTMLElement));
  }

  /** ``isTwin``: another one has the same name. */
  private model({ url, model, bytes, complete, lastUsed }: StoredBundle, isTwin: boolean): HTMLElement {
    const state = complete ? `last used ${lastUsed.toLocaleDateString()}` : "not complete";
    const { host, pathname } = new URL(url);
    const from = isTwin ? `, from ${host}${pathname}` : "";
    return this.row(model, `${formatBytes(bytes)}, ${state}${from}`, () => cache.delete(url));
  }

  private row(name: string, words: string, deletes: () => Promise<unknown>): HTMLElement {
    const remove = make("button", "plain", "Delete");
    remove.type = "button";
    remove.setAttribute("aria-label", `Delete ${name}`);
    remove.addEventListener("click", () => {
      if (remove.textContent === "Delete") {
        remove.textContent = "Really delete?";
        remove.setAttribute("aria-label", `Really delete ${name}?`);
      } else void this.remove(deletes);
    });
    return make("li", "", make("span", "name", name, make("br"), make("span", "help", words)), remove);
  }

  private async remove(deletes: () => Promise<unknown>): Promise<void> {
    this.#problem.hidden = true;
    try {
      await deletes();
    } catch (error) {
      this.#problem.textContent = error instanceof StorageError ? IN_USE : String(error);
      this.#problem.hidden = false;
    }
    await this.show();
  }
}
