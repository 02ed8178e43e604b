// The models that this browser stores, with their sizes, and a button that deletes one.

import type { StoredBundle } from "../src/index.js";
import { StorageError, cache } from "../src/index.js";
import { element, make } from "./elements.js";
import { formatBytes } from "../src/format_bytes.js";

const HELP = "They load without a network. Delete one to free storage; it is downloaded again when you open it.";
const NONE = "This browser stores no models of this page.";
const IN_USE = "This model is being loaded, here or in another tab. Wait until it is ready, or close that tab.";

export class StoredModels {
  readonly #list = element("stored-list", HTMLUListElement);
  readonly #problem = element("stored-problem", HTMLElement);

  /** Show the models that are stored now. */
  async show(): Promise<void> {
    const stored = await cache.list().catch(() => []);
    element("stored-help", HTMLElement).textContent = stored.length === 0 ? NONE : HELP;
    const names = stored.map(({ model }) => model);
    this.#list.replaceChildren(
      ...stored.map((bundle) => this.item(bundle, names.filter((name) => name === bundle.model).length > 1)),
    );
  }

  /** Move the list, for example to the explanation of a failure. */
  moveTo(id: string): void {
    element(id, HTMLElement).append(element("stored", HTMLElement));
  }

  /** ``isTwin``: another one has the same name. */
  private item({ url, model, bytes, complete, lastUsed }: StoredBundle, isTwin: boolean): HTMLElement {
    const remove = make("button", "plain", "Delete");
    remove.type = "button";
    remove.setAttribute("aria-label", `Delete ${model}`);
    remove.addEventListener("click", () => {
      if (remove.textContent === "Delete") {
        remove.textContent = "Really delete?";
        remove.setAttribute("aria-label", `Really delete ${model}?`);
      } else void this.remove(url);
    });
    const state = complete ? `last used ${lastUsed.toLocaleDateString()}` : "not complete";
    const { host, pathname } = new URL(url);
    const from = isTwin ? `, from ${host}${pathname}` : "";
    const words = make("span", "help", `${formatBytes(bytes)}, ${state}${from}`);
    return make("li", "", make("span", "name", model, make("br"), words), remove);
  }

  private async remove(url: string): Promise<void> {
    this.#problem.hidden = true;
    try {
      await cache.delete(url);
    } catch (error) {
      this.#problem.textContent = error instanceof StorageError ? IN_USE : String(error);
      this.#problem.hidden = false;
    }
    await this.show();
  }
}
