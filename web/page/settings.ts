// The form with the settings of an answer. The browser stores them for the next visit.

import { element } from "./elements.js";
import type { Settings } from "./model.js";

const KEY = "nearfar settings";

export class SettingsForm {
  readonly #temperature = element("temperature", HTMLInputElement);
  readonly #maxTokens = element("max-tokens", HTMLInputElement);
  readonly #seed = element("seed", HTMLInputElement);

  constructor() {
    for (const field of this.fields()) {
      field.value = storedValues()[field.id] ?? field.value;
      field.addEventListener("input", () => {
        this.show();
        store(Object.fromEntries(this.fields().map(({ id, value }) => [id, value])));
      });
    }
    element("settings", HTMLFormElement).addEventListener("submit", (event) => {
      event.preventDefault();
    });
    this.show();
  }

  /** The checked settings. If a field is out of its range, focuses the field and returns null. */
  read(): Settings | null {
    const wrong = this.fields().find((field) => !field.checkValidity());
    if (wrong !== undefined) {
      const panel = element("panel", HTMLElement);
      if (!wrong.checkVisibility()) panel.showPopover();
      wrong.reportValidity();
      return null;
    }
    return {
      temperature: this.#temperature.valueAsNumber,
      maxTokens: numberOf(this.#maxTokens),
      seed: numberOf(this.#seed),
    };
  }

  private fields(): readonly HTMLInputElement[] {
    return [this.#temperature, this.#maxTokens, this.#seed];
  }

  private show(): void {
    element("temperature-value", HTMLOutputElement).value = this.#temperature.value;
  }
}

function numberOf({ value }: HTMLInputElement): number | null {
  return value === "" ? null : Number(value);
}

function storedValues(): Readonly<Record<string, string>> {
  try {
    return JSON.parse(localStorage.getItem(KEY) ?? "{}") as Record<string, string>;
  } catch {
    // Without storage, or if it has other content, the form's default values apply.
    return {};
  }
}

function store(values: Readonly<Record<string, string>>): void {
  try {
    localStorage.setItem(KEY, JSON.stringify(values));
  } catch {
    // Without storage, the settings last for this visit.
  }
}
