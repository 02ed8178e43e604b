// Files that the user drops into the page, pastes or chooses. Their text becomes part of the next message, and pictures
// and videos are shown to a model that reads them.

import type { ChatCompletionContentPart } from "../src/api/types.js";
import { Camera } from "./camera.js";
import { takeFiles } from "./dropped_files.js";
import { element, make } from "./elements.js";
import type { EngineInfo } from "./model.js";
import { formatBytes } from "../src/format_bytes.js";
import { BOUNDS } from "../src/shared/attachments.js";
import { decodeText, notText, unreadableKind } from "./text_encoding.js";

export interface Attachment {
  readonly name: string;
  /** "" for a picture and a video. */
  readonly text: string;
  /** The address of a picture, of `data:`; likewise of a video. */
  readonly picture?: string;
  readonly video?: string;
}

/** A message for a model: a text, or a list of parts with pictures and videos. */
export type MessageContent = string | readonly ChatCompletionContentPart[];

/** Photos of phones are smaller. Of longer videos, models read no more frames. */
const MOST_BYTES = { picture: 20_000_000, video: BOUNDS.video_bytes };
/** A file of TypeScript has the type of a transport stream (.ts). */
const VIDEO = /^video\/(mp4|quicktime|webm|x-matroska)$/;

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

/** Throws an Error with a message for the user if the picture or video is too large. */
export async function readMedium(file: File, kind: "picture" | "video"): Promise<Attachment> {
  const most = MOST_BYTES[kind];
  if (file.size > most) {
    throw new Error(
      `${file.name} has ${formatBytes(file.size)}; a ${kind} may have at most ${formatBytes(most)}. Make it smaller.`,
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
 * A message with the text of its files, each in a code block whose fence is longer than any in the file. Its pictures
 * and videos come first.
 */
export function withAttachments(question: string, attachments: readonly Attachment[]): MessageContent {
  const media = attachments.flatMap(({ picture, video }): readonly ChatCompletionContentPart[] => [
    ...(picture === undefined ? [] : [{ type: "image_url", image_url: { url: picture } }]),
    ...(video === undefined ? [] : [{ type: "video_url", video_url: { url: video } }]),
  ]);
  const text = withTexts(
    question,
    attachments.filter(({ picture, video }) => picture === undefined && video === undefined),
  );
  return media.length === 0 ? text : [...media, { type: "text", text }];
}

function withTexts(question: string, attachments: readonly Attachment[]): string {
  const parts = attachments.map(({ name, text }) => {
    const longest = Math.max(2, ...[...text.matchAll(/`+/g)].map(([run]) => run.length));
    const fence = "`".repeat(longest + 1);
    return `${name}:\n${fence}\n${text}\n${fence}`;
  });
  return [...parts, question].join("\n\n");
}

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
  #reads: Pick<EngineInfo, "images" | "video"> = { images: false, video: false };

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

  /** Whether the model of this device reads pictures, and videos. */
  set reads(reads: Pick<EngineInfo, "images" | "video">) {
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
        const isOther = ({ name, picture, video }: Attachment): boolean =>
          name !== attachment.name || picture !== attachment.picture || video !== attachment.video;
        this.#attachments = [...this.#attachments.filter(isOther), attachment];
      } catch (error) {
        this.report(error);
      }
    }
    this.show();
    element("prompt", HTMLTextAreaElement).focus();
  }

  private async read(file: File): Promise<Attachment> {
    const { images, video } = this.#reads;
    if (images && /^image\/(?!svg)/.test(file.type)) return readMedium(file, "picture");
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

/** What the page shows of a file: the picture, a player of the video, or the name and the size of its text. */
export function attachmentParts({ name, text, picture, video }: Attachment): readonly HTMLElement[] {
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
