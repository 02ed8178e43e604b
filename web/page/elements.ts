// Typed access to the document's elements, and functions that create them.

/** The element with this id. Throws if the page has no such element of this type. */
export function element<T extends HTMLElement>(id: string, type: new () => T): T {
  const found = document.getElementById(id);
  if (!(found instanceof type)) throw new Error(`the page has no ${type.name} #${id}`);
  return found;
}

export function make<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  className = "",
  ...content: (string | Node)[]
): HTMLElementTagNameMap[K] {
  const node = document.createElement(tag);
  if (className !== "") node.className = className;
  node.append(...content);
  return node;
}

/** Set the progress of a progress bar. If ``total`` is null, the bar moves without an end. */
export function fill(id: string, done: number, total: number | null): void {
  const percent = total === null ? 100 : total === 0 ? 0 : Math.round((100 * done) / total);
  const track = element(id, HTMLElement);
  track.classList.toggle("endless", total === null);
  if (total === null) track.removeAttribute("aria-valuenow");
  else track.setAttribute("aria-valuenow", String(percent));
  (track.firstElementChild as HTMLElement).style.width = `${percent}%`;
}

/** An element of an SVG with these attributes. */
export function makeSvg(
  tag: string,
  attributes: Readonly<Record<string, string | number>>,
  ...content: (string | Node)[]
): SVGElement {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, String(value));
  node.append(...content);
  return node;
}

/** An icon from the page's symbols. */
export function icon(symbol: string): SVGElement {
  return makeSvg("svg", { class: "icon", "aria-hidden": "true" }, makeSvg("use", { href: `#icon-${symbol}` }));
}

/** A button with an icon; ``label`` is its accessible name and its tooltip. */
export function iconButton(symbol: string, label: string, onClick: () => void): HTMLButtonElement {
  const button = make("button", "round", icon(symbol));
  button.type = "button";
  button.setAttribute("aria-label", label);
  button.title = label;
  button.addEventListener("click", onClick);
  return button;
}

/** A list of terms with their descriptions, without those whose description is null. */
export function factList(
  facts: readonly (readonly [term: string, description: string | Node | null])[],
  className = "facts",
): HTMLDListElement {
  const shown = facts.filter((fact): fact is readonly [string, string | Node] => fact[1] !== null);
  return make(
    "dl",
    className,
    ...shown.map(([term, description]) => make("div", "", make("dt", "", term), make("dd", "", description))),
  );
}
