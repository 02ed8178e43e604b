// Files that the user drops into the page, pastes or chooses. Their text becomes part of the next message; pictures, videos
// and recordings are read by a model that sees or hears, or a transcriber writes recordings down.

import type { ChatCompletionContentPart } from "../src/api/types.js";
import { Camera } from "./camera.js";
import { takeFiles } from "./dropped_files.js";
import { element, make } from "./elements.js";
import type { EngineInfo } from "./model.js";
import { messageOf } from "../src/errors.js";
import { formatBytes } from "../src/format_bytes.js";
import { BOUNDS } from "../src/shared/attachments.js";
import { decodeText, notText, unreadableKind } from "./text_encoding.js";

export interface Attachment {
  readonly name: string;
  /** "" for a picture, a video and a recording. */
  readonly text: string;
  /** The address of a picture, of `data:`; likewise of a video and a recording. */
  readonly picture?: string;
  readonly video?: string;
  readonly sound?: string;
}

/** A message for a model: a text, or a list of parts with pictures, videos and recordings. */
export type MessageContent = string | readonly ChatCompletionContentPart[];

/** Photos of phones are smaller. Of longer videos, models read no more frames. */
const MOST_BYTES = { picture: 20_000_000, video: BOUNDS.video_bytes, sound: BOUNDS.sound_bytes };
type Medium = keyof typeof MOST_BYTES;
/** A file of TypeScript has the type of a transport stream (.ts). */
const VIDEO = /^video\/(mp4|quicktime|webm|x-matroska)$/;
/** The types of sound by their names, which browsers do not always know. Playlists are texts. */
const SOUND = /^audio\/(?!.*mpegurl)/;
const SOUND_TYPES: Readonly<Record<string, string>> = {
  wav: "audio/wav",
  mp3: "audio/mpeg",
  m4a: "audio/mp4",
  aac: "audio/aac",
  flac: "audio/flac",
  ogg: "audio/ogg",
  oga: "audio/ogg",
  opus: "audio/ogg",
};

/** Few models read more than this at once. */
export const MOST_ATTACHED_BYTES = 256_000;

/** Throws an Error with a message for the user if the file is too large or is not text. */
export async function readTextFile(file: File): Promise<Attachment> {
  if (file.size > MOST_ATTACHED_BYTES) {
    throw new Error(
      `${file.name} has ${formatBytes(file.size)}; a file may have at most ${MOST_ATTACHED_BYTES / 1000} ` +
        "kB. Attach a smaller part of it.",
    );
  }
  const bytes = new Uint8Array(await file.arrayBuffer());
  const refused = unreadableKind(file.name, bytes);
  const text = refused === null ? decodeText(bytes, { html: /\.x?html?$/i.test(file.name) }) : null;
  if (text !== null) return { name: file.name, text };
  throw new Error(`${file.name} ${refused ?? notText(bytes)}.`);
}

/** The type of a recording; null for another file. */
export function soundType({ name, type }: Pick<File, "name" | "type">): string | null {
  if (SOUND.test(type)) return type;
  return SOUND_TYPES[/\.([a-z0-9]+)$/i.exec(name)?.[1]?.toLowerCase() ?? ""] ?? null;
}

/** Throws an Error with a message for the user if it is too large, or nothing decodes it. */
async function readSoundFile(file: File, type: string): Promise<Attachment> {
  const read = await readMedium(new File([file], file.name, { type }), "sound");
  const { readSound } = await import("../src/audio/read_sound.js");
  try {
    await readSound(file, { maxSeconds: BOUNDS.sound_seconds });
  } catch (error) {
    throw new Error(`${file.name} ${messageOf(error).replace(/^audio: /, "")}.`, { cause: error });
  }
  return read;
}

/** Throws an Error with a message for the user if the picture, the video or the recording is too large. */
export async function readMedium(file: File, kind: Medium): Promise<Attachment> {
  const most = MOST_BYTES[kind];
  if (file.size > most) {
    const word = kind === "sound" ? "recording" : kind;
    throw new Error(
      `${file.name} has ${formatBytes(file.size)}; a ${word} may have at most ${formatBytes(most)}. Make it smaller.`,
    );
  }
  const address = await new Promise<string>((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => {
      resolve(reader.result as string);
    };
    reader.onerror = () => {
      reject(new Error(`${file.name} cannot be read.`));
    };
    reader.readAsDataURL(file);
  });
  return { name: file.name, text: "", [kind]: address };
}

/**
 * A message with the text of its files, each in a code block whose fence is longer than any in the file. Its pictures,
 * videos and recordings come first.
 */
export function withAttachments(question: string, attachments: readonly Attachment[]): MessageContent {
  const media = attachments.flatMap(({ picture, video, sound }): readonly ChatCompletionContentPart[] => [
    ...(picture === undefined ? [] : [{ type: "image_url", image_url: { url: picture } }]),
    ...(video === undefined ? [] : [{ type: "video_url", video_url: { url: video } }]),
    ...(sound === undefined ? [] : [soundPart(sound)]),
  ]);
  const text = withTexts(
    question,
    attachments.filter((attachment) => mediumOf(attachment) === undefined),
  );
  return media.length === 0 ? text : [...media, { type: "text", text }];
}

