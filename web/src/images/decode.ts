// Decodes pictures in a page or a worker, as transformers' load_image does: turned upright by their EXIF orientation,
// without the colours' profile, and with the colours of transparent pixels as they are.
//
// The browser decodes files. Its decoders may differ from Python's by a level or two in JPEGs, and more in those for
// print (CMYK); the pixels of PNG, GIF, BMP and lossless WebP files are the same.

import { DeviceError, RequestError, messageOf } from "../errors.js";
import { BOUNDS } from "../shared/attachments.js";
import { damaged, readHeader } from "./header.js";
import type { Pixels } from "./resize.js";

export const MAX_PIXELS = BOUNDS.picture_pixels;

/** Pixels of `getImageData`, or of a library: three bytes each, or four, of which the last is the opacity. */
export interface RawPixels {
  readonly width: number;
  readonly height: number;
  readonly data: Uint8Array | Uint8ClampedArray;
}

/** What can be decoded. A text is an address, such as that of `data:`; a page must be allowed to fetch it. */
export type ImageSource =
  | Blob
  | URL
  | string
  | ImageBitmap
  | HTMLImageElement
  | HTMLCanvasElement
  | OffscreenCanvas
  | RawPixels;

export interface DecodeOptions {
  /** Larger pictures are refused before they are decoded; 50 million without it. */
  readonly maxPixels?: number;
  readonly signal?: AbortSignal;
}

/** The rows that are read at once. */
const STRIP_PIXELS = 4_000_000;

/**
 * The pixels of a picture. Throws RequestError for files that are no pictures, are damaged or animated, or have too many
 * pixels; DeviceError where nothing decodes files, such as in Node; the signal's reason.
 */
