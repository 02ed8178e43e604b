import { afterEach, expect, test, vi } from "vitest";

import { bundleAddress, httpSource, parseContentRange } from "../../src/runtime/source.js";

const SIGNAL = new AbortController().signal;
const DATA = "0123456789";

interface SeenRequest {
  readonly url: string;
  readonly range: string | null;
  readonly ifRange: string | null;
  readonly cache: RequestCache | undefined;
}

/** A server that sends the responses of a list, one for each request. */
function answer(...responses: Response[]): SeenRequest[] {
  const requests: SeenRequest[] = [];
  vi.stubGlobal("fetch", (url: string, init: RequestInit) => {
    const headers = new Headers(init.headers);
    requests.push({ url, range: headers.get("Range"), ifRange: headers.get("If-Range"), cache: init.cache });
    return Promise.resolve(responses.shift() ?? Response.error());
  });
  return requests;
}

function partial(start: number, range: string | null, etag = '"v1"'): Response {
  const headers = new Headers({ ETag: etag });
  if (range !== null) headers.set("Content-Range", range);
  return new Response(DATA.slice(start), { status: 206, headers });
}

async function openAt(
  offset: number,
  etag: string | null = null,
): Promise<{ start: number; etag: string | null; text: string }> {
  const part = await httpSource("https://host/bundle?key=1").openAt?.("weights/0.bin", offset, etag, SIGNAL);
  if (part === undefined) throw new Error("no openAt");
  return { start: part.start, etag: part.etag, text: await new Response(part.stream).text() };
}

afterEach(() => {
  vi.unstubAllGlobals();
});

test("an address is that of a folder, and keeps its query", () => {
  expect(bundleAddress("https://host/a/bundle?key=1#part").href).toBe("https://host/a/bundle/?key=1");
});

test("the rest of a file is requested and used", async () => {
  const requests = answer(partial(4, "bytes 4-9/10"));
  expect(await openAt(4)).toEqual({ start: 4, etag: '"v1"', text: "456789" });
  expect(requests).toEqual([
    { url: "https://host/bundle/weights/0.bin?key=1", range: "bytes=4-", ifRange: null, cache: "no-store" },
  ]);
});

test("the version of the file is sent to the page's own server, but not to another server", async () => {
  vi.stubGlobal("location", new URL("https://host/page.html"));
  const requests = answer(partial(4, "bytes 4-9/10"), partial(4, "bytes 4-9/10"));
  await openAt(4, '"v1"');
  expect(requests[0]?.ifRange).toBe('"v1"');
  vi.stubGlobal("location", new URL("https://elsewhere/page.html"));
  await openAt(4, '"v1"');
  expect(requests[1]?.ifRange).toBeNull();
});

test("a server that sends the whole file starts from the beginning", async () => {
  const requests = answer(new Response(DATA));
  expect(await openAt(4)).toEqual({ start: 0, etag: null, text: DATA });
  expect(requests.length).toBe(1);
});

test.each([
  ["another range", partial(3, "bytes 3-9/10")],
  ["no range", partial(4, null)],
  ["several ranges", partial(4, "multipart/byteranges")],
  ["that there is no such range", new Response("", { status: 416 })],
])("if a server answers with %s, the entire file is requested", async (_, response) => {
  const requests = answer(response, new Response(DATA));
  expect(await openAt(4)).toMatchObject({ start: 0, text: DATA });
  expect(requests.map(({ range }) => range)).toEqual(["bytes=4-", null]);
});

test("a hidden range of another origin counts as the requested one", async () => {
  const response = partial(4, null);
  Object.defineProperty(response, "type", { value: "cors" });
  answer(response);
  expect(await openAt(4)).toMatchObject({ start: 4, text: "456789" });
});

test("a weak ETag is not a version", async () => {
  answer(new Response(DATA, { headers: { ETag: 'W/"v1"' } }));
  expect((await openAt(0)).etag).toBeNull();
});

test("a missing file is a BundleError with the status", async () => {
  answer(new Response("", { status: 404 }));
  await expect(openAt(4)).rejects.toMatchObject({
    code: "bundle_error",
    details: { file: "weights/0.bin", status: 404 },
  });
});

test("without a store, the browser's cached copy is used only if the server confirms it", async () => {
  const requests = answer(new Response(DATA));
  await httpSource("https://host/bundle/").open("manifest.json", SIGNAL);
  expect(requests).toEqual([
    { url: "https://host/bundle/manifest.json", range: null, ifRange: null, cache: "no-cache" },
  ]);
});

test.each([
  ["bytes 100-199/200", { start: 100, end: 199, size: 200 }],
  ["bytes 0-0/1", { start: 0, end: 0, size: 1 }],
  ["BYTES 5-9/*", { start: 5, end: 9, size: null }],
  [" bytes  7-8/4294967297 ", { start: 7, end: 8, size: 4294967297 }],
])("%j is a range of bytes", (header, range) => {
  expect(parseContentRange(header)).toEqual(range);
});

test.each([
  "",
  "bytes */200",
  "bytes 9-5/200",
  "bytes 5-200/200",
  "bytes=5-9/200",
  "items 5-9/200",
  "bytes 5-/200",
  "bytes 1-2,4-5/200",
  "bytes -5-9/200",
])("%j is not a range of bytes", (header) => {
  expect(parseContentRange(header)).toBeNull();
});
