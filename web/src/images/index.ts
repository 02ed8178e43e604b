// Pictures, and sounds of models that hear: from a file, an element, pixels or samples to what a model's tower reads. This
// is a separate file, images.js, which an engine imports with a model that sees or hears. It runs in pages and workers; in
// Node, pass pixels or samples.

import { requireImages } from "./patches.js";
import type { PictureParts } from "./pictures.js";
import { Pictures } from "./pictures.js";
import { requireSounds, testSound } from "./sounds.js";
import { testPatches, visionDeviation } from "./vision_test.js";

export type { DecodeOptions, ImageSource, RawPixels } from "./decode.js";
export { MAX_PIXELS, decodeImage } from "./decode.js";
export type { PreparedImage } from "./patches.js";
export { imageKey, prepareImage } from "./patches.js";
export type { Pixels } from "./resize.js";
export { resizeU8 } from "./resize.js";
export { sentMessages } from "./stored_messages.js";
export type { ImageSpec } from "../runtime/manifest.js";
export type { ImageLayout } from "../shared/images/layout.js";
export { imageLayout } from "../shared/images/layout.js";

export interface ImagesModule {
  readonly open: (parts: PictureParts) => Pictures;
  readonly requireImages: typeof requireImages;
  readonly requireSounds: typeof requireSounds;
  readonly testPatches: typeof testPatches;
  readonly testSound: typeof testSound;
  readonly visionDeviation: typeof visionDeviation;
}

/**
 * The option `images` of Engine.load and serveEngine, for scripts that cannot import this file later, such as service
 * workers.
 */
export const images: ImagesModule = {
  open: (parts) => new Pictures(parts),
  requireImages,
  requireSounds,
  testPatches,
  testSound,
  visionDeviation,
};
