// @nearfar/web/speculation: guesses of an engine on this device, checked by a server. hybrid.js loads it if a policy
// has `speculation`.

export type { ErrorCode, ErrorDetails, ErrorJson } from "../errors.js";
export { NearfarError, RequestError, Unavailable } from "../errors.js";
export type { NearTokens } from "./sides/near_drafts.js";
export type { SpeculatingOptions } from "./sides/speculating_far.js";
export { SpeculatingFar } from "./sides/speculating_far.js";
export type { SocketClass, SocketLike } from "./sides/verify_socket.js";
export type { WireCounts, WireSpeculationOptions } from "./sides/wire_speculation.js";
export { WireSpeculation } from "./sides/wire_speculation.js";
