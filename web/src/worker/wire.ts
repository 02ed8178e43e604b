// The messages on a port: calls in one direction, results and callbacks in the other. Values are structured clones.
// Signals, functions and errors cannot be cloned, so they are encoded here and recreated on the other side. Streams and
// ports are transferred.

import type { ErrorJson } from "../errors.js";
import { errorFromJson, NearfarError, messageOf } from "../errors.js";

export type ToWorker =
  | { readonly type: "call"; readonly id: number; readonly path: readonly string[]; readonly args: readonly unknown[] }
  /** The worker may send ``count`` more items of a stream. */
  | { readonly type: "more"; readonly id: number; readonly count: number }
  /** The reader has left the stream. */
  | { readonly type: "leave"; readonly id: number }
  | { readonly type: "abort"; readonly id: number; readonly signal: number; readonly reason: WireError };

export type FromWorker =
  | { readonly type: "value"; readonly id: number; readonly value: unknown }
  /** The call's result is a stream: items follow after "more" was sent, then "end" or "error". */
  | { readonly type: "stream"; readonly id: number }
  | { readonly type: "item"; readonly id: number; readonly value: unknown }
  /** ``value``: what the generator returned. */
  | { readonly type: "end"; readonly id: number; readonly value: unknown }
  | { readonly type: "error"; readonly id: number; readonly error: WireError }
  | { readonly type: "callback"; readonly id: number; readonly callback: number; readonly args: readonly unknown[] };

/**
 * A MessagePort, or a replacement if messages are transported in another way, for example through an app's web view.
 */
export interface WirePort {
  postMessage(message: unknown, transfer: Transferable[]): void;
  addEventListener(type: "message", listener: (event: { readonly data: unknown }) => void): void;
  start(): void;
  close(): void;
}

/**
 * The messages that a page sends to the worker itself. A ping is sent with a port; the reply there is whether the
 * worker knows the connection.
 */
export type Greeting =
  | { readonly nearfar: "connect"; readonly connection: string }
  | { readonly nearfar: "ping"; readonly connection: string };

export type WireError =
  | { readonly kind: "nearfar"; readonly json: ErrorJson }
  | { readonly kind: "dom" | "error"; readonly name: string; readonly message: string };

/** Replaces a signal or a function in the arguments. */
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

/** Encode arguments for the port. Only plain objects and lists are searched for signals and functions. */
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

/** Decode arguments; ``signal`` and ``callback`` create the replacements for those of the other side. */
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

/** Whether a value is an instance of a class that may not exist outside of browsers. */
export function isA(name: (typeof TRANSFERRED)[number] | "DOMException", value: unknown): boolean {
  const type = (globalThis as Partial<Record<typeof name, new () => unknown>>)[name];
  return type !== undefined && value instanceof type;
}

/** All parts of a value that can only be transferred. Buffers are copied, so that the sender can still use them. */
export function transferables(value: unknown): readonly Transferable[] {
  const transferred = new Set<Transferable>();
  mapPlain(value, (part) => {
    if (TRANSFERRED.some((name) => isA(name, part))) transferred.add(part as Transferable);
    return part;
  });
  return [...transferred];
}

export function packError(error: unknown): WireError {
  if (error instanceof NearfarError) return { kind: "nearfar", json: error.toJSON() };
  if (isA("DOMException", error))
    return { kind: "dom", name: (error as DOMException).name, message: (error as DOMException).message };
  return { kind: "error", name: error instanceof Error ? error.name : "Error", message: messageOf(error) };
}

/**
 * The error with its original class if that is in our tree, DOMException, TypeError or RangeError; otherwise an Error
 * with the original name.
 */
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
