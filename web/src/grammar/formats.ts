// The formats of strings, as patterns: each makes only texts that the format's definition allows, though not all of them (no 29th of February).

const DATE = "\\d{4}-((0[13578]|1[02])-(0[1-9]|[12]\\d|3[01])|(0[469]|11)-(0[1-9]|[12]\\d|30)|02-(0[1-9]|1\\d|2[0-8]))";
const TIME = "([01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(\\.\\d{1,9})?(Z|[+-]([01]\\d|2[0-3]):[0-5]\\d)";
// Few counts: each is a state, for which the whole vocabulary is looked at once.
const WORD = "[A-Za-z0-9]+(-[A-Za-z0-9]+)*";
const LABEL = "[A-Za-z0-9]([A-Za-z0-9-]{0,14}[A-Za-z0-9])?";
const BYTE = "(25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)";

/** RFC 3339, RFC 4122, RFC 5321, RFC 1123, RFC 2673, RFC 3986. */
export const FORMATS: Readonly<Record<string, string>> = {
  date: DATE,
  time: TIME,
  "date-time": `${DATE}T${TIME}`,
  duration: "P(\\d{1,4}W|\\d{1,4}D|\\d{1,4}Y|\\d{1,4}M|(\\d{1,4}D)?T(\\d{1,4}H|\\d{1,4}M|\\d{1,4}S))",
  uuid: "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
  email: `[A-Za-z0-9_+-]+(\\.[A-Za-z0-9_+-]+)*@(${WORD}\\.)+[A-Za-z]{2,6}`,
  hostname: `${LABEL}(\\.${LABEL}){0,2}`,
  ipv4: `${BYTE}\\.${BYTE}\\.${BYTE}\\.${BYTE}`,
  uri: `https?://${WORD}(\\.${WORD})*(:[1-9]\\d{0,3})?(/[A-Za-z0-9._~-]*)*(\\?[A-Za-z0-9._~=&-]*)?(#[A-Za-z0-9._~-]*)?`,
};
