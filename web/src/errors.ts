// Every error that a user of the package can meet, in one tree.
//
//     NearfarError
//     ├── BundleError    a bundle cannot be fetched, is corrupt, or is of another format version
//     ├── DeviceError    this browser or machine lacks what the bundle needs, or the device was lost
//     ├── RequestError   a prompt, token list or option is out of range
//     └── StorageError   this browser's storage has no room for the bundle, cannot be written, or is in use
//
// A message says where, what and what to do. Across a worker or HTTP an error travels as {code, message, details}.

export type ErrorCode = "bundle_error" | "device_error" | "request_error" | "storage_error";

export type ErrorDetails = Readonly<Record<string, string | number | boolean | null | readonly string[]>>;

export interface ErrorJson {
  readonly code: ErrorCode;
  readonly message: string;
  readonly details: ErrorDetails;
}

export class NearfarError extends Error {
  constructor(
    readonly code: ErrorCode,
    message: string,
    readonly details: ErrorDetails = {},
    options?: ErrorOptions,
  ) {
    super(message, options);
  }

  toJSON(): ErrorJson {
    return { code: this.code, message: this.message, details: this.details };
  }
}

export class BundleError extends NearfarError {
  override readonly name = "BundleError";

  constructor(message: string, details?: ErrorDetails, options?: ErrorOptions) {
    super("bundle_error", message, details, options);
  }
}

export class DeviceError extends NearfarError {
  override readonly name = "DeviceError";

  constructor(message: string, details?: ErrorDetails, options?: ErrorOptions) {
    super("device_error", message, details, options);
  }
}

export class RequestError extends NearfarError {
  override readonly name = "RequestError";

  constructor(message: string, details?: ErrorDetails, options?: ErrorOptions) {
    super("request_error", message, details, options);
  }
}

export class StorageError extends NearfarError {
  override readonly name = "StorageError";

  constructor(message: string, details?: ErrorDetails, options?: ErrorOptions) {
    super("storage_error", message, details, options);
  }
}

/** The message of whatever was thrown. */
export function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
