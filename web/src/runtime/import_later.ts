// Imports the package's files that only some bundles need: encoders.js those of embedding models, rerankers and
// classifiers, experts.js mixtures whose experts do not fit on the device, images.js models that see pictures.

import type { EncodersModule } from "../encoders/index.js";
import { DeviceError, messageOf } from "../errors.js";
import type { ExpertsModule } from "../experts/index.js";
import type { ImagesModule } from "../images/index.js";

/** Throws DeviceError if encoders.js cannot be imported. */
export async function importEncoders(): Promise<EncodersModule> {
  const advice = "must import it itself and call serveEngine(self, { encoders })";
  return (await imported("encoders.js", advice, import("../encoders/index.js"))).encoders;
}

/** Throws DeviceError if experts.js cannot be imported. */
export async function importExperts(): Promise<ExpertsModule> {
  const advice = "cannot import it, and needs memory for all experts";
  return (await imported("experts.js", advice, import("../experts/index.js"))).experts;
}

/** Throws DeviceError if images.js cannot be imported. */
export async function importImages(): Promise<ImagesModule> {
  const advice = "must import it itself and call serveEngine(self, { images })";
  return (await imported("images.js", advice, import("../images/index.js"))).images;
}

async function imported<T>(file: string, advice: string, importing: Promise<T>): Promise<T> {
  try {
    return await importing;
  } catch (error) {
    throw new DeviceError(
      `${file} cannot be loaded (${messageOf(error)}); serve it beside the package's other files; a service worker ` +
        advice,
      {},
      { cause: error },
    );
  }
}
