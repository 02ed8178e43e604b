// catalog.js: reads the catalog of a published site, and chooses the bundles of a model that fit a device. nearfar.js
// imports it for `Engine.load(name, { catalog })`.

import { BundleError, DeviceError, RequestError, messageOf } from "../errors.js";
import { findAdapter, knownFeatures } from "../runtime/device.js";
import { check, isObject, objectOf, shown, typeReader } from "../shared/declared.js";
import type { CatalogBundle, CatalogModel, Catalog as CatalogData } from "./catalog.js";
import { CATALOG_VERSION } from "./catalog.js";
import types from "./catalog_types.json" with { type: "json" };
import type { DeviceFacts } from "./fits.js";
import { misfit } from "./fits.js";

export type { CatalogBundle, CatalogLicense, CatalogModel } from "./catalog.js";
export type { DeviceFacts } from "./fits.js";
export { misfit } from "./fits.js";

const CATALOG_FILE = "catalog.json";
/** The share of the memory that a browser reports that a model may take. */
const MEMORY_SHARE = 0.5;

/** The options of a load that say which device it is for. */
export interface ChooseOptions {
  readonly gpu?: GPU | undefined;
  readonly adapter?: GPUAdapter | undefined;
  readonly memoryBudget?: number | undefined;
  readonly signal?: AbortSignal | undefined;
}

export class Catalog {
  private constructor(
    /** The address of catalog.json. */
    readonly address: URL,
    private readonly data: CatalogData,
  ) {}

  /**
   * The catalog at an address: that of a catalog.json, of the folder with it, or "hf:OWNER/NAME". Throws BundleError, or
   * the signal's reason.
   */
  static async fetch(place: string | URL, signal?: AbortSignal): Promise<Catalog> {
    const address = catalogAddress(place);
    let data: unknown;
    try {
      const response = await fetch(address, { cache: "no-cache", ...(signal && { signal }) });
      if (!response.ok) throw new Error(`the server answers ${response.status} ${response.statusText}`);
      data = await response.json();
    } catch (error) {
      signal?.throwIfAborted();
      throw new BundleError(
        `${address.href}: cannot be read (${messageOf(error)}); check the address`,
        {},
        { cause: error },
      );
    }
    return new Catalog(address, checkCatalog(data, address));
  }

  /** The names by which models are loaded. */
  get names(): readonly string[] {
    return Object.keys(this.data.models);
  }

  /** Throws RequestError for a name that it does not have. */
  model(name: string): CatalogModel {
    const found = Object.hasOwn(this.data.models, name) ? this.data.models[name] : undefined;
    if (found !== undefined) return found;
    const { names } = this;
    throw new RequestError(`The catalog has no model ${shown(name)}; it has ${names.join(", ") || "none"}`, {
      param: "bundle",
    });
  }

  /**
   * The addresses of the bundles of a model that fit a device, the best first: the most exact one if the memory is known,
   * else the smallest. Throws RequestError, and DeviceError with the reasons if none fits.
   */
  addresses(name: string, device: DeviceFacts | null): readonly string[] {
    const { bundles } = this.model(name);
    const why = new Map(bundles.map((bundle) => [bundle, misfit(bundle, device)]));
    const fitting = bundles.filter((bundle) => why.get(bundle) === null);
    if (fitting.length === 0) {
      const reasons = bundles.map((bundle) => `${bundle.folder}: ${String(why.get(bundle))}`);
      throw new DeviceError(`No bundle of ${name} fits this device: ${reasons.join("; ")}`, { refusals: reasons });
    }
    return sorted(fitting, device).map(({ folder }) => new URL(`${folder}/`, this.address).href);
  }
}

/** The addresses that `Engine.load` tries. Throws the errors of `Catalog`. */
export async function chooseAddresses(
  name: unknown,
  place: string | URL,
  options: ChooseOptions,
): Promise<readonly string[]> {
  if (typeof name !== "string")
    throw new RequestError(`With a catalog, the bundle is the name of a model, not ${shown(name)}`, {
      param: "bundle",
    });
  const [catalog, device] = await Promise.all([Catalog.fetch(place, options.signal), deviceFacts(options)]);
  return catalog.addresses(name, device);
}

/** What this device has; null without WebGPU. The budget of a load, or else half of the memory that the browser reports. */
export async function deviceFacts({ gpu, adapter, memoryBudget }: ChooseOptions = {}): Promise<DeviceFacts | null> {
  const found = adapter ?? (await findAdapter(gpu).catch(() => null));
  if (found === null) return null;
  const { maxBufferSize, maxStorageBufferBindingSize } = found.limits;
  const reported = (globalThis.navigator as { readonly deviceMemory?: number } | undefined)?.deviceMemory;
  return {
    features: knownFeatures(found, gpu),
    maxBufferBytes: Math.min(maxBufferSize, maxStorageBufferBindingSize),
    memoryBytes: memoryBudget ?? (reported === undefined ? null : reported * 2 ** 30 * MEMORY_SHARE),
  };
}

/** WebGPU before ONNX. The catalog has the most exact ones first. */
function sorted(bundles: readonly CatalogBundle[], device: DeviceFacts | null): readonly CatalogBundle[] {
  const isLater = ({ target }: CatalogBundle): number => (target === "webgpu" ? 0 : 1);
  const bySize = (device?.memoryBytes ?? null) === null;
  return [...bundles].sort(
    (one, other) => isLater(one) - isLater(other) || (bySize ? one.download_bytes - other.download_bytes : 0),
  );
}

function catalogAddress(place: string | URL): URL {
  const hub = /^hf:([\w.-]+\/[\w.-]+)$/.exec(String(place))?.[1];
  const text = hub === undefined ? String(place) : `https://huggingface.co/${hub}/resolve/main/`;
  const base = "location" in globalThis ? globalThis.location.href : undefined;
  if (!URL.canParse(text, base))
    throw new BundleError(`${text}: is not the address of a catalog; write https://host/${CATALOG_FILE}`);
  const address = new URL(text, base);
  if (!address.pathname.endsWith(".json")) address.pathname = `${address.pathname.replace(/\/$/, "")}/${CATALOG_FILE}`;
  return address;
}

const matching = ({ pattern }: { readonly pattern: string }): { expected: string; fault: ReturnType<typeof check> } => {
  const expected = "a text of the right form";
  return { expected, fault: check(expected, (value) => typeof value === "string" && new RegExp(pattern).test(value)) };
};
const read = typeReader((type, inner) => {
  const declared = (types as Readonly<Record<string, unknown>>)[type];
  if (typeof declared === "string") return inner(declared);
  if (!isObject(declared)) return undefined;
  return "pattern" in declared
    ? matching(declared as { readonly pattern: string })
    : objectOf(declared as Readonly<Record<string, string>>, inner);
});

function checkCatalog(data: unknown, { href }: URL): CatalogData {
  if (!isObject(data) || data.format_version !== CATALOG_VERSION)
    throw new BundleError(
      `${href}: has format version ${shown(isObject(data) ? data.format_version : data)}, this @nearfar/web reads ${CATALOG_VERSION}; publish the site again, or use the @nearfar/web of its release`,
    );
  const fault = read("Catalog").fault(data, "");
  if (fault === null) return data as unknown as CatalogData;
  const problem = fault.expected === "" ? "is not known here" : `must be ${fault.expected}, not ${shown(fault.value)}`;
  throw new BundleError(`${href}: ${fault.path} ${problem}; publish the site again`, { key: fault.path });
}
