// Formats numbers for display.

/** 8.25 -> "8.3 ms", 1415 -> "1.42 s". */
export function formatMs(ms: number): string {
  if (ms < 9.95) return `${ms.toFixed(1)} ms`;
  if (ms < 999.5) return `${ms.toFixed(0)} ms`;
  return ms < 9_995 ? `${(ms / 1e3).toFixed(2)} s` : `${(ms / 1e3).toFixed(1)} s`;
}

/** 870400 -> "0.87 million", 1235814400 -> "1.2 billion". */
export function formatParameters(count: number): string {
  if (count < 1e5) return formatCount(count);
  return count < 1e9 ? `${significant(count / 1e6)} million` : `${significant(count / 1e9)} billion`;
}

/** 32768 -> "32,768". */
export function formatCount(count: number): string {
  return count.toLocaleString("en");
}

/** Null if the dispatches are not counted. */
export function formatDispatches(count: number | null): string | null {
  return count === null ? null : `${formatCount(count)} dispatches`;
}

/** Tokens per second, to about three digits. */
export function formatSpeed(tokensPerSecond: number): string {
  return significant(tokensPerSecond);
}

/** "1 token", "2 tokens". */
export function plural(count: number, noun: string): string {
  return `${formatCount(count)} ${noun}${count === 1 ? "" : "s"}`;
}

function significant(value: number): string {
  if (value < 1) return value.toFixed(2);
  return value < 100 ? value.toFixed(1) : formatCount(Math.round(value));
}
