// The address of a far side, as it is typed and as it is asked.

import type { Dialect } from "../src/router/index.js";

/** ``key`` is null for a server that asks for none, ``model`` for one that serves one only. */
export interface FarAddress {
  readonly url: string;
  readonly key: string | null;
  readonly model: string | null;
  readonly dialect: Dialect;
}

/** "localhost:8000" -> "http://localhost:8000": what has no scheme is on this machine, or is reached safely. */
export function urlOf(typed: string): string {
  const url = typed.trim();
  if (/^https?:\/\//.test(url)) return url;
  return `${/^(localhost|127\.|\[::1\])/.test(url) ? "http" : "https"}://${url}`;
}

/** "http://localhost:8000/v1" -> "localhost:8000". */
export function hostOf(url: string): string {
  return URL.canParse(url) ? new URL(url).host : url;
}
