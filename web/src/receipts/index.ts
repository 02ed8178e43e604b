// @nearfar/web/receipts: answers with signed receipts, which `nearfar verify` checks.

export type { SignedReceipt } from "../api/types.js";
export { RequestError } from "../errors.js";
export { ReceiptKey, deviceKey, isSigned } from "./device_key.js";
export type { ReceiptOptions, Receipted, ReceiptedMethods } from "./receipted.js";
export { receipted } from "./receipted.js";
