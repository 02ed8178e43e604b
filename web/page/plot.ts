// Plots a decode as SVG: the milliseconds of each token, with one line for each prompt length.

import { makeSvg } from "./elements.js";
import type { DecodeRow } from "./measure.js";

const HEIGHT = 200;
const MARGIN = { top: 10, right: 8, bottom: 26, left: 44 };

/** ``width`` in CSS pixels. */
export function plotDecode(rows: readonly DecodeRow[], width: number): SVGElement {
  const longest = Math.max(2, ...rows.map((row) => row.milliseconds.length));
  const step = niceStep(Math.max(...rows.flatMap((row) => row.milliseconds)) / 3);
  const top = step * Math.ceil(Math.max(...rows.flatMap((row) => row.milliseconds)) / step);
  const x = (index: number): number => MARGIN.left + (index / (longest - 1)) * (width - MARGIN.left - MARGIN.right);
  const y = (ms: number): number => HEIGHT - MARGIN.bottom - (ms / top) * (HEIGHT - MARGIN.top - MARGIN.bottom);

  const svg = makeSvg("svg", {
    viewBox: `0 0 ${width} ${HEIGHT}`,
    width,
    height: HEIGHT,
    class: "plot",
    role: "img",
    "aria-label": describe(rows),
  });
  for (let ms = 0; ms <= top + step / 2; ms += step) {
    svg.append(
      makeSvg("line", {
        x1: MARGIN.left,
        x2: width - MARGIN.right,
        y1: y(ms),
        y2: y(ms),
        class: ms === 0 ? "axis" : "grid",
      }),
      makeSvg("text", { x: MARGIN.left - 8, y: y(ms) + 4, "text-anchor": "end" }, Number(ms.toPrecision(6)).toString()),
    );
  }
  svg.append(
    makeSvg("text", { x: MARGIN.left, y: HEIGHT - 6 }, "second token"),
    makeSvg("text", { x: width - MARGIN.right, y: HEIGHT - 6, "text-anchor": "end" }, `token ${longest + 1}`),
  );
  for (const [index, { milliseconds }] of rows.entries()) {
    const points = milliseconds.map((ms, token) => `${x(token).toFixed(1)},${y(ms).toFixed(1)}`).join(" ");
    svg.append(makeSvg("polyline", { points, class: `series series-${index}` }));
  }
  return svg;
}

function describe(rows: readonly DecodeRow[]): string {
  const parts = rows.map(({ prompt_tokens, milliseconds }) => {
    const [least, most] = [Math.min(...milliseconds), Math.max(...milliseconds)];
    return `after ${prompt_tokens} tokens ${least.toFixed(1)} to ${most.toFixed(1)} ms`;
  });
  return `Milliseconds of each token: ${parts.join("; ")}`;
}

/** The next of 1, 2, 5, 10, 20 ... */
function niceStep(least: number): number {
  const power = 10 ** Math.floor(Math.log10(least));
  return power * ([1, 2, 5].find((factor) => factor * power >= least) ?? 10);
}
