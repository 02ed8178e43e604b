export const SHARED_SCRIPT: string;
export function sharedScript(): Promise<string>;
