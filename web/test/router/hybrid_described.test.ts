// Pictures and sound stay on the device, and far receives the texts that near makes of them: the far side records every
// byte.

import { expect, test } from "vitest";

import { DeviceError, RequestError } from "../../src/errors.js";
import type { FakeClock, FakeFar, NearScript } from "./fakes.js";
import { near, withEyes } from "./fakes.js";
import { QUESTION, SURE, WATCHED, read, routes, setUp } from "./hybrid_set_up.js";

const PICTURE = { type: "image_url", image_url: { url: "data:image/png;base64,iVBORw0KGgo=" } };
const RECORDING = { type: "input_audio", input_audio: { data: "UklGRg==", format: "wav" } };
const LOOK = [{ role: "user", content: [{ type: "text", text: "what is it?" }, PICTURE] }];
const HEAR = [{ role: "user", content: [RECORDING, { type: "text", text: "what did she say?" }] }];
const BOAT = "[Picture, described on the user's device: a red boat]";
const WORDS = "[Sound, transcribed on the user's device: good morning]";
const PATTERN = "\\b[0-9]{3}-[0-9]{2}-[0-9]{4}\\b";
const PRIVATE = { patterns: [PATTERN], media: "describe" };
const said = (text: string) => ({ transcribe: () => Promise.resolve({ text }) });

/** A hybrid whose near side sees. The script "a red boat" is its description. */
async function seeing(policy: object, scripts: readonly NearScript[], options: Parameters<typeof setUp>[0] = {}) {
  const { engine, source } = near(...scripts);
  const made = await setUp({
    policy: { mode: "prefer-far", private: PRIVATE, ...policy },
    near: withEyes(engine),
    farOptions: { vision: true, sound: true },
    ...options,
  });
  return { ...made, source };
}

/** A picture's key takes time that the clock does not count. */
async function inTime<T>(answer: Promise<T>, clock: FakeClock): Promise<T> {
  const state = { isSettled: false };
  const settled = answer.finally(() => (state.isSettled = true));
  while (!state.isSettled) await clock.pass(1000);
  return settled;
}

/** No byte of a picture or a recording has left. */
function expectNoMedia(far: FakeFar): void {
  expect(far.sent).not.toMatch(/iVBOR|UklG|image_url|input_audio/);
}

test.each([
  ["the last message", LOOK, 0, 1],
  ["an earlier one", [...LOOK, { role: "assistant", content: "hm" }, QUESTION], 0, 1],
  [
    "a tool's result",
    [
      QUESTION,
      {
        role: "assistant",
        content: null,
        tool_calls: [{ id: "1", type: "function", function: { name: "see", arguments: "{}" } }],
      },
      { role: "tool", tool_call_id: "1", content: [PICTURE] },
    ],
    2,
    0,
  ],
] as const)(
  "far receives the description of a picture in %s, word for word as in the route",
  async (_, messages, at, part) => {
    const { nf, far, source } = await seeing({}, [{ text: "a red boat" }]);
    const described = [{ path: `messages[${at}].content[${part}]`, kind: "picture", text: BOAT }];
    expect(await nf.chat.completions.create({ messages } as never)).toMatchObject({
      route: { side: "far", reason: "prefer", described },
    });
    const chunks = await read(nf, { messages });
    expect(routes(chunks)[0]).toMatchObject({ side: "far", reason: "prefer" });
    expect(chunks[0]?.route?.described).toEqual(described);
    expect(far.bodies.map((body) => body.messages?.[at]?.content.at(part))).toEqual([
      { type: "text", text: BOAT },
      { type: "text", text: BOAT },
    ]);
    // The second answer's description is that of the first one.
    expect(source.requests.length).toBe(1);
    expectNoMedia(far);
  },
);