/** Servers read WAV and MP3; this device what the browser decodes. */
function soundPart(url: string): ChatCompletionContentPart {
  const [head = "", data = ""] = url.split(",", 2);
  const type = /^data:([^;]*)/.exec(head)?.[1] ?? "";
  const format = type.includes("wav") ? "wav" : /^audio\/(?:mpeg|mp3)$/.test(type) ? "mp3" : null;
  if (format !== null) return { type: "input_audio", input_audio: { data, format } };
  const bytes = Uint8Array.from(atob(data), (byte) => byte.charCodeAt(0));
  return { type: "audio", audio: new Blob([bytes], { type }) };
}

const mediumOf = ({ picture, video, sound }: Attachment): string | undefined => picture ?? video ?? sound;

function withTexts(question: string, attachments: readonly Attachment[]): string {
  const parts = attachments.map(({ name, text }) => {
    const longest = Math.max(2, ...[...text.matchAll(/`+/g)].map(([run]) => run.length));
    const fence = "`".repeat(longest + 1);
    return `${name}:\n${fence}\n${text}\n${fence}`;
  });
  return [...parts, question].join("\n\n");
}

type Reads = Pick<EngineInfo, "images" | "video" | "sound">;

/** The files that are attached to the message being typed. */
export class AttachmentTray {
  readonly #tray = element("attachments", HTMLUListElement);
  readonly #problem = element("attachment-problem", HTMLElement);
  #attachments: readonly Attachment[] = [];
  readonly #camera = new Camera(
    (picture) => void this.add([picture]),
    (error) => {
      this.report(error);
    },
  );
  #reads: Reads = { images: false, video: false, sound: false };

  /** ``changed`` is called when the files have changed. */
  constructor(private readonly changed: () => void) {
    const input = element("attach-file", HTMLInputElement);
    element("attach", HTMLButtonElement).addEventListener("click", () => {
      input.click();
    });
    takeFiles(input, (files) => void this.add(files));
    document.addEventListener("paste", (event) => {
      // A copied text may be there as a picture, too.
      const { files = [], types = [] } = event.clipboardData ?? {};
      if (files.length === 0 || types.includes("text/plain")) return;
      event.preventDefault();
      void this.add([...files]);
    });
  }

  /** Whether this device reads pictures, videos and recordings. */
  set reads(reads: Reads) {
    this.#reads = reads;
    void this.#camera.offer(reads.images);
  }

  get attachments(): readonly Attachment[] {
    return this.#attachments;
  }

  set(attachments: readonly Attachment[]): void {
    this.#attachments = attachments;
    this.#problem.hidden = true;
    this.show();
  }

  private async add(files: readonly File[]): Promise<void> {
    this.#problem.hidden = true;
    for (const file of files) {
      try {
        const attachment = await this.read(file);
        // Pasted pictures have the same name.
        const isOther = (other: Attachment): boolean =>
          other.name !== attachment.name || mediumOf(other) !== mediumOf(attachment);
        this.#attachments = [...this.#attachments.filter(isOther), attachment];
      } catch (error) {
        this.report(error);
      }
    }
    this.show();
    element("prompt", HTMLTextAreaElement).focus();
  }

  private async read(file: File): Promise<Attachment> {
    const { images, video, sound } = this.#reads;
    if (images && /^image\/(?!svg)/.test(file.type)) return readMedium(file, "picture");
    const heard = VIDEO.test(file.type) ? null : soundType(file);
    if (heard !== null && sound) return readSoundFile(file, heard);
    if (heard !== null)
      throw new Error(
        `${file.name} is a recording, and nothing on this device hears it. Open this page with ?transcriber= and the ` +
          "folder of a model such as Whisper, or attach its text.",
      );
    if (!VIDEO.test(file.type)) return readTextFile(file);
    if (video) return readMedium(file, "video");
    throw new Error(`${file.name} is a video, which the model on this device does not read. Attach pictures of it.`);
  }

  /** Say why something was not attached, or not heard. */
  report(error: unknown): void {
    this.#problem.textContent = error instanceof Error ? error.message : String(error);
    this.#problem.hidden = false;
  }

  private show(): void {
    this.changed();
    this.#tray.hidden = this.#attachments.length === 0;
    this.#tray.replaceChildren(
      ...this.#attachments.map((attachment) => {
        const remove = make("button", "", "×");
        remove.type = "button";
        remove.setAttribute("aria-label", `Remove ${attachment.name}`);
        remove.addEventListener("click", () => {
          this.set(this.#attachments.filter((other) => other !== attachment));
        });
        return make("li", "chip", ...attachmentParts(attachment), remove);
      }),
    );
  }
}

/** What the page shows of a file: the picture, a player of the video or the recording, or the name and size of its text. */
export function attachmentParts({ name, text, picture, video, sound }: Attachment): readonly HTMLElement[] {
  if (sound !== undefined) {
    const player = make("audio", "sound");
    Object.assign(player, { src: sound, controls: true, preload: "metadata" });
    player.setAttribute("aria-label", name);
    return [player];
  }
  if (video !== undefined) {
    const player = make("video", "picture");
    Object.assign(player, { src: video, controls: true, playsInline: true, preload: "metadata" });
    player.setAttribute("aria-label", name);
    return [player];
  }
  if (picture === undefined)
    return [make("span", "", `${name} · ${formatBytes(new TextEncoder().encode(text).length)}`)];
  const shown = make("img", "picture");
  shown.src = picture;
  shown.alt = name;
  return [shown];
}
