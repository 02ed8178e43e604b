// Helpers of the examples for the elements of their pages.

export function element(id: string): HTMLElement {
  const match = document.getElementById(id);
  if (match === null) throw new Error(`the page has no element '${id}'`);
  return match;
}

export function input(id: string): HTMLInputElement {
  return element(id) as HTMLInputElement;
}

export function show(id: string, text: string): void {
  element(id).textContent = text;
}

/** Enables the form. Call it when the engine is loaded. */
export function ready(): void {
  element("send").toggleAttribute("disabled", false);
  show("status", "ready");
}