export async function decodeImage(source: ImageSource, options: DecodeOptions = {}): Promise<Pixels> {
  const { maxPixels = MAX_PIXELS, signal } = options;
  signal?.throwIfAborted();
  if (isRaw(source)) return opaque(source, maxPixels);
  if (typeof source === "string" || source instanceof URL) {
    const address = String(source);
    // A page may forbid itself to fetch these.
    const file = /^data:/i.test(address) ? dataFile(address) : await fetched(address, signal);
    return decodeImage(file, options);
  }
  if (source instanceof Blob) {
    const header = readHeader(new Uint8Array(await source.arrayBuffer()));
    if (header.animated)
      throw new RequestError("images: the picture is animated, which is not supported; send one of its pictures");
    requireSize(header, maxPixels);
  } else if (isElement(source)) {
    if (/^data:image\/svg|\.svg(?:[?#]|$)/i.test(source.currentSrc || source.src))
      throw new RequestError("images: the picture is an SVG, which has no pixels of its own; convert it to PNG");
    await source.decode().catch((error: unknown) => {
      throw damaged(error);
    });
    requireSize({ width: source.naturalWidth, height: source.naturalHeight }, maxPixels);
  } else requireSize(source, maxPixels);
  const bitmap = await bitmapOf(source);
  try {
    signal?.throwIfAborted();
    requireSize(bitmap, maxPixels);
    return pixelsOf(bitmap);
  } catch (error) {
    if (!(error instanceof DOMException) || error.name !== "SecurityError") throw error;
    throw new RequestError(
      "images: the picture is from another site, which does not let this page read it; load it with the attribute " +
        "crossorigin, from a site that allows it",
      {},
      { cause: error },
    );
  } finally {
    bitmap.close();
  }
}

const isRaw = (source: object | string): source is RawPixels =>
  typeof source === "object" && "data" in source && ArrayBuffer.isView(source.data);

const isElement = (source: object): source is HTMLImageElement => "naturalWidth" in source;

function requireSize({ width, height }: { readonly width: number; readonly height: number }, maxPixels: number): void {
  if (!(width > 0 && height > 0)) throw new RequestError("images: the picture has no pixels; send another one");
  if (width * height > maxPixels)
    throw new RequestError(
      `images: the picture has ${width} x ${height} pixels, and at most ${maxPixels} are allowed; make it smaller`,
      { width, height },
    );
}

/** The file in an address of `data:` (RFC 2397). */
export function dataFile(address: string): Blob {
  const comma = address.indexOf(",");
  const [head, body] = [address.slice(0, comma), address.slice(comma + 1)];
  try {
    if (comma < 0) throw new Error("it has no comma");
    const text = decodeURIComponent(body);
    const bytes = /;base64$/i.test(head) ? Uint8Array.from(atob(text), (byte) => byte.charCodeAt(0)) : text;
    return new Blob([bytes]);
  } catch (error) {
    throw new RequestError(
      `images: the data: address of the picture cannot be read (${messageOf(error)}); write data:image/png;base64,...`,
      {},
      { cause: error },
    );
  }
}

export async function fetched(address: string, signal?: AbortSignal): Promise<Blob> {
  try {
    const response = await fetch(address, signal === undefined ? {} : { signal });
    if (response.ok) return await response.blob();
    throw new Error(`status ${response.status}`);
  } catch (error) {
    signal?.throwIfAborted();
    const shown = address.slice(0, 80);
    throw new RequestError(
      `images: ${shown} cannot be fetched (${messageOf(error)}); check the address, and whether its server allows this page`,
      {},
      { cause: error },
    );
  }
}

async function bitmapOf(source: ImageBitmapSource): Promise<ImageBitmap> {
  if (!("createImageBitmap" in globalThis))
    throw new DeviceError("nothing decodes pictures here; pass {width, height, data} with their pixels");
  try {
    return await createImageBitmap(source, {
      colorSpaceConversion: "none",
      premultiplyAlpha: "none",
      imageOrientation: "from-image",
    });
  } catch (error) {
    throw damaged(error);
  }
}

/** Without the opacity. */
function opaque({ width, height, data }: RawPixels, maxPixels: number): Pixels {
  requireSize({ width, height }, maxPixels);
  const channels = data.length / (width * height);
  if (channels === 3) return { width, height, data };
  if (channels !== 4)
    throw new RequestError(
      `images: ${data.length} bytes are not 3 or 4 for each of ${width} x ${height} pixels; pass all of them`,
    );
  const pixels = new Uint8Array(width * height * 3);
  copyColours(data, pixels, 0);
  return { width, height, data: pixels };
}

/** Copies pixels of four bytes to ``at``, and returns whether all are opaque. */
function copyColours(from: Uint8Array | Uint8ClampedArray, to: Uint8Array, at: number): boolean {
  let least = 255;
  for (let index = 0; index < from.length; index += 4) {
    to[at++] = Number(from[index]);
    to[at++] = Number(from[index + 1]);
    to[at++] = Number(from[index + 2]);
    least = Math.min(least, Number(from[index + 3]));
  }
  return least === 255;
}

/** Throws DeviceError in a browser that cannot read them. */
export function pixelsOf(bitmap: ImageBitmap): Pixels {
  const { width, height } = bitmap;
  if (!("OffscreenCanvas" in globalThis))
    throw new DeviceError(
      "this browser has no OffscreenCanvas, which reads the pixels of pictures; pass {width, height, data} with them",
    );
  const data = new Uint8Array(width * height * 3);
  const rows = Math.max(1, Math.floor(STRIP_PIXELS / width));
  const context = new OffscreenCanvas(width, Math.min(rows, height)).getContext("2d", { willReadFrequently: true });
  if (context === null) throw new DeviceError("this browser has no canvas, which reads the pixels of pictures");
  for (let top = 0; top < height; top += rows) {
    const strip = Math.min(rows, height - top);
    context.clearRect(0, 0, width, strip);
    context.drawImage(bitmap, 0, -top);
    const { data: read } = context.getImageData(0, 0, width, strip);
    // A canvas multiplies colours by their opacity, so those of transparent pixels are lost.
    if (!copyColours(read, data, top * width * 3)) return transparentPixels(bitmap);
  }
  return { width, height, data };
}

/** The colours of a bitmap with transparent pixels, read from a texture, which keeps them. */
function transparentPixels(bitmap: ImageBitmap): Pixels {
  const { width, height } = bitmap;
  const gl = new OffscreenCanvas(1, 1).getContext("webgl2");
  if (gl === null || Math.max(width, height) > Number(gl.getParameter(gl.MAX_TEXTURE_SIZE)))
    throw new DeviceError(
      "the picture has transparent pixels, which this browser cannot read exactly; save it without transparency",
    );
  try {
    const [texture, frame] = [gl.createTexture(), gl.createFramebuffer()];
    gl.bindTexture(gl.TEXTURE_2D, texture);
    gl.pixelStorei(gl.UNPACK_COLORSPACE_CONVERSION_WEBGL, gl.NONE);
    gl.texImage2D(gl.TEXTURE_2D, 0, gl.RGBA, gl.RGBA, gl.UNSIGNED_BYTE, bitmap);
    gl.bindFramebuffer(gl.FRAMEBUFFER, frame);
    gl.framebufferTexture2D(gl.FRAMEBUFFER, gl.COLOR_ATTACHMENT0, gl.TEXTURE_2D, texture, 0);
    const data = new Uint8Array(width * height * 3);
    const rows = Math.max(1, Math.floor(STRIP_PIXELS / width));
    for (let top = 0; top < height; top += rows) {
      const strip = new Uint8Array(Math.min(rows, height - top) * width * 4);
      gl.readPixels(0, top, width, strip.length / 4 / width, gl.RGBA, gl.UNSIGNED_BYTE, strip);
      copyColours(strip, data, top * width * 3);
    }
    if (gl.getError() !== gl.NO_ERROR) throw new DeviceError("the pixels of the picture cannot be read; send it again");
    return { width, height, data };
  } finally {
    gl.getExtension("WEBGL_lose_context")?.loseContext();
  }
}
