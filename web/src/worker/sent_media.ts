// The pictures and recordings of messages as a worker can read them: addresses are the page's own, only the page can be
// sure of those of Blobs, and it decodes what is not a WAV file.

import type { ChatCompletionContentPart } from "../api/types.js";
import { RequestError, messageOf } from "../errors.js";
import type { SentSound } from "./sent_sound.js";

interface Nested extends Partial<ChatCompletionContentPart> {
  readonly messages?: unknown;
  readonly content?: unknown;
}

/** Messages, or parameters with some. Throws RequestError for a picture that cannot be sent, and what ``readable`` throws. */
export async function withSentMedia(value: unknown, readable: SentSound): Promise<unknown> {
  const within = (inner: unknown): Promise<unknown> => withSentMedia(inner, readable);
  if (Array.isArray(value)) return Promise.all(value.map(within));
  const { type, image_url: address, image, audio, input_audio: sound, messages, content } = Object(value) as Nested;
  if (Array.isArray(messages)) return { ...Object(value), messages: await within(messages) };
  if (Array.isArray(content)) return { ...Object(value), content: await within(content) };
  if (type === "audio" && audio !== undefined) return { type, audio: await readable(audio, {}) };
  if (type === "input_audio" && sound?.format === "mp3" && /^[A-Za-z0-9+/]+=*$/.test(sound.data))
    return {
      type: "audio",
      audio: await readable(
        Uint8Array.from(atob(sound.data), (byte) => byte.charCodeAt(0)),
        {},
      ),
    };
  if (type === "image_url" && typeof address?.url === "string") return sent(address.url);
  const { video_url: film, frames } = Object(value) as Nested;
  if (type === "video_url" && typeof film?.url === "string") return sent(film.url, "video");
  if (type === "video" && Array.isArray(frames))
    return {
      ...Object(value),
      frames: await Promise.all(
        frames.map(async (frame: unknown) => {
          const url = typeof frame === "string" ? frame : null;
          const { image, image_url: kept } = url === null ? { image: frame } : await sent(url);
          await within({ type: "image", image });
          return image ?? kept?.url;
        }),
      ),
    };
  if (type === "image" && ("nodeName" in Object(image) || "transferToImageBitmap" in Object(image)))
    throw new RequestError(
      "An element or a canvas cannot be sent to a worker; pass a Blob, or what createImageBitmap makes of it",
      { param: "messages" },
    );
  return value;
}

async function sent(url: string, kind: "image" | "video" = "image"): Promise<ChatCompletionContentPart> {
  if (url.startsWith("data:")) return { type: `${kind}_url`, [`${kind}_url`]: { url } };
  if (!url.startsWith("blob:")) {
    const base = typeof document === "undefined" ? undefined : document.baseURI;
    const full = URL.canParse(url, base) ? new URL(url, base).href : url;
    return { type: `${kind}_url`, [`${kind}_url`]: { url: full } };
  }
  // The page may revoke the address as soon as the call returns.
  const response = fetch(url).catch((error: unknown) => {
    throw new RequestError(`${url} cannot be fetched (${messageOf(error)}); send the Blob, or another address`, {
      param: "messages",
    });
  });
  return { type: kind, [kind]: await (await response).blob() };
}
