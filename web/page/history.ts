// The sidebar of stored conversations: search, open, rename, export, delete.

import type { Conversation } from "./conversations.js";
import { ConversationStore, asJson, asMarkdown, matches } from "./conversations.js";
import { element, make } from "./elements.js";

export interface HistoryHandlers {
  readonly open: (conversation: Conversation) => void;
  /** The open conversation was deleted. */
  readonly removed: () => void;
  readonly announce: (text: string) => void;
  /** Another tab has changed a conversation, or deleted it. */
  readonly changedElsewhere: (id: string) => void;
}

export class History {
  readonly #search = element("history-search", HTMLInputElement);
  readonly #list = element("history-list", HTMLUListElement);
  readonly #note = element("history-note", HTMLElement);
  readonly #store = ConversationStore.open();
  /** Tells other tabs the id of a conversation that was changed. */
  readonly #channel = new BroadcastChannel("nearfar conversations");
  #conversations: readonly Conversation[] = [];
  #current: string | null = null;

  constructor(private readonly handlers: HistoryHandlers) {
    this.#search.addEventListener("input", () => {
      this.show();
    });
    this.#channel.addEventListener("message", ({ data }: MessageEvent<string>) => {
      void this.refresh();
      this.handlers.changedElsewhere(data);
    });
    void this.refresh();
  }

  /** The stored conversation with this id; undefined if there is none. */
  async find(id: string): Promise<Conversation | undefined> {
    return (await this.#store)?.get(id);
  }

  /** Select the open conversation; null for a new one. */
  select(id: string | null): void {
    this.#current = id;
    this.show();
  }

  /**
   * Store a conversation that was read at its revision. Resolves to its revision from now on; null if it was not stored,
   * because another tab has changed it. ``ended``: whether it stays like this for a while.
   */
  async save(conversation: Conversation, ended: boolean): Promise<number | null> {
    const saved = await this.write((store) => store.update(conversation));
    if (saved === undefined || saved === null) return saved === null ? null : conversation.revision;
    const isNew = saved.revision === 1;
    const others = this.#conversations.filter(({ id }) => id !== saved.id);
    this.#conversations = [saved, ...others];
    if (!ended && !isNew) return saved.revision;
    this.show();
    this.#channel.postMessage(saved.id);
    return saved.revision;
  }

  /** Undefined if the browser stores nothing, or if the change failed, which is shown. */
  private async write<T>(change: (store: ConversationStore) => Promise<T>): Promise<T | undefined> {
    const store = await this.#store;
    if (store === null) return undefined;
    try {
      return await change(store);
    } catch {
      this.handlers.announce("The browser could not store this conversation");
      this.#note.textContent =
        "The browser could not store the last change. Its storage may be full: delete conversations or stored models " +
        "that you no longer need.";
      return undefined;
    }
  }

  /** Change a stored conversation from the list. */
  private async change(id: string, change: (store: ConversationStore) => Promise<void>): Promise<void> {
    await this.write(change);
    this.#channel.postMessage(id);
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
      if (keep && typed !== "") void this.change(conversation.id, (store) => store.rename(conversation.id, typed));
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
    await this.change(id, (store) => store.delete(id));
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
