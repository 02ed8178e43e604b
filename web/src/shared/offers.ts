// Which bundles of a model in a catalog a machine may run, the best first, by what the catalog says of them. Pages and
// Python choose alike.

import { formatBytes } from "../format_bytes.js";

/** The fields of a bundle in a catalog that decide. */
export interface Offer {
  readonly folder: string;
  readonly target: string;
  readonly download_bytes: number;
  readonly memory_bytes: number;
}

/** A target that runs here, and what a model may take there: null if that is not known. */
export interface Place {
  readonly target: string;
  readonly memory_bytes: number | null;
}

export interface ChosenOffers {
  /** The folders, the best first. */
  readonly folders: readonly string[];
  /** Why the others do not run, if none does. */
  readonly refusals: readonly string[];
}

/**
 * The bundles for the ``places``, the preferred place first: in each the most exact one that fits first, which is the
 * catalog's order, or the smallest if the memory is not known and no probe will measure it. ``misfits``: why a machine
 * does not run a bundle, by its folder.
 */
export function chooseOffers(
  offers: readonly Offer[],
  places: readonly Place[],
  misfits: Readonly<Record<string, string>>,
  isProbed = false,
): ChosenOffers {
  const placeOf = ({ target }: Offer): number => places.findIndex((place) => place.target === target);
  const memoryOf = (offer: Offer): number | null => places[placeOf(offer)]?.memory_bytes ?? null;
  const why = (offer: Offer): string | null => {
    if (Object.hasOwn(misfits, offer.folder)) return misfits[offer.folder] ?? null;
    return placeOf(offer) < 0 ? `it is for ${offer.target}` : tooLarge(offer, memoryOf(offer));
  };
  const bySize = (offer: Offer): number => (memoryOf(offer) === null && !isProbed ? offer.download_bytes : 0);
  const folders = offers
    .filter((offer) => why(offer) === null)
    .sort((one, other) => placeOf(one) - placeOf(other) || bySize(one) - bySize(other))
    .map(({ folder }) => folder);
  const refusals = offers.map((offer) => `${offer.folder}: ${String(why(offer))}`);
  return { folders, refusals: folders.length > 0 ? [] : refusals };
}

/** Why a bundle does not fit into the memory, or null if it does. */
export function tooLarge({ memory_bytes: needed }: Offer, available: number | null): string | null {
  if (available === null || needed <= available) return null;
  return `it needs ${formatBytes(needed)} of memory, this device has ${formatBytes(available)} for it`;
}
