// Where the far side is: the page's address (?far=, &key=, &far-model=, &dialect=) and the form in the panel flow in, an address to connect to flows out.

import type { Dialect } from "../src/router/index.js";
import { element, factList } from "./elements.js";
import { explain } from "./explain.js";
import type { FarAddress } from "./far_address.js";
import { hostOf, urlOf } from "./far_address.js";
import { formatBytes, formatCount } from "./format.js";
import type { Sent } from "./network.js";

export class FarForm {
  /** By their names in the page's address. */
  readonly #fields = {
    far: element("far-url", HTMLInputElement),
    key: element("far-key", HTMLInputElement),
    "far-model": element("far-model", HTMLInputElement),
    dialect: element("far-dialect", HTMLSelectElement),
  };
  readonly #connect = element("far-connect", HTMLButtonElement);
  readonly #problem = element("far-problem", HTMLElement);
  readonly #details = element("far-details", HTMLDetailsElement);

  /**
   * ``connect`` is called with the address that the page was opened with, and with those that are typed later; it gives the name of the model there, or
   * null where nobody answers yet.
   */
  constructor(private readonly connect: (address: FarAddress) => Promise<string | null>) {
    const given = new URLSearchParams(location.search);
    for (const [name, field] of Object.entries(this.#fields)) field.value = given.get(name) ?? field.value;
    if (given.has("far")) this.keepInAddress();
    element("far-form", HTMLFormElement).addEventListener("submit", (event) => {
      event.preventDefault();
      void this.submit();
    });
  }

  /** Whether the page's address named a far side. */
  get given(): boolean {
    return this.#fields.far.value !== "";
  }

  async submit(): Promise<void> {
    this.#problem.hidden = true;
    this.#connect.disabled = true;
    const address = this.read();
    try {
      const model = await this.connect(address);
      const reached = model === null ? `${hostOf(address.url)} does not answer; it is tried again later.` : `${model} at ${hostOf(address.url)}.`;
      element("far-state", HTMLElement).textContent = `${reached} It is asked only where that pays, and never for what is private.`;
      this.#details.querySelector("summary")?.replaceChildren("Connect another");
      this.#details.open = false;
      this.keepInAddress();
    } catch (error) {
      explain(error, this.#problem);
      this.#problem.hidden = false;
      this.#details.open = true;
      const panel = element("panel", HTMLElement);
      if (!this.#problem.checkVisibility()) panel.showPopover();
    } finally {
      this.#connect.disabled = false;
    }
  }

  /** What has gone to the far side since the page was opened. */
  traffic(sent: readonly Sent[]): void {
    const bytes = sent.reduce((sum, request) => sum + request.bytes, 0);
    const list = factList([
      ["Requests sent", formatCount(sent.length)],
      ["Text sent, as JSON", formatBytes(bytes)],
    ]);
    const traffic = element("far-traffic", HTMLElement);
    traffic.replaceChildren(...list.children);
    traffic.hidden = false;
  }

  private read(): FarAddress {
    const { far, key, "far-model": model, dialect } = this.#fields;
    return { url: urlOf(far.value), key: orNull(key.value), model: orNull(model.value), dialect: dialect.value as Dialect };
  }

  /** So that a page that is loaded anew finds it again; but a key would be read there by whoever looks on, and be bookmarked. */
  private keepInAddress(): void {
    const address = new URLSearchParams(location.search);
    for (const [name, field] of Object.entries(this.#fields)) {
      if (name === "key" || field.value === "") address.delete(name);
      else address.set(name, field.value);
    }
    history.replaceState(null, "", `?${address.toString()}`);
  }
}

function orNull(typed: string): string | null {
  return typed === "" ? null : typed;
}
