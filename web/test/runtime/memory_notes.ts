// What an engine notes of its device, in memory.

import type { Notes } from "../../src/index.js";

export class MemoryNotes implements Notes {
  readonly kept = new Map<string, unknown>();
  writes = 0;
  read(key: string): Promise<unknown> {
    return Promise.resolve(this.kept.get(key));
  }
  write(key: string, value: unknown): Promise<void> {
    this.kept.set(key, value);
    this.writes++;
    return Promise.resolve();
  }
}
