// The settings of an answer: the form's fields flow in, checked settings flow out. They stay for the page's next visit where the browser keeps them.

import { element } from "./elements.js";
import type { Settings } from "./model.js";

const KEY = "nearfar settings";

export class SettingsForm {
  readonly #temperature = element("temperature", HTMLInputElement);
  readonly #maxTokens = element("max-tokens", HTMLInputElement);
  readonly #seed = element("seed", HTMLInputElement);

  constructor() {
    for (const field of this.fields()) {
      field.value = kept()[field.id] ?? field.value;
      field.addEventListener("input", () => {
        this.show();
        keep(Object.fromEntries(this.fields().map(({ id, value }) => [id, value])));
      });
    }
    element("settings", HTMLFormElement).addEventListener("submit", (event) => {
      event.preventDefault();
    });
    this.show();
  }

  /** Null, with the field in focus, where one is out of its range. */
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

function kept(): Readonly<Record<string, string>> {
  try {
    return JSON.parse(localStorage.getItem(KEY) ?? "{}") as Record<string, string>;
  } catch {
    // A browser without storage, or with something else there, has the form's own values.
    return {};
  }
}

function keep(values: Readonly<Record<string, string>>): void {
  try {
    localStorage.setItem(KEY, JSON.stringify(values));
  } catch {
    // They hold for this visit.
  }
}
