// Decorates sanitised Markdown: code gets its language, a copy button and highlighting, tables scroll, formulas are
// rendered.

import { icon, make } from "./elements.js";

const highlighter = whenLoaded(() => import("./highlight.js"));
const maths = whenLoaded(() => import("./maths.js"));

export function decorate(block: HTMLElement): void {
  for (const code of block.querySelectorAll<HTMLElement>("pre > code")) frameCode(code);
  for (const table of block.querySelectorAll("table")) frameTable(table);
  const formulas = [...block.querySelectorAll<HTMLElement>("[data-tex]")];
  if (formulas.length > 0) {
    maths(({ renderFormula }) => {
      for (const formula of formulas) renderFormula(formula);
    });
  }
}

function frameCode(code: HTMLElement): void {
  const { language = "" } = code.dataset;
  const pre = code.parentElement;
  const copy = make("button", "copy-code", icon("copy"), make("span", "", "Copy"));
  copy.type = "button";
  copy.addEventListener("click", () => void copyCode(code, copy));
  const frame = make(
    "div",
    "code",
    make("div", "code-head", make("span", "", language === "" ? "code" : language), copy),
  );
  pre?.replaceWith(frame);
  if (pre === null) return;
  // Long lines scroll, with the keyboard as well.
  pre.tabIndex = 0;
  frame.append(pre);
  if (language !== "") {
    highlighter(({ highlight }) => {
      highlight(code, language);
    });
  }
}

async function copyCode(code: HTMLElement, button: HTMLButtonElement): Promise<void> {
  const label = button.querySelector("span");
  if (label === null) return;
  try {
    await navigator.clipboard.writeText(code.textContent);
    label.textContent = "Copied";
  } catch {
    label.textContent = "Not allowed";
  }
  setTimeout(() => (label.textContent = "Copy"), 1500);
}

function frameTable(table: HTMLTableElement): void {
  const frame = make("div", "table");
  frame.tabIndex = 0;
  frame.setAttribute("role", "region");
  frame.setAttribute("aria-label", "Table");
  table.replaceWith(frame);
  frame.append(table);
}

// Loads a part of the page when it is first needed.

/**
 * Returns a function that runs its callback as soon as the module is loaded. If the module cannot be loaded, the
 * content
 * stays plain.
 */
function whenLoaded<M>(load: () => Promise<M>): (use: (module: M) => void) => void {
  let loaded: M | null = null;
  let loading: Promise<M> | null = null;
  return (use) => {
    if (loaded !== null) {
      use(loaded);
      return;
    }
    loading ??= load();
    loading.then(
      (module) => {
        loaded = module;
        use(module);
      },
      () => {
        // Try again with the next block.
        loading = null;
      },
    );
  };
}
