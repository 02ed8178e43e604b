// How large a document may be. server_fallback/retrieval/document_worker.py has the same bound of its text.

import { RequestError } from "../../src/errors.js";
import { formatCount } from "../format.js";

/** Of a text, with the tags of a web page. */
export const MOST_CHARACTERS = 5_000_000;
/** Images take most of the bytes of a PDF or a Word document. */
export const MOST_FILE_BYTES = 50_000_000;

/** The error about the file ``name``, whose text is longer. */
export function tooLong(name: string): RequestError {
  return new RequestError(`${name} has more than ${formatCount(MOST_CHARACTERS)} characters of text; add a part of it`);
}
