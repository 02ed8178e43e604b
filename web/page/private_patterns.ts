// The private patterns of the page's own policy: card and account numbers, national identity numbers, e-mail addresses,
// keys. They use the dialect of src/shared/decision/pattern.ts and ignore case. tests/conformance/private_patterns.json
// has examples and counterexamples of each.

export const PRIVATE_PATTERNS: Readonly<Record<string, string>> = {
  "payment card":
    String.raw`(?:^|[^\w.])(?:4[0-9]{3}|5[1-5][0-9]{2}|2[2-7][0-9]{2}|35[0-9]{2}|` +
    String.raw`6(?:011|4[4-9][0-9]|5[0-9]{2}))(?:[ -]?[0-9]{4}){3}\b`,
  "payment card of 14 or 15 digits":
    String.raw`(?:^|[^\w.])3(?:[47][0-9]{2}[ -]?[0-9]{6}[ -]?[0-9]{5}|` +
    String.raw`(?:0[0-5]|[68][0-9])[0-9][ -]?[0-9]{6}[ -]?[0-9]{4})\b`,
  IBAN: String.raw`\b[a-z]{2}[0-9]{2} ?(?:(?:[a-z]{4}|[a-z][0-9]{3}) ?)?(?:[0-9]{4} ?){2,6}[0-9a-z]{1,12}\b`,
  "US social security number": String.raw`\b[0-8][0-9]{2}-[0-9]{2}-[0-9]{4}\b`,
  "Canadian social insurance number": String.raw`\b[1-9][0-9]{2}-[0-9]{3}-[0-9]{3}\b`,
  "British national insurance number":
    String.raw`\b[a-ceghj-pr-tw-z][a-ceghj-npr-tw-z]` + String.raw`(?:[0-9]{6}| [0-9]{2} [0-9]{2} [0-9]{2} )[a-d]\b`,
  "French social security number":
    String.raw`\b[12] ?[0-9]{2} ?(?:0[1-9]|1[0-2]) ?` + String.raw`(?:[0-9]{2}|2[ab]) ?[0-9]{3} ?[0-9]{3} ?[0-9]{2}\b`,
  "Italian tax code": String.raw`\b[a-z]{6}[0-9]{2}[a-ehlmprst][0-9]{2}[a-z][0-9]{3}[a-z]\b`,
  "Spanish identity number": String.raw`\b(?:[0-9]{8}|[xyz]-?[0-9]{7})-?[a-hj-np-tv-z]\b`,
  "Swedish personal number": String.raw`\b(?:19|20)?[0-9]{2}(?:0[1-9]|1[0-2])(?:[0-2][0-9]|3[01])[-+][0-9]{4}\b`,
  "Brazilian CPF": String.raw`\b[0-9]{3}\.[0-9]{3}\.[0-9]{3}-[0-9]{2}\b`,
  "Indian Aadhaar number": String.raw`(?:^|[^\w. ]|[^0-9] )[2-9][0-9]{3} [0-9]{4} [0-9]{4}(?:$|[^\w ]| $| [^0-9])`,
  "Chinese resident identity number":
    String.raw`\b[1-9][0-9]{5}(?:19|20)[0-9]{2}(?:0[1-9]|1[0-2])` + String.raw`(?:[0-2][0-9]|3[01])[0-9]{3}[0-9x]\b`,
  "named identity number":
    String.raw`\b(?:ssn|passport|social security|national (?:id|insurance)|identity card|tax id)` +
    String.raw`(?: (?:number|no\.?))?(?: is)?[:# ]*[a-z]{0,3}[0-9]{6,12}\b`,
  "e-mail address": String.raw`\b[\w.%+-]+@(?:[a-z0-9-]+\.)+[a-z]{2,24}\b`,
  "API key":
    String.raw`\b(?:sk-[\w-]{20}|[srp]k_live_\w{16}|gh[opsur]_\w{30}|github_pat_\w{30}|glpat-[\w-]{20}|` +
    String.raw`xox[abeoprs]-[\w-]{10}|hf_\w{30}|npm_\w{36}|AIza[\w-]{35})`,
  "AWS access key": String.raw`\b(?:AKIA|ASIA)[A-Z0-9]{16}\b`,
  "JSON web token": String.raw`\beyJ[\w-]{10,}\.eyJ[\w-]{10,}\.`,
  "private key": String.raw`-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----`,
};
