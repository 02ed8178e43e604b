// The tree of all errors that the package throws.
//
//     NearfarError
//     ├── BundleError    a bundle cannot be fetched, is corrupt, or has another format version
//     ├── DeviceError    this browser or machine lacks something that the bundle needs, or the device was lost
//     ├── RequestError   a prompt, token list or option is out of range
//     ├── StorageError   this browser's storage has no room for the bundle, cannot be written, or is in use
//     ├── Unavailable    no side may or can answer now, or the far side cannot be reached or is overloaded
//     └── WorkerError    the worker that the engine runs in cannot be reached, or is gone
//
// A message states the location, the problem and what to do. A worker or a server sends an error as
// {code, message, details}. Every error also has the fields of OpenAI's APIError: status, type and param.

export type ErrorCode =
  | "bundle_error"
  | "device_error"
  | "request_error"
  | "storage_error"
  | "unavailable"
  | "worker_error";

export type ErrorDetails = Readonly<Record<string, string | number | boolean | null | readonly string[]>>;

export interface ErrorJson {
  readonly code: ErrorCode;
  readonly message: string;
  readonly details: ErrorDetails;
}

export class NearfarError extends Error {
  /** Whether ``value`` has the shape of such an error. Each file of the package has its own copy of these classes. */
  static override [Symbol.hasInstance](value: unknown): boolean {
    if (!Object.hasOwn(this, "kind")) return Function.prototype[Symbol.hasInstance].call(this, value);
    const { kind } = this as unknown as { readonly kind: ErrorCode | null };
    return (
      value instanceof Error &&
      "toJSON" in value &&
      "details" in value &&
      "code" in value &&
      (kind === null || value.code === kind)
    );
  }

  static readonly kind: ErrorCode | null = null;

  constructor(
    readonly code: ErrorCode,
    message: string,
    readonly details: ErrorDetails = {},
    options?: ErrorOptions,
  ) {
    super(message, options);
    this.name = new.target.name;
  }

  /** The HTTP status: 400 if the request is wrong, 503 if it may be sent again later, otherwise 500. */
  get status(): number {
    return this.code === "request_error" ? 400 : this.code === "unavailable" ? 503 : 500;
  }

  /** The error type of OpenAI's API. */
  get type(): "invalid_request_error" | "server_error" {
    return this.code === "request_error" ? "invalid_request_error" : "server_error";
  }

  /** The wrong parameter; null if the error is not about a parameter. */
  get param(): string | null {
    return typeof this.details.param === "string" ? this.details.param : null;
  }

  toJSON(): ErrorJson {
    return { code: this.code, message: this.message, details: this.details };
  }
}

/** An error whose code is the ``kind`` of its class. */
abstract class KnownError extends NearfarError {
  constructor(message: string, details?: ErrorDetails, options?: ErrorOptions) {
    super(new.target.kind ?? "request_error", message, details, options);
  }
}

export class BundleError extends KnownError {
  static override readonly kind: ErrorCode = "bundle_error";
}

export class DeviceError extends KnownError {
  static override readonly kind: ErrorCode = "device_error";
}

export class RequestError extends KnownError {
  static override readonly kind: ErrorCode = "request_error";
}

export class StorageError extends KnownError {
  static override readonly kind: ErrorCode = "storage_error";
}

export class Unavailable extends KnownError {
  static override readonly kind: ErrorCode = "unavailable";
}

export class WorkerError extends KnownError {
  static override readonly kind: ErrorCode = "worker_error";
}

const CLASSES = { BundleError, DeviceError, RequestError, StorageError, Unavailable, WorkerError };
// Minifiers shorten the name of a class, but no text.
for (const [value, type] of Object.entries({ NearfarError, ...CLASSES }))
  Object.defineProperty(type, "name", { value });

/** The error that toJSON returned, with its class. */
export function errorFromJson({ code, message, details }: ErrorJson): NearfarError {
  const known = Object.values(CLASSES).find(({ kind }) => kind === code) ?? RequestError;
  return new known(message, details);
}

/** Whether an error belongs to this tree. */
export function isNearfarError(error: unknown): error is NearfarError {
  return error instanceof NearfarError;
}

/** The message of whatever was thrown. */
export function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
