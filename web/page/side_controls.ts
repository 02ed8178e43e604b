// Who is to answer: the choice of a side, the lock of a private message, and the switch of the network. Clicks flow in, the choice flows out.

import { element } from "./elements.js";
import type { Network } from "./network.js";
import type { Side } from "./model.js";

export class SideControls {
  readonly #lock = element("private", HTMLButtonElement);
  readonly #note = element("privacy", HTMLElement);
  /** Whether the conversation has a private message already, which goes with all that follow. */
  #carried = false;

  constructor(network: Network) {
    this.#lock.addEventListener("click", () => {
      this.#lock.setAttribute("aria-pressed", String(!this.private));
      this.show();
    });
    const on = element("network", HTMLInputElement);
    on.addEventListener("change", () => {
      network.switch(on.checked);
      document.body.dataset.network = on.checked ? "on" : "off";
    });
  }

  /** There are two sides from now on. */
  appear(): void {
    document.body.dataset.sides = "";
    for (const id of ["private", "sides"]) element(id, HTMLElement).hidden = false;
  }

  /** Null leaves it to the router. */
  get pin(): Side | null {
    const chosen = document.querySelector<HTMLInputElement>("input[name=pin]:checked")?.value;
    return chosen === "near" || chosen === "far" ? chosen : null;
  }

  /** Whether the message that is typed is to stay here. */
  get private(): boolean {
    return this.#lock.getAttribute("aria-pressed") === "true";
  }

  /** Whether a conversation so far has a private message. */
  carry(carried: boolean): void {
    if (carried === this.#carried) return;
    this.#carried = carried;
    this.#lock.setAttribute("aria-pressed", String(carried));
    this.#lock.disabled = carried;
    this.show();
  }

  private show(): void {
    const far = element("pin", HTMLFieldSetElement).querySelector<HTMLInputElement>("input[value=far]");
    if (far === null) throw new Error("the page has no choice of the far side");
    far.disabled = this.private;
    if (far.disabled && far.checked) document.querySelector<HTMLInputElement>("input[name=pin][value=auto]")?.click();
    this.#note.hidden = !this.private;
    this.#note.textContent = this.#carried
      ? "Private from here on: every message carries the private one along, so this device answers. A new chat is free again."
      : "Private: this device answers it, and every later message of this chat, for they carry this one along.";
  }
}
