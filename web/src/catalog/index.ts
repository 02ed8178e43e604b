// catalog.js: reads the catalog of a published site, and chooses the bundles of a model that fit a device. nearfar.js
// imports it for `Engine.load(name, { catalog })`.

import { BundleError, DeviceError, RequestError, messageOf } from "../errors.js";
import { requireKnown } from "../known_options.js";
import { findAdapter, knownFeatures } from "../runtime/device.js";
import { sha256 } from "../runtime/read_file.js";
import type { Bytes } from "../runtime/source.js";
import { isObject, patternsOf, shown, tableReader } from "../shared/declared.js";
import { chooseOffers } from "../shared/offers.js";
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
  /** Which measures on this device whether a bundle fits. */
  readonly probe?: unknown;
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
    requireSignal(signal);
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
   * The addresses of the bundles of a model that fit a device, the best first: the most exact one if the memory is known
   * or a probe measures it, else the smallest. Throws RequestError, and DeviceError with the reasons if none fits.
   */
  addresses(name: string, device: DeviceFacts | null): readonly string[] {
    requireKnown(device ?? {}, ["features", "maxBufferBytes", "memoryBytes", "isProbed"], "device.");
    const { bundles } = this.model(name);
    const why = bundles.map((bundle) => [bundle.folder, misfit(bundle, device)] as const);
    const misfits = Object.fromEntries(why.filter((each): each is [string, string] => each[1] !== null));
    const memory_bytes = device?.memoryBytes ?? null;
    const places = ["webgpu", "onnx"].map((target) => ({ target, memory_bytes }));
    const { folders, refusals } = chooseOffers(bundles, places, misfits, device?.isProbed);
    if (folders.length === 0)
      throw new DeviceError(`No bundle of ${name} fits this device: ${refusals.join("; ")}`, { refusals });
    return folders.map((folder) => this.addressOf({ folder }));
  }

  addressOf({ folder }: Pick<CatalogBundle, "folder">): string {
    return new URL(`${folder}/`, this.address).href;
  }
}

/** The bundles that a load tries, and the check of their manifests, which throws BundleError. */
export interface Chosen {
  readonly addresses: readonly string[];
  readonly checkManifest: (address: unknown, manifest: Bytes) => Promise<void>;
}

/** The addresses that `Engine.load` tries. Throws the errors of `Catalog`. */
export async function chooseAddresses(
  name: unknown,
  place: string | URL,
  { gpu, adapter, memoryBudget, probe, signal }: ChooseOptions,
): Promise<Chosen> {
  if (typeof name !== "string")
    throw new RequestError(`With a catalog, the bundle is the name of a model, not ${shown(name)}`, {
      param: "bundle",
    });
  const facts = deviceFacts({ gpu, adapter, memoryBudget, probe });
  const [catalog, device] = await Promise.all([Catalog.fetch(place, signal), facts]);
  const hashes = new Map(catalog.model(name).bundles.map((each) => [catalog.addressOf(each), each.manifest_sha256]));
  const checkManifest = async (address: unknown, manifest: Bytes): Promise<void> => {
    const [found, expected = ""] = [await sha256(manifest), hashes.get(String(address))];
    if (found === expected) return;
    throw new BundleError(
      `${String(address)}manifest.json: has SHA-256 ${found.slice(0, 12)}..., the catalog says ${expected.slice(0, 12)}...; the site is being changed, or someone else changed it: load again, or ask its owner`,
      { file: "manifest.json", found, expected },
    );
  };
  return { addresses: catalog.addresses(name, device), checkManifest };
}

/**
 * What this device has; null without WebGPU. The memory is the budget of a load, or else half of what the browser
 * reports; with a probe it is not guessed, because the probe measures it for each bundle.
 */
export async function deviceFacts(options: Omit<ChooseOptions, "signal"> = {}): Promise<DeviceFacts | null> {
  requireKnown(options, ["gpu", "adapter", "memoryBudget", "probe"]);
  const { gpu, adapter, memoryBudget, probe } = options;
  const found = adapter ?? (await findAdapter(gpu).catch(() => null));
  if (found === null) return null;
  const { maxBufferSize, maxStorageBufferBindingSize } = found.limits;
  const reported = (globalThis.navigator as { readonly deviceMemory?: number } | undefined)?.deviceMemory;
  return {
    features: knownFeatures(found, gpu),
    maxBufferBytes: Math.min(maxBufferSize, maxStorageBufferBindingSize),
    memoryBytes:
      memoryBudget ?? (reported === undefined || probe !== undefined ? null : reported * 2 ** 30 * MEMORY_SHARE),
    isProbed: probe !== undefined,
  };
}

/** An object of options in place of a signal would be ignored. */
function requireSignal(signal: unknown): void {
  if (signal === undefined || signal instanceof AbortSignal) return;
  throw new RequestError(`signal is ${shown(signal)}, it must be an AbortSignal`, { param: "signal" });
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

const read = tableReader(types, patternsOf(types));

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
