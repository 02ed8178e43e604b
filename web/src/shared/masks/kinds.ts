// The kinds of texts that the labels of published models mean, by their names. A policy masks those that it lists.

import { RequestError } from "../../errors.js";
import type { MaskEntity } from "../decision/policy_schema.js";
import { kindOfLabel } from "../label_spans.js";

/** The names of each kind: in capitals, without other signs and without PRIVATE at their beginning. */
const NAMES: Readonly<Record<string, string>> = {
  PERSON:
    "PER PERSON PERSONS PEOPLE NAME NAMES FULLNAME GIVENNAME FIRSTNAME MIDDLENAME LASTNAME SURNAME FAMILYNAME PATIENT DOCTOR",
  LOCATION: "LOC LOCATION GPE CITY STATE COUNTY COUNTRY PLACE",
  ORGANIZATION: "ORG ORGANIZATION ORGANISATION CORPORATION COMPANY COMPANYNAME HOSPITAL",
  ADDRESS: "ADDRESS ADDRESSES STREET STREETADDRESS BUILDINGNUM BUILDINGNUMBER ZIP ZIPCODE POSTCODE SECONDARYADDRESS",
  EMAIL: "EMAIL EMAILS EMAILADDRESS MAIL",
  PHONE: "PHONE PHONES PHONENUM PHONENUMBER TELEPHONE TELEPHONENUM FAX",
  ACCOUNT:
    "ACCOUNT ACCOUNTNUM ACCOUNTNUMBER BANKACCOUNT IBAN BIC CARD CREDITCARD CREDITCARDNUM CREDITCARDNUMBER MASKEDNUMBER",
  ID: "ID IDNUM IDNUMBER IDCARD IDCARDNUM SSN SOCIALNUM SOCIALSECURITYNUMBER TAXNUM PASSPORT PASSPORTNUM DRIVERLICENSE DRIVERLICENSENUM MEDICALRECORD",
  SECRET: "SECRET SECRETS PASSWORD PASSWORDS PIN CVV APIKEY TOKEN CREDENTIAL CREDENTIALS",
  DATE: "DATE DATES DATEOFBIRTH DOB BIRTHDATE BIRTHDAY",
  USER: "USER USERNAME HANDLE",
  URL: "URL URLS LINK",
  IP: "IP IPADDRESS IPV IPVSIX MAC MACADDRESS",
  // Of CoNLL 2003, OntoNotes 5 and WNUT 2017, whose models name more than what is private.
  MISC: "MISC MISCELLANEOUS",
  GROUP: "GROUP NORP",
  FACILITY: "FAC FACILITY",
  PRODUCT: "PRODUCT",
  EVENT: "EVENT",
  WORK: "WORKOFART CREATIVEWORK",
  LAW: "LAW",
  LANGUAGE: "LANGUAGE",
  TIME: "TIME",
  AMOUNT: "MONEY PERCENT QUANTITY CARDINAL ORDINAL",
};
const KINDS: ReadonlyMap<string, string> = new Map(
  Object.entries(NAMES).flatMap(([kind, names]) => names.split(" ").map((name): [string, string] => [name, kind])),
);

/**
 * The kinds of a model's ``labels`` that no known kind has for a name, but a policy's ``entities`` name: their own names.
 */
export function kindsOfPolicy(
  labels: readonly string[],
  entities: readonly Pick<MaskEntity, "label">[],
): Readonly<Record<string, string>> {
  const names = labels.map(kindOfLabel);
  const own = entities.filter(({ label }) => names.includes(label) && !KINDS.has(plain(label)));
  return Object.fromEntries(own.map(({ label }) => [label, label]));
}

/**
 * The kind of each name that a model's ``labels`` have ("PER" of "B-PER"), in their order. ``own`` are kinds that the
 * application gives names, null for one that is not private. Throws RequestError for a name that is in neither table,
 * for one of ``own`` that no label has, and for a kind that is neither the name itself nor of the letters A to Z.
 */
export function kindsOfLabels(
  labels: readonly string[],
  own: Readonly<Record<string, string | null>> = {},
): readonly (readonly [name: string, kind: string | null])[] {
  const names = [...new Set(labels.map(kindOfLabel))].filter((name) => name !== null);
  const foreign = Object.keys(own).find((name) => !names.includes(name));
  if (foreign !== undefined)
    throw refused(`kinds has ${foreign}, but the model's labels are ${names.join(", ")}; use one of these`);
  const wrong = Object.entries(own).find(
    ([name, kind]) => kind !== null && kind !== name && !/^[A-Z]{1,20}$/.test(kind),
  );
  if (wrong !== undefined) throw refused(`the kind '${wrong[1]}' must have 1 to 20 letters, A to Z only`);
  const isOwn = (name: string): boolean => Object.hasOwn(own, name);
  const kinds = names.map((name): [string, string | null] => [
    name,
    (isOwn(name) ? own[name] : KINDS.get(plain(name))) ?? null,
  ]);
  const unknown = kinds.filter(([name, kind]) => kind === null && !isOwn(name)).map(([name]) => name);
  if (unknown.length > 0)
    throw refused(
      `the model labels ${unknown.join(", ")}, which no known kind of text has for a name; map each with kinds to a kind ` +
        "of your own, or to null if it is not private, or mask them by these names in the policy's entities",
    );
  if (kinds.length === 0) throw refused("the model's labels name nothing; use a classifier of tokens");
  return kinds;
}

function plain(name: string): string {
  return name
    .toUpperCase()
    .replace(/[^A-Z]/g, "")
    .replace(/^PRIVATE(?=.)/, "");
}

function refused(message: string): RequestError {
  return new RequestError(message, { param: "kinds" });
}
