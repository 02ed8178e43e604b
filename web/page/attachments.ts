// Text files that the user drops into the page or chooses. Their text becomes part of the next message.

import { takeFiles } from "./dropped_files.js";
import { element, make } from "./elements.js";
import { formatBytes } from "./format.js";
import { decodeText, notText, unreadableKind } from "./text_encoding.js";

export interface Attachment {
  readonly name: string;
  readonly text: string;
}

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

/** A message with the text of its files, each in a code block whose fence is longer than any in the file. */
export function withAttachments(question: string, attachments: readonly Attachment[]): string {
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

  /** ``changed`` is called when the files have changed. */
  constructor(private readonly changed: () => void) {
    const input = element("attach-file", HTMLInputElement);
    element("attach", HTMLButtonElement).addEventListener("click", () => {
      input.click();
    });
    takeFiles(input, (files) => void this.add(files));
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
        const attachment = await readTextFile(file);
        this.#attachments = [...this.#attachments.filter(({ name }) => name !== attachment.name), attachment];
      } catch (error) {
        this.#problem.textContent = error instanceof Error ? error.message : String(error);
        this.#problem.hidden = false;
      }
    }
    this.show();
    element("prompt", HTMLTextAreaElement).focus();
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
        return make("li", "chip", make("span", "", attachmentLabel(attachment)), remove);
      }),
    );
  }
}

export function attachmentLabel({ name, text }: Attachment): string {
  return `${name} · ${formatBytes(new TextEncoder().encode(text).length)}`;
}
