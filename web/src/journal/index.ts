// @nearfar/web/journal: answers that continue on a later page.

export { DeviceError, NearfarError, RequestError, StorageError, Unavailable, WorkerError } from "../errors.js";
export type { Journalled, JournalledHybrid, JournalledMethods } from "./journalled.js";
export { journalled } from "./journalled.js";
export type { JournalInfo, JournalOptions, Journals, ResumedAnswer } from "./journals.js";
export type { JournalApi } from "./record.js";
