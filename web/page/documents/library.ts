// The index of the documents page. It is saved with each change, so a page that closes loses at most the document that it
// was reading. Tabs share it: a change that another tab did not know is made again, on what the other tab saved.

import { StorageError } from "../../src/errors.js";
import type { IndexApi, NewDocument } from "../../src/retrieval/index.js";

export class Library {
  private before: IndexApi | null = null;
  private last: Promise<unknown> = Promise.resolve();

  private constructor(
    private readonly open: () => Promise<IndexApi>,
    private opened: IndexApi,
  ) {}

  /** ``open`` opens the index as it is saved. Throws what it throws. */
  static async open(open: () => Promise<IndexApi>): Promise<Library> {
    return new Library(open, await open());
  }

  get index(): IndexApi {
    return this.opened;
  }

  /** Throws what `IndexApi.add` and `save` throw. */
  async add(document: NewDocument, onProgress: (done: number, total: number) => void): Promise<void> {
    await this.change((index) => index.add([document], { onProgress }));
  }

  async delete(id: string): Promise<void> {
    await this.change((index) => index.delete(id));
  }

  /** Read what another tab has saved. */
  reload(): Promise<void> {
    return this.inTurn(() => this.reopen());
  }

  private change(task: (index: IndexApi) => Promise<unknown>): Promise<void> {
    return this.inTurn(async () => {
      for (;;) {
        await task(this.opened);
        try {
          await this.opened.save();
          return;
        } catch (error) {
          if (!(error instanceof StorageError && error.details.savedElsewhere === true)) throw error;
        }
        await this.reopen();
      }
    });
  }

  private async reopen(): Promise<void> {
    const opened = await this.open();
    // A question may still be searching the last one.
    this.before?.close();
    this.before = this.opened;
    this.opened = opened;
  }

  private inTurn(task: () => Promise<void>): Promise<void> {
    const turn = this.last.then(task);
    this.last = turn.catch(() => undefined);
    return turn;
  }
}
