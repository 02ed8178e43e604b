// The address of a server, as the user types it and as the page requests it.

import type { Dialect } from "../src/router/index.js";

/** ``key`` is null for a server without keys, ``model`` for a server with only one model. */
export interface FarAddress {
  readonly url: string;
  readonly key: string | null;
  readonly model: string | null;
  readonly dialect: Dialect;
}

/** "localhost:8000" -> "http://localhost:8000". Without a scheme, this machine gets http and every other host https. */
export function urlOf(typed: string): string {
  const url = typed.trim();
  if (/^https?:\/\//.test(url)) return url;
  return `${/^(localhost|127\.|\[::1\])/.test(url) ? "http" : "https"}://${url}`;
}

/** "http://localhost:8000/v1" -> "localhost:8000". */
export function hostOf(url: string): string {
  return URL.canParse(url) ? new URL(url).host : url;
}
