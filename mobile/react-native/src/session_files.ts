// Saves conversations in the app's documents folder, one file per conversation.

import { StorageError, messageOf } from "../../../web/src/errors.js";
import type { SessionStorage } from "../../../web/src/store/session_store.js";
import { noSuchSession, packSession, unpackSession } from "../../../web/src/store/session_store.js";
import type { FileSystem } from "./file_system.js";
import { readAll, replace } from "./file_system.js";

export function sessionFiles(files: FileSystem): SessionStorage {
  const folder = `${files.documents}/nearfar/sessions`;
  const pathOf = (name: string): string => `${folder}/${encodeURIComponent(name)}`;
  return {
    async write(name, record, keysAndValues) {
      try {
        await files.makeFolder(folder);
        await replace(files, pathOf(name), packSession(record, keysAndValues));
      } catch (error) {
        throw new StorageError(
          `The session '${name}' cannot be saved (${messageOf(error)}); free some storage`,
          { session: name },
          { cause: error },
        );
      }
    },
    async read(name) {
      const bytes = await readAll(files, pathOf(name));
      if (bytes === null) throw noSuchSession(name);
      return unpackSession(name, bytes);
    },
  };
}
