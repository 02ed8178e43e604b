// The text that stands for a picture in a prompt.

import type { ImagePrompt } from "../../runtime/manifest.js";

/** ``features``: those of each tile, row by row, and at the end those of the overview, if there is one. */
export function imageText(
  { prompt }: { readonly prompt: ImagePrompt },
  { rows, columns }: { readonly rows: number; readonly columns: number },
  features: readonly number[],
): string {
  const tokens = (tile: number): string => prompt.placeholder.repeat(features[tile] ?? 0);
  if (features.length === 1) return prompt.start + prompt.whole + tokens(0) + prompt.end;
  let text = prompt.start;
  for (let row = 0; row < rows; row++) {
    for (let column = 0; column < columns; column++)
      text += named(prompt.tile, row + 1, column + 1) + tokens(row * columns + column);
    text += prompt.row_end;
  }
  if (features.length > rows * columns) text += prompt.overview + tokens(rows * columns);
  return text + prompt.end;
}

const named = (text: string, row: number, column: number): string =>
  text.replaceAll("{row}", String(row)).replaceAll("{column}", String(column));
