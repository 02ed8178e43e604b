// Converts values to JSON and back. Values that JSON does not support are objects with the key "nearfarValue": numbers
// that are not finite, bigints, undefined in a list, typed arrays and buffers (base64 of their bytes, little-endian).
// All other values that are not plain data are refused.

import { RequestError } from "@nearfar/web/calls";

const KEY = "nearfarValue";

type Json = null | boolean | number | string | readonly Json[] | { readonly [key: string]: Json };

const ARRAYS = {
  Int8Array,
  Uint8Array,
  Uint8ClampedArray,
  Int16Array,
  Uint16Array,
  Int32Array,
  Uint32Array,
  Float32Array,
  Float64Array,
  BigInt64Array,
  BigUint64Array,
} as const;

/** Throws RequestError with the location of a value that cannot be sent. */
export function toJson(value: unknown, path = "value"): Json {
  switch (typeof value) {
    case "string":
    case "boolean":
      return value;
    case "number":
      return Number.isFinite(value) ? value : { [KEY]: "number", text: String(value) };
    case "bigint":
      return { [KEY]: "bigint", text: String(value) };
    case "undefined":
      return { [KEY]: "undefined" };
    case "object":
      return value === null ? null : objectToJson(value, path);
    case "function":
    case "symbol":
      throw unsendable(path, typeof value);
  }
}

function objectToJson(value: object, path: string): Json {
  if (Array.isArray(value)) return value.map((part, index) => toJson(part, `${path}[${index}]`));
  if (value instanceof ArrayBuffer) return { [KEY]: "ArrayBuffer", base64: toBase64(new Uint8Array(value)) };
  if (ArrayBuffer.isView(value)) {
    const name = Object.prototype.toString.call(value).slice("[object ".length, -1);
    if (!(name in ARRAYS)) throw unsendable(path, name);
    return { [KEY]: name, base64: toBase64(new Uint8Array(value.buffer, value.byteOffset, value.byteLength)) };
  }
  const prototype: unknown = Object.getPrototypeOf(value);
  if (prototype !== null && Object.getPrototypeOf(prototype) !== null) throw unsendable(path, value.constructor.name);
  if (KEY in value)
    throw new RequestError(`${path} has the key '${KEY}', which the bridge reserves; use another name`, { path });
  const entries = Object.entries(value).filter(([, part]) => part !== undefined);
  return Object.fromEntries(entries.map(([key, part]) => [key, toJson(part, `${path}.${key}`)]));
}

/** The value that `toJson` converted. Throws RequestError for unknown kinds of values. */
export function fromJson(json: unknown): unknown {
  if (Array.isArray(json)) return json.map(fromJson);
  if (typeof json !== "object" || json === null) return json;
  if (KEY in json) return special(json);
  return Object.fromEntries(Object.entries(json).map(([key, part]) => [key, fromJson(part)]));
}

interface Special {
  readonly [KEY]: unknown;
  readonly text?: string;
  readonly base64?: string;
}

function special({ [KEY]: kind, text = "", base64 = "" }: Special): unknown {
  if (kind === "number") return Number(text);
  if (kind === "bigint") return BigInt(text);
  if (kind === "undefined") return undefined;
  if (kind === "ArrayBuffer") return fromBase64(base64);
  const array = ARRAYS[kind as keyof typeof ARRAYS] as (new (buffer: ArrayBuffer) => unknown) | undefined;
  if (array === undefined)
    throw new RequestError(
      `'${String(kind)}' is not a known ${KEY}; use the same version of @nearfar/webview on both sides`,
    );
  return new array(fromBase64(base64));
}

function unsendable(path: string, kind: string): RequestError {
  return new RequestError(`${path}: a ${kind} cannot be sent between an app and its web view; send plain data`, {
    path,
  });
}

function toBase64(bytes: Uint8Array): string {
  let text = "";
  // The number of a call's arguments is limited.
  for (let start = 0; start < bytes.length; start += 8192)
    text += String.fromCharCode(...bytes.subarray(start, start + 8192));
  return btoa(text);
}

function fromBase64(base64: string): ArrayBuffer {
  return Uint8Array.from(atob(base64), (character) => character.charCodeAt(0)).buffer;
}
