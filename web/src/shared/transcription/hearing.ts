// What a model that hears in chats is asked for a transcript, in the words of Gemma 4's model card, and what of its answer
// is the text. It sees one window of sound after the other, each in a chat of its own.

import { RequestError } from "../../errors.js";

/** ISO 639-1, and the codes of Whisper that are not in it. */
const LANGUAGES =
  "af Afrikaans,am Amharic,ar Arabic,as Assamese,az Azerbaijani,ba Bashkir,be Belarusian,bg Bulgarian,bn Bengali," +
  "bo Tibetan,br Breton,bs Bosnian,ca Catalan,cs Czech,cy Welsh,da Danish,de German,el Greek,en English,es Spanish," +
  "et Estonian,eu Basque,fa Persian,fi Finnish,fo Faroese,fr French,ga Irish,gl Galician,gu Gujarati,ha Hausa," +
  "haw Hawaiian,he Hebrew,hi Hindi,hr Croatian,ht Haitian Creole,hu Hungarian,hy Armenian,id Indonesian,ig Igbo," +
  "is Icelandic,it Italian,ja Japanese,jw Javanese,jv Javanese,ka Georgian,kk Kazakh,km Khmer,kn Kannada,ko Korean," +
  "ku Kurdish,ky Kyrgyz,la Latin,lb Luxembourgish,ln Lingala,lo Lao,lt Lithuanian,lv Latvian,mg Malagasy,mi Maori," +
  "mk Macedonian,ml Malayalam,mn Mongolian,mr Marathi,ms Malay,mt Maltese,my Burmese,nb Norwegian Bokmål,ne Nepali," +
  "nl Dutch,nn Norwegian Nynorsk,no Norwegian,oc Occitan,or Odia,pa Punjabi,pl Polish,ps Pashto,pt Portuguese," +
  "ro Romanian,ru Russian,sa Sanskrit,sd Sindhi,si Sinhala,sk Slovak,sl Slovenian,sn Shona,so Somali,sq Albanian," +
  "sr Serbian,su Sundanese,sv Swedish,sw Swahili,ta Tamil,te Telugu,tg Tajik,th Thai,tk Turkmen,tl Tagalog,tr Turkish," +
  "tt Tatar,uk Ukrainian,ur Urdu,uz Uzbek,vi Vietnamese,xh Xhosa,yi Yiddish,yo Yoruba,yue Cantonese,zh Chinese,zu Zulu";
const NAMES: ReadonlyMap<string, string> = new Map(
  LANGUAGES.split(",").map((each) => [each.slice(0, each.indexOf(" ")), each.slice(each.indexOf(" ") + 1)]),
);

/** ``language``: its code, such as "en"; null if the model is to hear which it is. ``translate``: into English. */
export interface HearingTask {
  readonly language: string | null;
  readonly translate: boolean;
}

/** Before the translation, in an answer that has both texts. */
const TRANSLATED = "English:";

/** What follows the sound in the message. Throws RequestError for a language that is not known. */
export function hearingInstruction({ language, translate }: HearingTask): string {
  const name = language === null ? null : NAMES.get(language);
  if (name === undefined)
    throw new RequestError(
      `language '${String(language)}' is not known; give a code of ISO 639-1, such as "en", or leave it out`,
      { param: "language" },
    );
  const spoken = name === null ? "in its original language" : `in ${name}`;
  if (translate)
    return (
      `Transcribe the following speech segment ${spoken}, then translate it into English. When formatting the answer, ` +
      `first output the transcription ${spoken}, then one newline, then output the string '${TRANSLATED} ', then the ` +
      "translation in English."
    );
  return (
    `Transcribe the following speech segment ${name === null ? spoken : `${spoken} into ${name} text`}.\n\n` +
    "Follow these specific instructions for formatting the answer:\n* Only output the transcription, with no " +
    "newlines.\n* When transcribing numbers, write the digits, i.e. write 1.7 and not one point seven, and write 3 " +
    "instead of three."
  );
}

/** The text of a window in its answer, on one line; null if the translation is missing. */
export function heardText(answer: string, { translate }: HearingTask): string | null {
  const start = translate ? answer.lastIndexOf(TRANSLATED) : 0;
  if (start < 0) return answer.trim() === "" ? "" : null;
  const text = translate ? answer.slice(start + TRANSLATED.length) : answer;
  return text.trim().replace(/\s*\n\s*/g, " ");
}
