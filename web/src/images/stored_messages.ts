// Messages as JSON can hold them: pictures that the page has become addresses with their bytes.

import type { ChatCompletionContentPart, ChatCompletionMessageParam } from "../api/types.js";
import { DeviceError, RequestError, messageOf } from "../errors.js";
import type { Message } from "../text/chat_template.js";
import type { ImageSource } from "./decode.js";
import { decodeImage } from "./decode.js";

type ChatMessage = Message | ChatCompletionMessageParam;

/** Throws RequestError for a picture that is not there any more, and DeviceError where nothing writes files of pictures. */
export async function storedMessages<T extends ChatMessage>(messages: readonly T[]): Promise<readonly T[]> {
  return Promise.all(
    messages.map(async (message) =>
      Array.isArray(message.content)
        ? { ...message, content: await Promise.all((message.content as ChatCompletionContentPart[]).map(stored)) }
        : message,
    ),
  );
}

/** The same for a server. Throws RequestError for a picture that cannot be sent, for which no server is to blame. */
export async function sentMessages(
  messages: readonly ChatCompletionMessageParam[],
): Promise<readonly ChatCompletionMessageParam[]> {
  try {
    return await storedMessages(messages);
  } catch (error) {
    throw new RequestError(`A picture cannot be sent: ${messageOf(error)}`, { param: "messages" }, { cause: error });
  }
}

async function stored(part: ChatCompletionContentPart): Promise<ChatCompletionContentPart> {
  const { image_url: address, image, video, video_url: film, frames } = part;
  const clip = /^blob:/i.test(String(film?.url)) ? film?.url : video;
  if (clip !== undefined) return { type: "video_url", video_url: { url: await dataUrl(clip, "video/webm") } };
  if (frames !== undefined)
    return { ...part, frames: await Promise.all(frames.map(async (frame) => dataUrl(frame, "image/png"))) };
  // The address of a Blob ends with the page.
  const source: ImageSource | undefined = /^blob:/i.test(String(address?.url)) ? address?.url : image;
  if (source === undefined) return part;
  return { type: "image_url", image_url: { url: await dataUrl(source) } };
}

async function dataUrl(source: ImageSource, type = "image/png"): Promise<string> {
  const file =
    source instanceof Blob ? source : typeof source === "string" ? await blobAt(source) : await pngOf(source);
  const bytes = new Uint8Array(await file.arrayBuffer());
  let text = "";
  for (const byte of bytes) text += String.fromCharCode(byte);
  return `data:${file.type || type};base64,${btoa(text)}`;
}

async function blobAt(address: string): Promise<Blob> {
  const gone = (error?: unknown): never => {
    throw new RequestError(
      `the picture ${address} is not there any more; remove it, or send it again`,
      {},
      { cause: error },
    );
  };
  return (await fetch(address).catch(gone)).blob();
}

/** Its pixels, exactly. */
async function pngOf(source: ImageSource): Promise<Blob> {
  if (!("OffscreenCanvas" in globalThis))
    throw new DeviceError("nothing writes pictures here; send them as addresses of data:");
  const { width, height, data } = await decodeImage(source);
  const pixels = new Uint8ClampedArray(width * height * 4).fill(255);
  for (let pixel = 0; pixel < width * height; pixel++) pixels.set(data.subarray(pixel * 3, pixel * 3 + 3), pixel * 4);
  const canvas = new OffscreenCanvas(width, height);
  canvas.getContext("2d")?.putImageData(new ImageData(pixels, width, height), 0, 0);
  return canvas.convertToBlob({ type: "image/png" });
}
