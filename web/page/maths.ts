// Renders formulas as MathML, which browsers lay out without fonts or inline styles. Loaded with the first formula.

import katex from "katex";

/** Replace the TeX source in a placeholder by its formula. Invalid TeX stays as its source. */
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
