// The sidebar of stored conversations: search, open, rename, export, delete.

import type { Conversation } from "./conversations.js";
import { ConversationStore, asJson, asMarkdown, matches } from "./conversations.js";
import { element, make } from "./elements.js";

export interface HistoryHandlers {
  readonly open: (conversation: Conversation) => void;
  /** The open conversation was deleted. */
  readonly removed: () => void;
  readonly announce: (text: string) => void;
}

export class History {
  readonly #search = element("history-search", HTMLInputElement);
  readonly #list = element("history-list", HTMLUListElement);
  readonly #note = element("history-note", HTMLElement);
  readonly #store = ConversationStore.open();
  #conversations: readonly Conversation[] = [];
  #current: string | null = null;

  constructor(private readonly handlers: HistoryHandlers) {
    this.#search.addEventListener("input", () => {
      this.show();
    });
    void this.refresh();
  }

  /** Select the open conversation; null for a new one. */
  select(id: string | null): void {
    this.#current = id;
    this.show();
  }

  /** Store a conversation. A title that the user has changed stays. */
  async save(conversation: Conversation): Promise<void> {
    const stored = this.#conversations.find(({ id }) => id === conversation.id);
    await this.write(async (store) => store.put({ ...conversation, title: stored?.title ?? conversation.title }));
  }

  private async write(change: (store: ConversationStore) => Promise<void>): Promise<void> {
    const store = await this.#store;
    if (store === null) return;
    try {
      await change(store);
    } catch {
      this.handlers.announce("The browser could not store this conversation");
      this.#note.textContent =
        "The browser could not store the last change. Its storage may be full: delete conversations that you " +
        "no longer need.";
    }
    await this.refresh();
  }

  private async refresh(): Promise<void> {
    const store = await this.#store;
    if (store === null)
      this.#note.textContent = "This browser does not store conversations. They last until you leave the page.";
    else this.#conversations = await store.list();
    this.show();
  }

  private show(): void {
    const search = this.#search.value.trim();
    const shown = this.#conversations.filter((conversation) => search === "" || matches(conversation, search));
    this.#list.replaceChildren(...shown.map((conversation) => this.item(conversation)));
    element("history-empty", HTMLElement).hidden = shown.length > 0;
    element("history-empty", HTMLElement).textContent =
      search === ""
        ? "Your conversations appear here. They stay on this device."
        : "No conversation contains these words.";
  }

  private item(conversation: Conversation): HTMLElement {
    const { id, title } = conversation;
    const open = textButton(title, () => {
      this.close();
      this.handlers.open(conversation);
    });
    open.className = "title";
    if (id !== this.#current) return make("li", "", open);
    open.setAttribute("aria-current", "true");
    const item = make("li", "current", open);
    const remove = textButton("Delete", () => {
      if (remove.textContent === "Delete") remove.textContent = "Really delete?";
      else void this.remove(id);
    });
    item.append(
      make(
        "div",
        "actions",
        textButton("Rename", () => {
          this.rename(conversation, open);
        }),
        textButton(".md", () => {
          download(`${fileName(title)}.md`, "text/markdown", asMarkdown(conversation));
        }),
        textButton(".json", () => {
          download(`${fileName(title)}.json`, "application/json", asJson(conversation));
        }),
        remove,
      ),
    );
    return item;
  }

  private rename(conversation: Conversation, title: HTMLElement): void {
    const input = make("input", "rename");
    input.type = "text";
    input.value = conversation.title;
    input.maxLength = 120;
    input.setAttribute("aria-label", "Title");
    let open = true;
    const done = (keep: boolean): void => {
      if (!open) return;
      open = false;
      const typed = input.value.trim();
      if (keep && typed !== "") void this.write(async (store) => store.put({ ...conversation, title: typed }));
      else this.show();
    };
    input.addEventListener("keydown", (event) => {
      if (event.key === "Enter") done(true);
      if (event.key !== "Escape") return;
      // The browser would close the sidebar as well.
      event.preventDefault();
      done(false);
    });
    input.addEventListener("blur", () => {
      done(true);
    });
    title.replaceWith(input);
    input.select();
  }

  private async remove(id: string): Promise<void> {
    await this.write(async (store) => store.delete(id));
    this.handlers.announce("Deleted");
    if (id === this.#current) this.handlers.removed();
  }

  /** Close the sidebar, which covers the conversation on a narrow page. */
  private close(): void {
    const history = element("history", HTMLElement);
    if (history.matches(":popover-open")) history.hidePopover();
  }
}

function textButton(label: string, onClick: () => void): HTMLButtonElement {
  const button = make("button", "", label);
  button.type = "button";
  // The labels of the two exports are short, because the sidebar is narrow.
  if (label.startsWith(".")) button.setAttribute("aria-label", `Export ${label}`);
  button.addEventListener("click", onClick);
  return button;
}

function fileName(title: string): string {
  return title.replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "") || "conversation";
}

function download(name: string, type: string, text: string): void {
  const link = make("a");
  link.href = URL.createObjectURL(new File([text], name, { type }));
  link.download = name;
  link.click();
  URL.revokeObjectURL(link.href);
}
