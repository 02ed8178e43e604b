import { afterEach, expect, test, vi } from "vitest";

import { bundleAddress, httpSource } from "../../src/runtime/source.js";

const SIGNAL = new AbortController().signal;
const DATA = "0123456789";

interface Asked {
  readonly url: string;
  readonly range: string | null;
  readonly ifRange: string | null;
  readonly cache: RequestCache | undefined;
}

/** A server whose answers are taken from a list, one a request. */
function answer(...responses: Response[]): Asked[] {
  const asked: Asked[] = [];
  vi.stubGlobal("fetch", (url: string, init: RequestInit) => {
    const headers = new Headers(init.headers);
    asked.push({ url, range: headers.get("Range"), ifRange: headers.get("If-Range"), cache: init.cache });
    return Promise.resolve(responses.shift() ?? Response.error());
  });
  return asked;
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

test("an address is a folder's, and keeps its query", () => {
  expect(bundleAddress("https://host/a/bundle?key=1#part").href).toBe("https://host/a/bundle/?key=1");
});

test("the rest of a file is asked for and taken", async () => {
  const asked = answer(partial(4, "bytes 4-9/10"));
  expect(await openAt(4)).toEqual({ start: 4, etag: '"v1"', text: "456789" });
  expect(asked).toEqual([
    { url: "https://host/bundle/weights/0.bin?key=1", range: "bytes=4-", ifRange: null, cache: "no-store" },
  ]);
});

test("the page's own server is told of which version the rest is wanted, another is not", async () => {
  vi.stubGlobal("location", new URL("https://host/page.html"));
  const asked = answer(partial(4, "bytes 4-9/10"), partial(4, "bytes 4-9/10"));
  await openAt(4, '"v1"');
  expect(asked[0]?.ifRange).toBe('"v1"');
  vi.stubGlobal("location", new URL("https://elsewhere/page.html"));
  await openAt(4, '"v1"');
  expect(asked[1]?.ifRange).toBeNull();
});

test("a server that sends the whole file starts from the beginning", async () => {
  const asked = answer(new Response(DATA));
  expect(await openAt(4)).toEqual({ start: 0, etag: null, text: DATA });
  expect(asked.length).toBe(1);
});

test.each([
  ["another range", partial(3, "bytes 3-9/10")],
  ["no range", partial(4, null)],
  ["several ranges", partial(4, "multipart/byteranges")],
  ["that there is no such range", new Response("", { status: 416 })],
])("where a server answers with %s, the file is asked for whole", async (_, response) => {
  const asked = answer(response, new Response(DATA));
  expect(await openAt(4)).toMatchObject({ start: 0, text: DATA });
  expect(asked.map(({ range }) => range)).toEqual(["bytes=4-", null]);
});

test("another origin's range that cannot be seen is taken for the one that was asked for", async () => {
  const response = partial(4, null);
  Object.defineProperty(response, "type", { value: "cors" });
  answer(response);
  expect(await openAt(4)).toMatchObject({ start: 4, text: "456789" });
});

test("a weak ETag stands for no version", async () => {
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

test("without a store, the browser's own copy is taken only where the server says that it is still good", async () => {
  const asked = answer(new Response(DATA));
  await httpSource("https://host/bundle/").open("manifest.json", SIGNAL);
  expect(asked).toEqual([{ url: "https://host/bundle/manifest.json", range: null, ifRange: null, cache: "no-cache" }]);
});