test("a description that is private stays near, which answers about the picture itself", async () => {
  const { nf, far, source } = await seeing({}, [{ text: "078-05-1120" }]);
  const { route } = await nf.chat.completions.create({ messages: LOOK } as never);
  expect([route?.side, route?.reason, route?.described]).toEqual(["near", "private", undefined]);
  await expect(nf.chat.completions.create({ messages: LOOK, pin: "far" } as never)).rejects.toMatchObject({
    code: "request_error",
    details: { code: "private" },
  });
  expect([far.chats, far.sent.includes("078"), source.requests.length]).toEqual([[], false, 2]);
});

test("pictures of a private request are not described", async () => {
  const { nf, far, source } = await seeing({}, [{ text: "a red boat" }]);
  const { route } = await nf.chat.completions.create({ messages: LOOK, labels: ["private"] } as never);
  expect([route?.side, route?.reason, far.chats, source.requests.length]).toEqual(["near", "private", [], 1]);
});

test.each([
  ["fails at once", { text: "", then: new DeviceError("lost") }],
  ["fails within it", { text: "a re", then: new DeviceError("lost") }],
  ["refuses the picture", { text: "", then: new RequestError("damaged") }],
  ["never ends", { text: "a re", then: "hang" }],
  ["says nothing", { text: "" }],
] as const)("a picture never leaves if the description %s", async (_, script) => {
  for (const continues of [true, false])
    for (const mode of ["prefer-far", "auto"])
      for (const stream of [false, true]) {
        const { nf, far, clock } = await seeing(
          {
            mode,
            fallback: { near_continues: continues },
            escalation: { ...WATCHED, warm: "always" },
            breaker: { failures: 1 },
            retries: 2,
            device: mode === "auto" ? { min_battery: 0.5 } : {},
          },
          [script],
          { hints: { battery: 0.1, charging: false } },
        );
        for (let turn = 0; turn < 3; turn++) {
          const answer = (
            stream ? read(nf, { messages: LOOK }) : nf.chat.completions.create({ messages: LOOK } as never)
          )
            .then((found) => (Array.isArray(found) ? found.at(-1)?.route?.side : found.route?.side))
            .catch((error: unknown) => (error as RequestError).details.code);
          const found = await inTime(answer, clock);
          expect(found).not.toBe("far");
          if (!continues && turn === 0) expect(found).toBe("undescribed");
        }
        expect(far.chats).toEqual([]);
        expectNoMedia(far);
      }
});

test("near continues with the same texts if far fails in the middle of its answer, also after retries", async () => {
  for (const scripts of [[{ texts: ["far "], then: "break" as const }], [{ status: 503 }, { status: 503 }]]) {
    const { nf, far, clock } = await seeing({ retries: 1 }, [{ text: "a red boat" }, SURE], { far: scripts });
    const answer = nf.chat.completions.create({ messages: LOOK } as never);
    expect(await inTime(answer, clock)).toMatchObject({
      route: { side: "near", reason: "far_failed", described: [{ text: BOAT }] },
    });
    expect(far.chats.length).toBe(scripts.length);
    expectNoMedia(far);
  }
});

test("near that prefers itself reads the picture, and its answer does not change sides", async () => {
  const { nf, far } = await seeing({ mode: "prefer-near", escalation: { ...WATCHED, warm: "always" } }, [
    { text: "abcdefgh", logprobs: [-9], then: new DeviceError("lost") },
  ]);
  await expect(nf.chat.completions.create({ messages: LOOK } as never)).rejects.toMatchObject({ code: "device_error" });
  expect(far.chats).toEqual([]);
});

