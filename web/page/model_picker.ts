// The choice of a model. bundles.json beside the page lists the bundles of its host, as
// [{"name": "Small", "bundle": "./small/"}, ...].

import { element, make } from "./elements.js";

export interface ListedBundle {
  readonly name: string;
  /** The address of its folder, relative to the page. */
  readonly bundle: string;
}

/** The well-formed entries of a list. */
export function readBundleList(list: unknown): readonly ListedBundle[] {
  if (!Array.isArray(list)) return [];
  return (list as readonly unknown[]).filter(isListed);
}

/** Offer the listed bundles if there are several. The page reloads with the chosen one. */
export async function offerModels(current: string): Promise<void> {
  const listed = readBundleList(await fetchList());
  if (listed.length < 2) return;
  const select = element("model-picker", HTMLSelectElement);
  const folder = (bundle: string): string => new URL(bundle.endsWith("/") ? bundle : `${bundle}/`, location.href).href;
  const options = listed.map(({ name, bundle }) => {
    const option = make("option", "", name);
    option.value = bundle;
    option.selected = folder(bundle) === folder(current);
    return option;
  });
  if (!options.some(({ selected }) => selected)) {
    const option = make("option", "", current);
    option.value = current;
    option.selected = true;
    options.unshift(option);
  }
  select.replaceChildren(...options);
  select.addEventListener("change", () => {
    const address = new URLSearchParams(location.search);
    address.set("bundle", select.value);
    location.search = address.toString();
  });
  element("models", HTMLElement).hidden = false;
}

async function fetchList(): Promise<unknown> {
  try {
    const response = await fetch("bundles.json");
    return response.ok ? await response.json() : null;
  } catch {
    // Without the list, the page has one model.
    return null;
  }
}

function isListed(entry: unknown): entry is ListedBundle {
  const { name, bundle } = (entry ?? {}) as Readonly<Record<string, unknown>>;
  return typeof name === "string" && name !== "" && typeof bundle === "string" && bundle !== "";
}
