// Formulas as MathML, which browsers set themselves, without fonts or inline styles. Loaded with the first formula.

import katex from "katex";

/** Replace the TeX source in a placeholder by its formula. TeX that cannot be read stays as its source. */
export function renderFormula(node: HTMLElement): void {
  const { tex } = node.dataset;
  if (tex === undefined) return;
  const formula = document.createElement("span");
  try {
    katex.render(tex, formula, {
      displayMode: node.tagName === "DIV",
      output: "mathml",
      throwOnError: true,
      trust: false,
      strict: "ignore",
      maxExpand: 200,
      maxSize: 20,
    });
  } catch (error) {
    if (error instanceof katex.ParseError) return;
    throw error;
  }
  node.replaceChildren(formula);
  node.classList.add("maths");
}
