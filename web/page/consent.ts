// Consent: a link may name a server and a policy of other sites. The page shows them, and neither fetches nor sends anything before the user agrees.

import { make } from "./elements.js";

const AGREED = "nearfar agreed";

/** What the page's address asks for; null if it asks for nothing of the kind. */
export interface Asked {
  readonly far: string | null;
  readonly policy: string | null;
}

interface Item {
  readonly kind: keyof Asked;
  readonly origin: string;
}

/** Null for an address of this page's own origin, and for one that is no URL: nothing is fetched from either. */
export function foreignOrigin(address: string, page: string): string | null {
  if (!URL.canParse(address, page)) return null;
  const { origin, protocol } = new URL(address, page);
  if (origin === new URL(page).origin) return null;
  // Addresses such as data: have no origin.
  return origin === "null" ? protocol : origin;
}

/** The user typed the server's address. */
export function agreeToFar(far: string): void {
  const origin = foreignOrigin(far, location.href);
  if (origin !== null) agree([{ kind: "far", origin }]);
}

/** Whether the user agrees to all that is of another origin. Who has agreed once is not asked again in this tab. */
export async function agrees(asked: Asked): Promise<boolean> {
  const items = (["far", "policy"] as const).flatMap((kind): Item[] => {
    const address = asked[kind];
    const origin = address === null ? null : foreignOrigin(address, location.href);
    return origin === null || agreed().includes(`${kind} ${origin}`) ? [] : [{ kind, origin }];
  });
  if (items.length === 0) return true;
  const isAgreed = await answered(items);
  if (isAgreed) agree(items);
  return isAgreed;
}

/** What would happen, in words. */
export function consentWords(kind: keyof Asked): string {
  return kind === "far"
    ? "This server may answer instead of this device. It then receives your message and the conversation so far, except private messages."
    : "A file from this site decides which messages go to the server. It may send every message there, except the ones that you lock.";
}

function answered(items: readonly Item[]): Promise<boolean> {
  const title = make("h2", "", "This link connects you to another site");
  title.id = "consent-title";
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
    "Nothing is loaded from there or sent there before you agree. Agree only if you trust the person who gave you the link.",
  );
  const refuse = make("button", "plain", "Stay on this device");
  const accept = make("button", "solid", "Connect");
  refuse.id = "consent-refuse";
  accept.id = "consent-accept";
  const dialog = make("dialog", "", title, list, advice, make("div", "actions", refuse, accept));
  dialog.id = "consent";
  dialog.setAttribute("aria-labelledby", title.id);
  document.body.append(dialog);
  dialog.showModal();
  refuse.focus();
  return new Promise((resolve) => {
    refuse.addEventListener("click", () => {
      dialog.close();
    });
    accept.addEventListener("click", () => {
      dialog.close("agreed");
    });
    // The Escape key closes it without a value.
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(dialog.returnValue === "agreed");
    });
  });
}

/** For this tab, so that the page can be reloaded. */
function agree(items: readonly Item[]): void {
  try {
    sessionStorage.setItem(
      AGREED,
      JSON.stringify([...agreed(), ...items.map(({ kind, origin }) => `${kind} ${origin}`)]),
    );
  } catch {
    // A browser without storage asks again.
  }
}

function agreed(): readonly string[] {
  try {
    return JSON.parse(sessionStorage.getItem(AGREED) ?? "[]") as readonly string[];
  } catch {
    return [];
  }
}
