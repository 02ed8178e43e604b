// The key of this device that signs receipts. No script can read its private part.

import { RequestError, messageOf } from "../errors.js";
import type { SignedReceipt } from "../api/types.js";
import type { Notes } from "../runtime/notes.js";
import { browserNotes } from "../runtime/notes.js";
import { signedText } from "../shared/receipt.js";

type Algorithm = SignedReceipt["signature"]["algorithm"];

const ALGORITHMS: Readonly<Record<Algorithm, EcKeyGenParams & EcdsaParams>> = {
  ed25519: { name: "Ed25519" } as EcKeyGenParams & EcdsaParams,
  "ecdsa-p256": { name: "ECDSA", namedCurve: "P-256", hash: "SHA-256" },
};
const NOTE = "receipt key";

/** Signs receipts: `deviceKey`, or a pair of keys of your own. */
export class ReceiptKey {
  private constructor(
    readonly algorithm: Algorithm,
    private readonly pair: CryptoKeyPair,
    /** A SubjectPublicKeyInfo in base64, as receipts have it. */
    readonly publicKey: string,
  ) {}

  /** Throws RequestError for keys that are not of Ed25519 or ECDSA on P-256, or whose public key cannot be exported. */
  static async of(pair: CryptoKeyPair): Promise<ReceiptKey> {
    const { name, namedCurve } = pair.privateKey.algorithm as EcKeyAlgorithm;
    const algorithm = name === "Ed25519" ? "ed25519" : name === "ECDSA" && namedCurve === "P-256" ? "ecdsa-p256" : null;
    if (algorithm === null)
      throw new RequestError(`A receipt needs a key of Ed25519, or of ECDSA on P-256, not of ${name}`, {
        param: "key",
      });
    return new ReceiptKey(algorithm, pair, base64(await crypto.subtle.exportKey("spki", pair.publicKey)));
  }

  /** The public key in PEM, for `nearfar verify --signed-by`. */
  get pem(): string {
    return `-----BEGIN PUBLIC KEY-----\n${this.publicKey.replace(/.{64}(?=.)/g, "$&\n")}\n-----END PUBLIC KEY-----\n`;
  }

  async sign(receipt: SignedReceipt["receipt"]): Promise<SignedReceipt> {
    const value = await crypto.subtle.sign(ALGORITHMS[this.algorithm], this.pair.privateKey, bytes(receipt));
    const signature = { algorithm: this.algorithm, public_key: this.publicKey, value: base64(value) };
    return { receipt, signature };
  }
}

/**
 * The key of this origin on this device, which is made when it is first needed, and kept in IndexedDB. In a private
 * window, or without IndexedDB, each page has one of its own.
 */
export async function deviceKey(notes: Notes = browserNotes()): Promise<ReceiptKey> {
  const kept = await keptPair(notes);
  if (kept !== null) return ReceiptKey.of(kept);
  const made = await newPair();
  await notes.write(NOTE, made);
  // Another tab may have made one at the same time.
  return ReceiptKey.of((await keptPair(notes)) ?? made);
}

/** Whether a receipt has its own key's signature. Whose key that is says only who knows the key. */
export async function isSigned({ receipt, signature }: SignedReceipt): Promise<boolean> {
  const algorithm = ALGORITHMS[signature.algorithm];
  try {
    const key = await crypto.subtle.importKey("spki", unbase64(signature.public_key), algorithm, true, ["verify"]);
    return await crypto.subtle.verify(algorithm, key, unbase64(signature.value), bytes(receipt));
  } catch {
    return false;
  }
}

async function keptPair(notes: Notes): Promise<CryptoKeyPair | null> {
  const kept = (await notes.read(NOTE)) as Partial<CryptoKeyPair> | undefined;
  return kept?.privateKey instanceof CryptoKey && kept.publicKey instanceof CryptoKey ? (kept as CryptoKeyPair) : null;
}

/** Of Ed25519, or on P-256 if the browser has no Ed25519. Throws RequestError. */
async function newPair(): Promise<CryptoKeyPair> {
  const made = (algorithm: Algorithm): Promise<CryptoKeyPair> =>
    crypto.subtle.generateKey(ALGORITHMS[algorithm], false, ["sign", "verify"]);
  try {
    return await made("ed25519").catch(() => made("ecdsa-p256"));
  } catch (error) {
    throw new RequestError(
      `This page cannot make a key that signs receipts: ${messageOf(error)}; serve it over HTTPS, or pass a key`,
      { param: "receipt" },
    );
  }
}

function bytes(receipt: SignedReceipt["receipt"]): Uint8Array<ArrayBuffer> {
  return new TextEncoder().encode(signedText(receipt));
}

function base64(data: ArrayBuffer): string {
  return btoa(String.fromCharCode(...new Uint8Array(data)));
}

function unbase64(text: string): Uint8Array<ArrayBuffer> {
  return Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
}
