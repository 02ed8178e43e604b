// Every error that a user of the package can meet, in one tree.
//
//     NearfarError
//     ├── BundleError    a bundle cannot be fetched, is corrupt, or is of another format version
//     ├── DeviceError    this browser or machine lacks what the bundle needs, or the device was lost
//     ├── RequestError   a prompt, token list or option is out of range
//     ├── StorageError   this browser's storage has no room for the bundle, cannot be written, or is in use
//     ├── Unavailable    nobody may or can answer now: no side is left, or the far one cannot be reached or has too much to do
//     └── WorkerError    the worker that the engine runs in cannot be reached, or is gone
//
// A message says where, what and what to do. Across a worker or HTTP an error travels as {code, message, details}. Every error has the fields of
// OpenAI's APIError besides: status, type and param.

export type ErrorCode =
  "bundle_error" | "device_error" | "request_error" | "storage_error" | "unavailable" | "worker_error";

export type ErrorDetails = Readonly<Record<string, string | number | boolean | null | readonly string[]>>;

export interface ErrorJson {
  readonly code: ErrorCode;
  readonly message: string;
  readonly details: ErrorDetails;
}

export class NearfarError extends Error {
  /** An error of this kind by its shape, not its class: the package's files each have their own copy of these classes. */
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
  }

  /** As over HTTP: 400 where the request is at fault, 503 where it may be asked again later, else 500. */
  get status(): number {
    return this.code === "request_error" ? 400 : this.code === "unavailable" ? 503 : 500;
  }

  /** OpenAI's kinds of errors. */
  get type(): "invalid_request_error" | "server_error" {
    return this.code === "request_error" ? "invalid_request_error" : "server_error";
  }

  /** The parameter at fault, where it is one. */
  get param(): string | null {
    return typeof this.details.param === "string" ? this.details.param : null;
  }

  toJSON(): ErrorJson {
    return { code: this.code, message: this.message, details: this.details };
  }
}

export class BundleError extends NearfarError {
  static override readonly kind: ErrorCode = "bundle_error";
  override readonly name = "BundleError";

  constructor(message: string, details?: ErrorDetails, options?: ErrorOptions) {
    super("bundle_error", message, details, options);
  }
}

export class DeviceError extends NearfarError {
  static override readonly kind: ErrorCode = "device_error";
  override readonly name = "DeviceError";

  constructor(message: string, details?: ErrorDetails, options?: ErrorOptions) {
    super("device_error", message, details, options);
  }
}

export class RequestError extends NearfarError {
  static override readonly kind: ErrorCode = "request_error";
  override readonly name = "RequestError";

  constructor(message: string, details?: ErrorDetails, options?: ErrorOptions) {
    super("request_error", message, details, options);
  }
}

export class StorageError extends NearfarError {
  static override readonly kind: ErrorCode = "storage_error";
  override readonly name = "StorageError";

  constructor(message: string, details?: ErrorDetails, options?: ErrorOptions) {
    super("storage_error", message, details, options);
  }
}

export class Unavailable extends NearfarError {
  static override readonly kind: ErrorCode = "unavailable";
  override readonly name = "Unavailable";

  constructor(message: string, details?: ErrorDetails, options?: ErrorOptions) {
    super("unavailable", message, details, options);
  }
}

export class WorkerError extends NearfarError {
  static override readonly kind: ErrorCode = "worker_error";
  override readonly name = "WorkerError";

  constructor(message: string, details?: ErrorDetails, options?: ErrorOptions) {
    super("worker_error", message, details, options);
  }
}

/** The error that toJSON was called on, as the same class. */
export function errorFromJson({ code, message, details }: ErrorJson): NearfarError {
  const classes = {
    bundle_error: BundleError,
    device_error: DeviceError,
    request_error: RequestError,
    storage_error: StorageError,
    unavailable: Unavailable,
    worker_error: WorkerError,
  };
  return new (classes satisfies Record<ErrorCode, unknown>)[code](message, details);
}

/** Whether an error is of this tree. */
export function isNearfarError(error: unknown): error is NearfarError {
  return error instanceof NearfarError;
}

/** The message of whatever was thrown. */
export function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
