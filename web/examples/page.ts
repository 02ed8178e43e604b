// What the examples share: the elements of their pages.

export function element(id: string): HTMLElement {
  const found = document.getElementById(id);
  if (found === null) throw new Error(`the page has no element '${id}'`);
  return found;
}

export function input(id: string): HTMLInputElement {
  return element(id) as HTMLInputElement;
}

export function show(id: string, text: string): void {
  element(id).textContent = text;
}

/** The engine is loaded: let the form be sent. */
export function ready(): void {
  element("send").toggleAttribute("disabled", false);
  show("status", "ready");
}
