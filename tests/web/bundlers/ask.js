// The requests that every application of these tests sends to its engine.

/** Options that make a load short. */
export const LOAD = { selfTest: "never", store: false, tuning: false };

const MESSAGES = [{ role: "user", content: "what is 27 + 58?" }];
const SCHEMA = {
  type: "object",
  properties: { sum: { type: "integer" } },
  required: ["sum"],
  additionalProperties: false,
};

/** The names of the scripts that this page has loaded. */
function scripts() {
  const paths = performance.getEntriesByType("resource").map(({ name }) => new URL(name, "file:").pathname);
  return paths.filter((path) => path.endsWith("js")).map((path) => path.slice(path.lastIndexOf("/") + 1));
}

/** An ordinary answer, an answer that JSON Schema constrains, and the scripts that the second one loaded. */
export async function ask(engine) {
  const answer = async (params) =>
    (await engine.chat.completions.create({ messages: MESSAGES, temperature: 0, ...params })).choices[0].message
      .content;
  const text = await answer({ max_tokens: 16 });
  const before = new Set(scripts());
  const json = await answer({
    max_tokens: 24,
    response_format: { type: "json_schema", json_schema: { name: "sum", schema: SCHEMA } },
  });
  return { text, json, scriptsForJson: scripts().filter((name) => !before.has(name)) };
}

/** Write the answers, or the error, into the page. */
export async function show(loading) {
  const { dataset } = document.body;
  try {
    dataset.result = JSON.stringify(await ask(await loading));
  } catch (error) {
    dataset.error = String(error?.stack ?? error);
  }
  dataset.state = "done";
}
