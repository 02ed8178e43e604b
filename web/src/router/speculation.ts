// @nearfar/web/speculation: guesses of an engine on this device, checked by a server. hybrid.js loads it where a policy has `speculation`.

export type { ErrorCode, ErrorDetails, ErrorJson } from "../errors.js";
export { NearfarError, RequestError, Unavailable } from "../errors.js";
export type { NearTokens } from "./near_drafts.js";
export type { SpeculatingOptions } from "./speculating_far.js";
export { SpeculatingFar } from "./speculating_far.js";
export type { SocketClass, SocketLike } from "./verify_socket.js";
export type { WireCounts, WireSpeculationOptions } from "./wire_speculation.js";
export { WireSpeculation } from "./wire_speculation.js";
