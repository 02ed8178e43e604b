// What crosses a port: calls one way, results and callbacks the other. Values are structured clones, but for signals, functions and errors,
// which are written down here and made again on the other side; streams and ports are transferred.

import type { ErrorJson } from "../errors.js";
import { errorFromJson, NearfarError, messageOf } from "../errors.js";

export type ToWorker =
  | { readonly type: "call"; readonly id: number; readonly path: readonly string[]; readonly args: readonly unknown[] }
  /** So many more items of a stream may be sent. */
  | { readonly type: "more"; readonly id: number; readonly count: number }
  /** Nobody reads the stream any more. */
  | { readonly type: "leave"; readonly id: number }
  | { readonly type: "abort"; readonly id: number; readonly signal: number; readonly reason: WireError };

export type FromWorker =
  | { readonly type: "value"; readonly id: number; readonly value: unknown }
  /** The call's result is to be iterated: items follow once "more" was sent, then "end" or "error". */
  | { readonly type: "stream"; readonly id: number }
  | { readonly type: "item"; readonly id: number; readonly value: unknown }
  | { readonly type: "end"; readonly id: number }
  | { readonly type: "error"; readonly id: number; readonly error: WireError }
  | { readonly type: "callback"; readonly id: number; readonly callback: number; readonly args: readonly unknown[] };

/** A MessagePort, or what stands for one where messages go another way, as through an app's web view. */
export interface WirePort {
  postMessage(message: unknown, transfer: Transferable[]): void;
  addEventListener(type: "message", listener: (event: { readonly data: unknown }) => void): void;
  start(): void;
  close(): void;
}

/** What a page sends to the worker itself; the reply to a ping, on the port that comes with it, is whether the connection is known. */
export type Greeting =
  | { readonly nearfar: "connect"; readonly connection: string }
  | { readonly nearfar: "ping"; readonly connection: string };

export type WireError =
  | { readonly kind: "nearfar"; readonly json: ErrorJson }
  | { readonly kind: "dom" | "error"; readonly name: string; readonly message: string };

/** Where a signal or a function was in the arguments. */
interface Reference {
  readonly nearfarReference: "signal" | "callback";
  readonly index: number;
}

export interface Packed {
  readonly args: readonly unknown[];
  readonly signals: readonly AbortSignal[];
  readonly callbacks: readonly ((...args: readonly unknown[]) => unknown)[];
  readonly transfer: readonly Transferable[];
}

/** Arguments for the wire. Looks into plain objects and lists only. */
export function pack(args: readonly unknown[]): Packed {
  const signals: AbortSignal[] = [];
  const callbacks: ((...args: readonly unknown[]) => unknown)[] = [];
  const reference = <T>(kind: Reference["nearfarReference"], list: T[], value: T): Reference => ({
    nearfarReference: kind,
    index: list.push(value) - 1,
  });
  const packed = mapPlain(args, (value) => {
    if (value instanceof AbortSignal) return reference("signal", signals, value);
    if (typeof value === "function") return reference("callback", callbacks, value as (typeof callbacks)[number]);
    return value;
  });
  return { args: packed as readonly unknown[], signals, callbacks, transfer: transferables(packed) };
}

/** The arguments again; ``signal`` and ``callback`` make what stands for those of the other side. */
export function unpack(
  args: readonly unknown[],
  signal: (index: number) => AbortSignal,
  callback: (index: number) => unknown,
): readonly unknown[] {
  return mapPlain(args, (value) => {
    const { nearfarReference, index } = Object(value) as Partial<Reference>;
    if (nearfarReference === undefined || index === undefined) return value;
    return nearfarReference === "signal" ? signal(index) : callback(index);
  }) as readonly unknown[];
}

const TRANSFERRED = ["MessagePort", "ReadableStream", "WritableStream", "TransformStream"] as const;

/** Whether it is one of a class that a JavaScript engine outside of browsers may not have. */
export function isA(name: (typeof TRANSFERRED)[number] | "DOMException", value: unknown): boolean {
  const found = (globalThis as Partial<Record<typeof name, new () => unknown>>)[name];
  return found !== undefined && value instanceof found;
}

/** Everything in a value that can only be transferred. Buffers are copied, so that the sender keeps them. */
export function transferables(value: unknown): readonly Transferable[] {
  const found = new Set<Transferable>();
  mapPlain(value, (part) => {
    if (TRANSFERRED.some((name) => isA(name, part))) found.add(part as Transferable);
    return part;
  });
  return [...found];
}

export function packError(error: unknown): WireError {
  if (error instanceof NearfarError) return { kind: "nearfar", json: error.toJSON() };
  if (isA("DOMException", error))
    return { kind: "dom", name: (error as DOMException).name, message: (error as DOMException).message };
  return { kind: "error", name: error instanceof Error ? error.name : "Error", message: messageOf(error) };
}

/** The error as the class that it was: of our tree, DOMException, TypeError or RangeError; else Error with its name. */
export function unpackError(error: WireError): Error {
  switch (error.kind) {
    case "nearfar":
      return errorFromJson(error.json);
    case "dom":
      return typeof DOMException === "undefined"
        ? Object.assign(new Error(error.message), { name: error.name })
        : new DOMException(error.message, error.name);
    case "error": {
      const known = [TypeError, RangeError].find(({ name }) => name === error.name);
      return known === undefined
        ? Object.assign(new Error(error.message), { name: error.name })
        : new known(error.message);
    }
  }
}

function mapPlain(value: unknown, change: (value: unknown) => unknown): unknown {
  const changed = change(value);
  if (changed !== value) return changed;
  if (Array.isArray(value)) return value.map((part) => mapPlain(part, change));
  if (typeof value !== "object" || value === null || Object.getPrototypeOf(value) !== Object.prototype) return value;
  return Object.fromEntries(Object.entries(value).map(([key, part]) => [key, mapPlain(part, change)]));
}
