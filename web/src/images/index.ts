// Pictures: from a file, an element or pixels to what a model's tower reads. This is a separate file, images.js, which an
// engine imports for the first picture. It runs in pages and workers; in Node, pass pixels.

export type { DecodeOptions, ImageSource, RawPixels } from "./decode.js";
export { MAX_PIXELS, decodeImage } from "./decode.js";
export type { PreparedImage } from "./patches.js";
export { imageKey, prepareImage } from "./patches.js";
export type { Pixels } from "./resize.js";
export { resizeU8 } from "./resize.js";
export type { ImageSpec } from "../runtime/manifest.js";
export type { ImageLayout } from "../shared/images/layout.js";
export { imageLayout } from "../shared/images/layout.js";
