// The notice that says why a server answers alone: the model is still loading, or it cannot run on this device.

import { DeviceError } from "../src/index.js";
import { element, fill } from "./elements.js";
import { explain } from "./explain.js";
import { loadState } from "./load_words.js";
import type { LoadProgress } from "./model.js";

/** The state of this page's model. */
export type Near = { readonly state: "loading" | "ready" } | { readonly state: "failed"; readonly error: unknown };

export class NearNotice {
  readonly #notice = element("near-notice", HTMLElement);
  readonly #title = element("near-title", HTMLElement);
  readonly #words = element("near-words", HTMLElement);
  readonly #why = element("near-why", HTMLElement);
  readonly #load = element("near-load", HTMLElement);

  progress(progress: LoadProgress): void {
    const { words, amount, done, total } = loadState(progress);
    element("near-phase", HTMLElement).textContent = words;
    element("near-amount", HTMLElement).textContent = amount;
    fill("near-track", done, total);
  }

  /**
   * ``far`` is the host of the server that answers; null if no server is connected. Without one, the notice is above a
   * conversation that can only be read.
   */
  show(near: Near, far: string | null): void {
    const reading = document.body.dataset.reading !== undefined;
    this.#notice.hidden = near.state === "ready" || (far === null && !reading);
    if (this.#notice.hidden) return;
    this.#notice.dataset.state = near.state;
    this.#load.hidden = near.state !== "loading";
    this.#why.hidden = near.state !== "failed";
    element("leave", HTMLElement).hidden = !reading;
    if (near.state === "failed") {
      this.#title.textContent =
        near.error instanceof DeviceError
          ? "This device cannot run the model"
          : "The model did not load on this device";
      this.#words.textContent = reading
        ? "You can read and export your conversations, but not continue them."
        : `${far ?? ""} answers instead, and your messages are sent there. Private messages are not sent, so they are ` +
          "not answered.";
      explain(near.error, this.#why);
    } else {
      this.#title.textContent = "The model is still loading";
      this.#words.textContent = reading
        ? "Until it has loaded, you can read and export your conversations."
        : `Until it has loaded, ${far ?? ""} answers. Private messages wait for this device.`;
    }
  }
}