test("a transcriber writes down a recording, for far and for a near side that does not hear", async () => {
  const options = { transcriber: said(" good morning ") };
  const far = await seeing({}, [SURE], options);
  expect(await far.nf.chat.completions.create({ messages: HEAR } as never)).toMatchObject({
    route: { side: "far", described: [{ path: "messages[0].content[0]", kind: "sound", text: WORDS }] },
  });
  expect(far.far.bodies[0]?.messages?.[0]?.content).toEqual([
    { type: "text", text: WORDS },
    { type: "text", text: "what did she say?" },
  ]);
  expectNoMedia(far.far);
  const own = await seeing({ mode: "prefer-near" }, [SURE], options);
  expect(await own.nf.chat.completions.create({ messages: HEAR } as never)).toMatchObject({
    choices: [{ message: { content: "near by" } }],
    route: { side: "near", reason: "prefer" },
  });
  const secret = await seeing({}, [SURE], { transcriber: said("it is 078-05-1120") });
  expect(await secret.nf.chat.completions.create({ messages: HEAR } as never)).toMatchObject({
    route: { side: "near", reason: "private" },
  });
  expect([own.far.chats, secret.far.chats]).toEqual([[], []]);
});

test("a recording that is not written down stays, and the error says where it is and why", async () => {
  const none = await seeing({}, [SURE]);
  await expect(none.nf.chat.completions.create({ messages: HEAR } as never)).rejects.toMatchObject({
    details: { code: "sound" },
    message: expect.stringContaining("a recording (messages[0].content[0])") as string,
  });
  const transcriber = { transcribe: () => Promise.reject(new RequestError("no samples")) };
  const damaged = await seeing({}, [SURE], { transcriber });
  await expect(damaged.nf.chat.completions.create({ messages: HEAR } as never)).rejects.toMatchObject({
    code: "request_error",
    details: { code: "undescribed" },
    message:
      "the request has a recording (messages[0].content[0]), which was not described on this device, so it was not " +
      "sent far: no samples",
  });
  expect([none.far.chats, damaged.far.chats]).toEqual([[], []]);
});

const PIXELS = { width: 1, height: 1, data: new Uint8Array([1, 2, 3]) };
const png = (...bytes: number[]) => new Blob([Uint8Array.from([137, 80, 78, 71, ...bytes])], { type: "image/png" });
const imageOf = (image: unknown) => [
  {
    role: "user",
    content: [
      { type: "text", text: "what is it?" },
      { type: "image", image },
    ],
  },
];

test("near answers about an image of the page, as it is", async () => {
  const { engine, source } = near(SURE);
  const seen: unknown[] = [];
  const eyes = withEyes(engine);
  const { create } = eyes.chat.completions;
  eyes.chat.completions.create = ((
    params: { readonly messages: readonly { readonly content: unknown }[] },
    options: unknown,
  ) => {
    seen.push(params.messages[0]?.content);
    return create(params as never, options as never);
  }) as unknown as typeof create;
  for (const image of [png(1), PIXELS]) {
    const { nf, far } = await setUp({
      policy: { private: { patterns: [PATTERN] } },
      near: eyes,
      farOptions: { vision: true },
    });
    expect(await nf.chat.completions.create({ messages: imageOf(image) } as never)).toMatchObject({
      route: { side: "near", reason: "media" },
    });
    expect(far.chats).toEqual([]);
  }
  expect([seen, source.requests.length]).toEqual([[png(1), PIXELS].map((image) => imageOf(image)[0]?.content), 2]);
});

test("far receives the bytes of an image of the page, and of one at an address that ends with the page", async () => {
  const address = URL.createObjectURL(png(2));
  const { nf, far } = await setUp({ farOptions: { vision: true } });
  const own = { type: "image_url", image_url: { url: address } };
  const messages = [
    ...imageOf(png(1)),
    { role: "assistant", content: "hm" },
    { role: "user", content: [own, PICTURE] },
  ];
  for (const stream of [false, true]) {
    const answer = await (stream
      ? read(nf, { messages })
      : nf.chat.completions.create({ messages } as never).then((whole) => [whole]));
    expect(answer.at(-1)?.route).toMatchObject({ side: "far", reason: "vision" });
    const sent = (bytes: string) => ({ type: "image_url", image_url: { url: `data:image/png;base64,${btoa(bytes)}` } });
    expect(far.bodies.at(-1)?.messages?.map(({ content }) => content)).toEqual([
      [{ type: "text", text: "what is it?" }, sent("\u0089PNG\u0001")],
      "hm",
      [sent("\u0089PNG\u0002"), PICTURE],
    ]);
  }
  URL.revokeObjectURL(address);
  await expect(nf.chat.completions.create({ messages } as never)).rejects.toMatchObject({
    code: "request_error",
    message: expect.stringContaining("A picture cannot be sent: the picture blob:") as string,
  });
  // Here, nothing writes the files of pixels.
  const pixels = nf.chat.completions.create({ messages: imageOf(PIXELS) } as never);
  await expect(pixels).rejects.toMatchObject({ code: "request_error", details: { param: "messages" } });
});

