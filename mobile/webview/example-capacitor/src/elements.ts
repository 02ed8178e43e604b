/** The element of the page with this id. */
export function element<Kind extends Element>(id: string, kind: new () => Kind): Kind {
  const match = document.getElementById(id);
  if (!(match instanceof kind)) throw new Error(`index.html has no ${kind.name} '${id}'`);
  return match;
}

/** A new element with a class and a text. */
export function make<Name extends keyof HTMLElementTagNameMap>(
  name: Name,
  className: string,
  text = "",
): HTMLElementTagNameMap[Name] {
  const made = document.createElement(name);
  made.className = className;
  made.textContent = text;
  return made;
}
