// The health of a device: after its first failure, every later use fails with the same error.

import type { ErrorDetails } from "../errors.js";
import { DeviceError, NearfarError, messageOf } from "../errors.js";

export class Health {
  /** Resolves when the device is lost, also when it is destroyed. */
  readonly lost: Promise<DeviceError>;
  #problem: DeviceError | null = null;

  constructor(device: GPUDevice) {
    this.lost = device.lost.then(({ reason, message }) =>
      this.fail(deviceError(`was lost (${reason}: ${message})`, { reason })),
    );
    device.addEventListener("uncapturederror", ({ error }) => {
      this.fail(deviceError(`reports an error (${error.message})`));
    });
  }

  /** Record an error. Returns the first one. */
  fail(error: DeviceError): DeviceError {
    return (this.#problem ??= error);
  }

  /** Throws the error of a device that has failed. */
  require(): void {
    if (this.#problem !== null) throw this.#problem;
  }

  /** Wait for a result of the device. Throws the error of the device if it failed. */
  async result<T>(reading: Promise<T>): Promise<T> {
    try {
      const value = await reading;
      this.require();
      return value;
    } catch (error) {
      if (error instanceof NearfarError) throw error;
      throw this.#problem ?? deviceError(`failed (${messageOf(error)})`, {}, { cause: error });
    }
  }
}

function deviceError(what: string, details?: ErrorDetails, options?: ErrorOptions): DeviceError {
  return new DeviceError(`The WebGPU device ${what}; load the model again`, details, options);
}
