// Who is to answer: the choice of a side, the lock of a private message, and the switch of the network. Clicks flow in, the choice flows out.

import { element } from "./elements.js";
import type { Network } from "./network.js";
import type { Side } from "./model.js";
import type { Near } from "./near_notice.js";

export class SideControls {
  readonly #lock = element("private", HTMLButtonElement);
  readonly #note = element("privacy", HTMLElement);
  /** Whether the conversation has a private message already, which goes with all that follow. */
  #carried = false;
  #near: Near["state"] = "loading";
  /** Whether the policy lets this device answer. */
  #locks = true;

  /** ``changed`` is called when the user opens or closes the lock. */
  constructor(network: Network, changed: () => void) {
    this.#lock.addEventListener("click", () => {
      this.#lock.setAttribute("aria-pressed", String(!this.private));
      this.show();
      changed();
    });
    const on = element("network", HTMLInputElement);
    on.addEventListener("change", () => {
      network.switch(on.checked);
      document.body.dataset.network = on.checked ? "on" : "off";
    });
  }

  /** There are two sides from now on. ``locks``: whether the policy lets this device answer a private message. */
  appear(locks: boolean): void {
    this.#locks = locks;
    this.show();
    document.body.dataset.sides = "";
    for (const id of ["private", "sides"]) element(id, HTMLElement).hidden = false;
  }

  /** Whether this device can answer; where it never will, it cannot be pinned. */
  near(state: Near["state"]): void {
    this.#near = state;
    this.show();
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

  /** Close the lock, as it was in a stored conversation. */
  lock(): void {
    this.#lock.setAttribute("aria-pressed", "true");
    this.show();
  }

  /** Why the message that is typed cannot be sent; null where it can. The lock stays, lest it goes to the server unlocked. */
  get refused(): string | null {
    if (!this.private) return null;
    if (!this.#locks && this.#carried)
      return "This chat has private messages, and the policy sends every message to the server. Start a new chat to use the server.";
    if (!this.#locks)
      return "A private message would never be answered: the policy sends every message to the server. Unlock it to send it there.";
    if (this.#near !== "failed") return null;
    return "A private message would never be answered: there is no model on this device, and the server must not see it. Unlock it to send it there.";
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
    const failed = this.#near === "failed" || !this.#locks;
    disable("near", failed);
    disable("far", this.private);
    this.#note.hidden = !this.private;
    this.#note.dataset.refused = String(this.refused !== null);
    this.#lock.title = failed
      ? "Private messages cannot be answered here"
      : "Private: this message never leaves this device";
    this.#note.textContent = this.refused ?? this.words();
  }

  private words(): string {
    if (this.#carried)
      return "Private from here on: every message carries the private one along, so this device answers. A new chat is free again.";
    const when = this.#near === "loading" ? " once its model is loaded" : "";
    return `Private: this device answers it${when}, and every later message of this chat, for they carry this one along.`;
  }
}

/** A side that cannot be chosen is not. */
function disable(side: Side, disabled: boolean): void {
  const choice = document.querySelector<HTMLInputElement>(`input[name=pin][value=${side}]`);
  if (choice === null) throw new Error(`the page has no choice of the ${side} side`);
  choice.disabled = disabled;
  if (disabled && choice.checked) document.querySelector<HTMLInputElement>("input[name=pin][value=auto]")?.click();
}
