// Takes pictures of the demo page in headless Chromium: loading, welcome, answers and an error, in light and dark, wide and narrow.
//
//     node dist/tools/screenshots.js BUNDLE OUT [CHROMIUM]

import { createServer } from "node:http";
import { readFile, mkdir } from "node:fs/promises";
import type { AddressInfo } from "node:net";
import { extname, join } from "node:path";

import { chromium } from "playwright-core";
import type { Page } from "playwright-core";

const FLAGS = [
  "--headless=new", "--no-sandbox", "--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader", "--disable-quic", "--no-first-run",
  "--disable-background-networking", "--disable-component-update", "--disable-sync",
]; // prettier-ignore
const TYPES: Readonly<Record<string, string>> = { ".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml" };

async function main(bundle: string, out: string, executablePath: string): Promise<void> {
  await mkdir(out, { recursive: true });
  const server = createServer((request, response) => {
    const { pathname } = new URL(request.url ?? "/", "http://localhost");
    const path = pathname.startsWith("/bundle/") ? join(bundle, pathname.slice(8)) : join("dist/page", pathname === "/" ? "index.html" : pathname);
    readFile(path).then(
      (bytes) => response.setHeader("content-type", TYPES[extname(path)] ?? "application/octet-stream").end(bytes),
      () => response.writeHead(404).end(),
    );
  }).listen(0);
  const address = `http://localhost:${(server.address() as AddressInfo).port}/`;
  const browser = await chromium.launch({ executablePath, args: FLAGS });
  for (const [name, colorScheme, width, height] of [
    ["light", "light", 1280, 800],
    ["dark", "dark", 1280, 800],
    ["phone", "light", 390, 780],
  ] as const) {
    const page = await browser.newPage({ colorScheme, viewport: { width, height }, deviceScaleFactor: 2 });
    const shoot = async (what: string): Promise<void> => {
      await page.screenshot({ path: join(out, `${name}-${what}.png`) });
    };
    if (name === "light") await page.route("**/*.bin", (route) => new Promise((done) => setTimeout(done, 1500)).then(() => route.continue()));
    await page.goto(address);
    await page.waitForTimeout(700);
    await shoot("loading");
    await page.waitForSelector("body[data-state=ready]", { timeout: 120_000 });
    await shoot("welcome");
    await chat(page);
    await shoot("chat");
    await page.goto(`${address}?bundle=./nowhere/`);
    await page.waitForSelector("body[data-state=error]");
    await shoot("error");
    await page.close();
  }
  await browser.close();
  server.close();
}

async function chat(page: Page): Promise<void> {
  await page.click("#examples button >> nth=0");
  await page.waitForSelector(".answer[data-state=done]", { timeout: 120_000 });
  for (const [index, question] of ["what is 27 + 58?", "tell me a story about a fox"].entries()) {
    await page.fill("#prompt", question);
    await page.click("#send");
    await page.waitForSelector(`.answer[data-state=done] >> nth=${index + 1}`, { timeout: 120_000 });
  }
}

const [bundle, out, executablePath = "/usr/bin/chromium"] = process.argv.slice(2);
if (bundle === undefined || out === undefined) throw new Error("usage: screenshots BUNDLE OUT [CHROMIUM]");
await main(bundle, out, executablePath);
