// The controls of who answers: the choice of a side, the lock of a private message, and the switch of the network.

import { element } from "./elements.js";
import type { Network } from "./network.js";
import type { Side } from "./model.js";
import type { Near } from "./near_notice.js";

export class SideControls {
  readonly #lock = element("private", HTMLButtonElement);
  readonly #note = element("privacy", HTMLElement);
  /** Whether the conversation has a private message already. Every later message includes it. */
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

  /** Show the controls of two sides. ``locks``: whether the policy lets this device answer a private message. */
  appear(locks: boolean): void {
    this.#locks = locks;
    this.show();
    document.body.dataset.sides = "";
    for (const id of ["private", "sides"]) element(id, HTMLElement).hidden = false;
  }

  /** Sets whether this device can answer. A device that never will cannot be chosen. */
  near(state: Near["state"]): void {
    this.#near = state;
    this.show();
  }

  /** The side that the user chose; null leaves the choice to the router. */
  get pin(): Side | null {
    const chosen = document.querySelector<HTMLInputElement>("input[name=pin]:checked")?.value;
    return chosen === "near" || chosen === "far" ? chosen : null;
  }

  /** Whether the message being typed must stay on this device. */
  get private(): boolean {
    return this.#lock.getAttribute("aria-pressed") === "true";
  }

  /** Close the lock, as it was in a stored conversation. */
  lock(): void {
    this.#lock.setAttribute("aria-pressed", "true");
    this.show();
  }

  /**
   * Why the message being typed cannot be sent; null if it can. The lock stays closed, so that the message is not sent
   * unlocked.
   */
  get refused(): string | null {
    if (!this.private) return null;
    if (!this.#locks && this.#carried)
      return (
        "This chat has private messages, and the policy sends every message to the server. Start a new chat " +
        "to use the server."
      );
    if (!this.#locks)
      return (
        "A private message would never be answered: the policy sends every message to the server. Unlock it " +
        "to send it to the server."
      );
    if (this.#near !== "failed") return null;
    return (
      "A private message would never be answered: this device has no model, and the server must not see " +
      "the message. Unlock it to send it to the server."
    );
  }

  /** Sets whether the conversation so far has a private message. */
  setCarried(carried: boolean): void {
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
      return (
        "This chat is private from here on: every message includes the private one, so only this device " +
        "answers. A new chat is not private."
      );
    const when = this.#near === "loading" ? " once its model is loaded" : "";
    return (
      `Private: only this device answers this message${when}. It also answers every later message of this ` +
      "chat, because those include this one."
    );
  }
}

/** Enable or disable the choice of a side. If the disabled side was chosen, the policy chooses instead. */
function disable(side: Side, disabled: boolean): void {
  const choice = document.querySelector<HTMLInputElement>(`input[name=pin][value=${side}]`);
  if (choice === null) throw new Error(`the page has no choice of the ${side} side`);
  choice.disabled = disabled;
  if (disabled && choice.checked) document.querySelector<HTMLInputElement>("input[name=pin][value=auto]")?.click();
}
