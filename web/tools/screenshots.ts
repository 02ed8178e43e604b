// Takes screenshots of both pages in headless Chromium, in light and dark mode, in desktop and phone sizes: loading,
// welcome, answers, the panel, an error, and a measurement.
//
//     node dist/tools/screenshots.js BUNDLE OUT [CHROMIUM]

import { createServer } from "node:http";
import { readFile, mkdir } from "node:fs/promises";
import type { AddressInfo } from "node:net";
import { extname, join } from "node:path";

import { chromium } from "playwright-core";
import type { Page } from "playwright-core";

const FLAGS = [
  "--headless=new",
  "--no-sandbox",
  "--enable-unsafe-webgpu",
  "--use-webgpu-adapter=swiftshader",
  "--disable-quic",
  "--no-first-run",
  "--disable-background-networking",
  "--disable-component-update",
  "--disable-sync",
];
const TYPES: Readonly<Record<string, string>> = {
  ".html": "text/html",
  ".js": "text/javascript",
  ".css": "text/css",
  ".svg": "image/svg+xml",
};

const TIMEOUT_MS = 120_000;

async function main(bundle: string, out: string, executablePath: string): Promise<void> {
  await mkdir(out, { recursive: true });
  const server = createServer((request, response) => {
    const { pathname } = new URL(request.url ?? "/", "http://localhost");
    const path = pathname.startsWith("/bundle/")
      ? join(bundle, pathname.slice(8))
      : join("dist/page", pathname === "/" ? "index.html" : pathname);
    readFile(path).then(
      (bytes) => response.setHeader("content-type", TYPES[extname(path)] ?? "application/octet-stream").end(bytes),
      () => response.writeHead(404).end(),
    );
  }).listen(0);
  const address = `http://localhost:${(server.address() as AddressInfo).port}/`;
  const browser = await chromium.launch({ executablePath, args: FLAGS });
  for (const colorScheme of ["light", "dark"] as const) {
    for (const [size, width, height] of [
      ["desk", 1280, 800],
      ["phone", 390, 780],
    ] as const) {
      const page = await browser.newPage({ colorScheme, viewport: { width, height }, deviceScaleFactor: 2 });
      await shootAll(page, address, (what, fullPage = false) =>
        page.screenshot({ path: join(out, `${size}-${colorScheme}-${what}.png`), fullPage }),
      );
      await page.close();
    }
  }
  await browser.close();
  server.close();
}

async function shootAll(
  page: Page,
  address: string,
  shoot: (what: string, fullPage?: boolean) => Promise<unknown>,
): Promise<void> {
  await page.route("**/*.bin", (route) => new Promise((done) => setTimeout(done, 1500)).then(() => route.continue()));
  await page.goto(address);
  await page.waitForTimeout(700);
  await shoot("loading");
  await page.waitForSelector("body[data-state=ready]", { timeout: TIMEOUT_MS });
  await page.unroute("**/*.bin");
  await shoot("welcome");
  await chat(page);
  await shoot("chat");
  if (await page.isVisible("#open-panel")) {
    await page.click("#open-panel");
    await shoot("panel");
  }
  await page.goto(`${address}?bundle=./nowhere/`);
  await page.waitForSelector("body[data-state=error]");
  await shoot("error");
  await page.goto(`${address}bench.html`);
  await page.click("#run:enabled");
  await page.waitForSelector("[data-step=decode][data-state=running]", { timeout: TIMEOUT_MS });
  await shoot("bench-running");
  await page.waitForSelector("body[data-state=done]", { timeout: TIMEOUT_MS });
  await page.evaluate(() => {
    scrollTo(0, 0);
  });
  await shoot("bench", true);
}

async function chat(page: Page): Promise<void> {
  for (const [index, question] of ["dim the kitchen lights to 30 percent", "what is 27 + 58?"].entries()) {
    await page.fill("#prompt", question);
    await page.click("#send");
    await page.waitForSelector(`.answer[data-state=done] >> nth=${index}`, { timeout: TIMEOUT_MS });
  }
  await page.click(".ran summary >> nth=1");
}

const [bundle, out, executablePath = "/usr/bin/chromium"] = process.argv.slice(2);
if (bundle === undefined || out === undefined) throw new Error("usage: screenshots BUNDLE OUT [CHROMIUM]");
await main(bundle, out, executablePath);
