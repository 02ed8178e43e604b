// Where the far side is: the page's address (?far=, &key=, &far-model=, &dialect=) and the form flow in, an address to connect to flows out. The form stands
// in the panel, or in the explanation where the model did not load and nobody answers.

import type { Dialect } from "../src/router/index.js";
import { element, factList } from "./elements.js";
import { explain } from "./explain.js";
import { agreeToFar, agrees } from "./consent.js";
import type { FarAddress } from "./far_address.js";
import { urlOf } from "./far_address.js";
import { policyAddress } from "./policy.js";
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
  readonly #form = element("far-form", HTMLFormElement);
  #settled = Promise.resolve();

  /** ``connect`` is called with the address that the page was opened with, and with those that are typed later; what it throws is shown. */
  constructor(private readonly connect: (address: FarAddress) => Promise<void>) {
    const given = new URLSearchParams(location.search);
    for (const [name, field] of Object.entries(this.#fields)) field.value = given.get(name) ?? field.value;
    if (given.has("far")) this.keepInAddress();
    this.#form.addEventListener("submit", (event) => {
      event.preventDefault();
      agreeToFar(this.read().url);
      void this.submit();
    });
  }

  /** Whether the page's address named a far side. */
  get given(): boolean {
    return this.#fields.far.value !== "";
  }

  /** Fulfilled once it is known how the last connection went. */
  get settled(): Promise<void> {
    return this.#settled;
  }

  submit(): Promise<void> {
    this.#settled = this.connectTyped();
    return this.#settled;
  }

  /** Why nobody is connected. */
  fail(error: unknown): void {
    explain(error, this.#problem);
    this.#problem.hidden = false;
    this.reveal();
  }

  moveTo(place: "far-details" | "failure-far"): void {
    const parent = element(place, HTMLElement);
    // Who types in it would lose the focus.
    if (this.#form.parentElement !== parent) parent.append(this.#form);
    this.reveal();
  }

  private async connectTyped(): Promise<void> {
    this.#problem.hidden = true;
    this.#connect.disabled = true;
    const address = this.read();
    try {
      // A link may have named both; nothing is fetched or sent before the user agrees.
      if (!(await agrees({ far: address.url, policy: policyAddress() }))) return;
      await this.connect(address);
      this.#details.querySelector("summary")?.replaceChildren("Connect another");
      this.#details.open = false;
      this.keepInAddress();
    } catch (error) {
      this.fail(error);
    } finally {
      this.#connect.disabled = false;
    }
  }

  /** Who is connected. */
  tell(words: string): void {
    element("far-state", HTMLElement).textContent = words;
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

  /** A problem is shown wherever the form stands, but not over a page that still loads. */
  private reveal(): void {
    if (this.#problem.hidden || document.body.dataset.state === "loading") return;
    this.#details.open = true;
    const panel = element("panel", HTMLElement);
    if (!this.#problem.checkVisibility()) panel.showPopover();
  }

  private read(): FarAddress {
    const { far, key, "far-model": model, dialect } = this.#fields;
    return {
      url: urlOf(far.value),
      key: orNull(key.value),
      model: orNull(model.value),
      dialect: dialect.value as Dialect,
    };
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