test("an image of the page is described, a file's bytes once", async () => {
  const { nf, far, source } = await seeing({}, [{ text: "a red boat" }, { text: "a red boat" }, { text: "a boat" }]);
  const described = (text: string) => ({
    route: {
      side: "far",
      described: [
        { path: "messages[0].content[1]", kind: "picture", text: `[Picture, described on the user's device: ${text}]` },
      ],
    },
  });
  const answer = (image: unknown) => nf.chat.completions.create({ messages: imageOf(image) } as never);
  expect(await answer(png(1))).toMatchObject(described("a red boat"));
  expect(await answer(png(1))).toMatchObject(described("a red boat"));
  expect(source.requests.length).toBe(1);
  expect(await answer(png(2))).toMatchObject(described("a red boat"));
  // Pixels may change.
  expect(await answer(PIXELS)).toMatchObject(described("a boat"));
  expect(await answer(PIXELS)).toMatchObject(described("a boat"));
  expect(source.requests.length).toBe(4);
  expectNoMedia(far);
});

const FILM = { type: "video_url", video_url: { url: "data:video/mp4;base64,UklGRg==" } };
const FRAMES = { type: "video", frames: ["data:image/png;base64,iVBORw0KGgo="], fps: 1 };
const clip = (byte: number) => ({ type: "video", video: new Blob([Uint8Array.of(byte)], { type: "video/webm" }) });

test.each([
  ["in base64", FILM, FILM, 1],
  ["as frames", FRAMES, FRAMES, 1],
  ["of the page", clip(1), clip(1), 1],
  ["of the page, and another one", clip(1), clip(2), 2],
  ["at an address", { type: "video_url", video_url: { url: "https://here/a.mp4" } }, undefined, 2],
])("far receives the description of a video %s, which is made once for its bytes", async (_, first, second, count) => {
  const text = "[Video, described on the user's device: a boat leaves]";
  const { engine, source } = near({ text: "a boat leaves" });
  const eyes = withEyes(engine);
  const { nf, far } = await seeing({}, [], { near: { ...eyes, info: { ...eyes.info, video: true } } });
  for (const part of [first, second ?? first]) {
    const messages = [{ role: "user", content: [part] }];
    expect(await nf.chat.completions.create({ messages } as never)).toMatchObject({
      route: { side: "far", described: [{ path: "messages[0].content[0]", kind: "video", text }] },
    });
  }
  expect(source.requests.length).toBe(count);
  expect(far.bodies.map(({ messages }) => messages?.[0]?.content)).toEqual([
    [{ type: "text", text }],
    [{ type: "text", text }],
  ]);
  expect(new TextDecoder().decode(Uint8Array.from(source.requests[0]?.promptIds ?? []))).toContain(
    "Describe this video, and what happens in it,",
  );
  expectNoMedia(far);
});

test("a near side that reads pictures alone describes no video", async () => {
  const { nf, far } = await seeing({}, [SURE]);
  const messages = [{ role: "user", content: [FILM] }];
  await expect(nf.chat.completions.create({ messages } as never)).rejects.toMatchObject({ details: { code: "video" } });
  expect(far.chats).toEqual([]);
});
