// Files that the user drops into the page, pastes or chooses. Their text becomes part of the next message, and pictures
// are shown to a model that sees.

import type { ChatCompletionContentPart } from "../src/api/types.js";
import { Camera } from "./camera.js";
import { takeFiles } from "./dropped_files.js";
import { element, make } from "./elements.js";
import { formatBytes } from "../src/format_bytes.js";
import { decodeText, notText, unreadableKind } from "./text_encoding.js";

export interface Attachment {
  readonly name: string;
  /** "" for a picture. */
  readonly text: string;
  /** The address of a picture, of `data:`. */
  readonly picture?: string;
}

/** A message for a model: a text, or a list of parts with pictures. */
export type MessageContent = string | readonly ChatCompletionContentPart[];

/** Photos of phones are smaller. */
const MOST_PICTURE_BYTES = 20_000_000;

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

/** Throws an Error with a message for the user if the picture is too large. */
export async function readPicture(file: File): Promise<Attachment> {
  if (file.size > MOST_PICTURE_BYTES) {
    throw new Error(
      `${file.name} has ${formatBytes(file.size)}; a picture may have at most ${MOST_PICTURE_BYTES / 1e6} MB. ` +
        "Make it smaller.",
    );
  }
  const picture = await new Promise<string>((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => {
      resolve(reader.result as string);
    };
    reader.onerror = () => {
      reject(new Error(`${file.name} cannot be read.`));
    };
    reader.readAsDataURL(file);
  });
  return { name: file.name, text: "", picture };
}

/**
 * A message with the text of its files, each in a code block whose fence is longer than any in the file. Its pictures
 * come first.
 */
export function withAttachments(question: string, attachments: readonly Attachment[]): MessageContent {
  const pictures = attachments.flatMap(({ picture }) => (picture === undefined ? [] : [picture]));
  const text = withTexts(
    question,
    attachments.filter(({ picture }) => picture === undefined),
  );
  if (pictures.length === 0) return text;
  return [...pictures.map((url) => ({ type: "image_url", image_url: { url } })), { type: "text", text }];
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
  #sees = false;

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

  /** Whether the model of this device sees pictures. */
  set sees(sees: boolean) {
    this.#sees = sees;
    void this.#camera.offer(sees);
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
        const isPicture = this.#sees && /^image\/(?!svg)/.test(file.type);
        const attachment = await (isPicture ? readPicture(file) : readTextFile(file));
        // Pasted pictures have the same name.
        const isOther = ({ name, picture }: Attachment): boolean =>
          name !== attachment.name || picture !== attachment.picture;
        this.#attachments = [...this.#attachments.filter(isOther), attachment];
      } catch (error) {
        this.report(error);
      }
    }
    this.show();
    element("prompt", HTMLTextAreaElement).focus();
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

/** What the page shows of a file: the picture, or the name and the size of its text. */
export function attachmentParts({ name, text, picture }: Attachment): readonly HTMLElement[] {
  if (picture === undefined)
    return [make("span", "", `${name} · ${formatBytes(new TextEncoder().encode(text).length)}`)];
  const shown = make("img", "picture");
  shown.src = picture;
  shown.alt = name;
  return [shown];
}
