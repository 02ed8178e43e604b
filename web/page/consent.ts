// Consent: a link may name a server and a policy of other sites. The page shows them, and it neither fetches nor sends
// anything before the user agrees.

import { make } from "./elements.js";
import { asks } from "./question_dialog.js";

const AGREED = "nearfar agreed";

/** The addresses in the page's address; null if it has none of the kind. */
export interface LinkedAddresses {
  readonly far: string | null;
  readonly policy: string | null;
}

interface Item {
  readonly kind: keyof LinkedAddresses;
  readonly origin: string;
}

/** The origin of an address; null if it is the page's own, or if the address is not a URL and cannot be fetched. */
export function foreignOrigin(address: string, page: string): string | null {
  if (!URL.canParse(address, page)) return null;
  const { origin, protocol } = new URL(address, page);
  if (origin === new URL(page).origin) return null;
  // Addresses such as data: have no origin.
  return origin === "null" ? protocol : origin;
}

/** Record consent to a server whose address the user typed. */
export function agreeToFar(far: string): void {
  const origin = foreignOrigin(far, location.href);
  if (origin !== null) agree([{ kind: "far", origin }]);
}

/** Whether the user agrees to the addresses of other origins. The page requests each consent once per tab. */
export async function agrees(addresses: LinkedAddresses): Promise<boolean> {
  const items = (["far", "policy"] as const).flatMap((kind): Item[] => {
    const address = addresses[kind];
    const origin = address === null ? null : foreignOrigin(address, location.href);
    return origin === null || agreed().includes(`${kind} ${origin}`) ? [] : [{ kind, origin }];
  });
  if (items.length === 0) return true;
  const isAgreed = await answered(items);
  if (isAgreed) agree(items);
  return isAgreed;
}

/** Says what would happen. */
export function consentWords(kind: keyof LinkedAddresses): string {
  return kind === "far"
    ? "This server may answer instead of this device. It then receives your message and the conversation " +
        "so far, except private messages."
    : "A file from this site decides which messages go to the server. It may send every message there, " +
        "except the ones that you lock.";
}

function answered(items: readonly Item[]): Promise<boolean> {
  const list = make(
    "ul",
    "",
    ...items.map(({ kind, origin }) =>
      make("li", "", make("strong", "", origin), make("span", "", consentWords(kind))),
    ),
  );
  const advice = make(
    "p",
    "quiet",
    "Nothing is loaded from there or sent there before you agree. Agree only if you trust the person who " +
      "gave you the link.",
  );
  return asks({
    id: "consent",
    title: "This link connects you to another site",
    content: [list, advice],
    refuse: "Stay on this device",
    accept: "Connect",
  });
}

/** Store the consent for this tab, so that it survives a reload. */
function agree(items: readonly Item[]): void {
  try {
    sessionStorage.setItem(
      AGREED,
      JSON.stringify([...agreed(), ...items.map(({ kind, origin }) => `${kind} ${origin}`)]),
    );
  } catch {
    // Without storage, the page requests consent again.
  }
}

function agreed(): readonly string[] {
  try {
    return JSON.parse(sessionStorage.getItem(AGREED) ?? "[]") as readonly string[];
  } catch {
    return [];
  }
}
