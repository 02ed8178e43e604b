// Adds functions to the global object that the engine calls and that React Native's JavaScript may lack. Existing
// functions stay.

import { decodeUtf8, encodeUtf8 } from "./utf8.js";

/** The parts of the global object that are checked. */
export interface Globals {
  TextDecoder?: unknown;
  TextEncoder?: unknown;
  crypto?: { getRandomValues?: unknown; randomUUID?: unknown };
  AbortSignal?: { any?: unknown; prototype: { throwIfAborted?: unknown } };
  AbortController?: new () => AbortController;
}

export function fillIn(globals: Globals): void {
  globals.TextDecoder ??= class {
    decode(bytes: Uint8Array): string {
      return decodeUtf8(bytes);
    }
  };
  globals.TextEncoder ??= class {
    encode(text: string): Uint8Array {
      return encodeUtf8(text);
    }
  };
  // A frozen object cannot be extended.
  const crypto = (globals.crypto ??= {});
  crypto.getRandomValues ??= randomWords;
  crypto.randomUUID ??= randomId;
  const { AbortSignal, AbortController } = globals;
  if (AbortSignal === undefined || AbortController === undefined) return;
  AbortSignal.any ??= (signals: readonly AbortSignal[]) => anyOf(signals, new AbortController());
  AbortSignal.prototype.throwIfAborted ??= function (this: AbortSignal): void {
    if (this.aborted) throw reasonOf(this);
  };
}

/** For seeds and names of answers, not for secrets. */
function randomWords(words: Uint32Array): Uint32Array {
  return words.map(() => Math.floor(Math.random() * 2 ** 32));
}

function randomId(): string {
  const digits = Array.from({ length: 32 }, () => Math.floor(Math.random() * 16).toString(16)).join("");
  return [8, 12, 16, 20, 32].map((end, index) => digits.slice([0, 8, 12, 16, 20][index], end)).join("-");
}

function anyOf(signals: readonly AbortSignal[], controller: AbortController): AbortSignal {
  const abort = (signal: AbortSignal): void => {
    controller.abort(reasonOf(signal));
  };
  for (const signal of signals) {
    if (signal.aborted) abort(signal);
    else
      signal.addEventListener("abort", () => {
        abort(signal);
      });
  }
  return controller.signal;
}

/** Older signals have no reason. */
function reasonOf(signal: AbortSignal): Error {
  return (signal.reason as Error | undefined) ?? Object.assign(new Error("It was aborted"), { name: "AbortError" });
}
