// Python's strftime in the C locale, for the template's `strftime_now`.

import { Unsupported } from "./values.js";

const DAYS = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const MONTHS = "January February March April May June July August September October November December".split(" ");

export function strftime(pattern: string, date: Date): string {
  const two = (value: number, fill = "0"): string => String(value).padStart(2, fill);
  const [year, month, day, weekday] = [date.getFullYear(), date.getMonth(), date.getDate(), date.getDay()];
  const hour12 = date.getHours() % 12 || 12;
  const dayOfYear = Math.round((Date.UTC(year, month, day) - Date.UTC(year, 0, 1)) / 86_400_000) + 1;
  const fields: Record<string, () => string> = {
    a: () => DAYS[weekday]?.slice(0, 3) ?? "",
    A: () => DAYS[weekday] ?? "",
    b: () => MONTHS[month]?.slice(0, 3) ?? "",
    B: () => MONTHS[month] ?? "",
    c: () => strftime("%a %b %e %H:%M:%S %Y", date),
    d: () => two(day),
    D: () => strftime("%m/%d/%y", date),
    e: () => two(day, " "),
    f: () => String(date.getMilliseconds() * 1000).padStart(6, "0"),
    F: () => strftime("%Y-%m-%d", date),
    h: () => strftime("%b", date),
    H: () => two(date.getHours()),
    I: () => two(hour12),
    j: () => String(dayOfYear).padStart(3, "0"),
    m: () => two(month + 1),
    M: () => two(date.getMinutes()),
    n: () => "\n",
    p: () => (date.getHours() < 12 ? "AM" : "PM"),
    r: () => strftime("%I:%M:%S %p", date),
    R: () => strftime("%H:%M", date),
    S: () => two(date.getSeconds()),
    t: () => "\t",
    T: () => strftime("%H:%M:%S", date),
    u: () => String(weekday || 7),
    U: () => two(Math.floor((dayOfYear + 6 - weekday) / 7)),
    w: () => String(weekday),
    W: () => two(Math.floor((dayOfYear + 6 - ((weekday + 6) % 7)) / 7)),
    x: () => strftime("%m/%d/%y", date),
    X: () => strftime("%H:%M:%S", date),
    y: () => two(year % 100),
    Y: () => String(year),
    // datetime.now() has no time zone.
    z: () => "",
    Z: () => "",
    "%": () => "%",
  };
  return pattern.replace(/%(-?)([^]?)/gu, (match, bare: string, letter: string) => {
    const field = fields[letter];
    if (field === undefined) throw new Unsupported(`strftime_now: the field '${match}' is not supported`);
    return bare === "" ? field() : field().replace(/^[0 ]+(?=\d)/, "");
  });
}
