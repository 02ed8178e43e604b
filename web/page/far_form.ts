// The form that connects a server. The page's address (?far=, &key=, &far-model=, &dialect=) fills it in. It is in the
// panel, or in the explanation if the model did not load and no server answers.

import type { Dialect } from "../src/router/index.js";
import { element, factList } from "./elements.js";
import { explain } from "./explain.js";
import { agreeToFar, agrees } from "./consent.js";
import type { FarAddress } from "./far_address.js";
import { urlOf } from "./far_address.js";
import { policyAddress } from "./policy.js";
import { formatBytes } from "../src/format_bytes.js";
import { formatCount } from "./format.js";
import type { Sent } from "./network.js";

export class FarForm {
  /** The fields by their names in the page's address. */
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

  /**
   * ``connect`` is called for the address in the page's own address and for those typed later. Its errors are shown.
   */
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

  /** Whether the page's address named a server. */
  get given(): boolean {
    return this.#fields.far.value !== "";
  }

  /** Resolves once the last connection has succeeded or failed. */
  get settled(): Promise<void> {
    return this.#settled;
  }

  submit(): Promise<void> {
    this.#settled = this.connectTyped();
    return this.#settled;
  }

  /** Show why no server is connected. */
  fail(error: unknown): void {
    explain(error, this.#problem);
    this.#problem.hidden = false;
    this.reveal();
  }

  moveTo(parentId: "far-details" | "failure-far"): void {
    const parent = element(parentId, HTMLElement);
    // Moving the form would take the focus from its fields.
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

  /** Show which server is connected, and when it answers. */
  showState(words: string): void {
    element("far-state", HTMLElement).textContent = words;
  }

  /** Show what has been sent to the server since the page was opened. */
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

  /** Make a problem visible, except while the page still loads. */
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

  /**
   * Write the fields into the page's address for a reload. The key stays out, because addresses are visible and
   * bookmarked.
   */
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
