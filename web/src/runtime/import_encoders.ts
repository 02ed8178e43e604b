// Imports encoders.js, which only bundles of embedding models, rerankers and classifiers need.

import type { EncodersModule } from "../encoders/index.js";
import { DeviceError, messageOf } from "../errors.js";

/** Throws DeviceError if encoders.js cannot be imported. */
export async function importEncoders(): Promise<EncodersModule> {
  try {
    return (await import("../encoders/index.js")).encoders;
  } catch (error) {
    throw new DeviceError(
      `encoders.js cannot be loaded (${messageOf(error)}); serve it beside the package's other files; a service ` +
        "worker must import it itself and call serveEngine(self, { encoders })",
      {},
      { cause: error },
    );
  }
}
