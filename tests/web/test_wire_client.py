"""The package's client in Node against our server: a near model that guesses there, a far one that checks here."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import pytest
from asgi import run
from hash_model import answer_of
from verifying_executor import served

from nearfar.server_fallback.api.config import ApiConfig
from nearfar.server_fallback.api.keys import read_keys

SPECULATION = Path(__file__).parents[2] / "web" / "dist" / "speculation.js"
KEY = "sk-web-12345678"
PROMPT = [13, 2, 3, 13, 10, 1, 5, 13, 1, 14]
# The near model is the hash model, but for every third token.
SCRIPT = """
import { WireSpeculation } from SPECULATION;
const near = {
  info: { context: 64 },
  async *generateTokens({ promptIds, maxTokens }) {
    const tokens = [...promptIds];
    for (let count = 0; count < maxTokens; count++) {
      const following = tokens.reduce((value, token) => (value * 31 + token + 1) % 65521, 0) % 16;
      tokens.push(tokens.length % 3 === 0 ? (following + 1) % 16 : following);
      yield { tokenId: tokens.at(-1), logprob: null, alternatives: [] };
    }
  },
};
async function ask(tokenizerSha256) {
  const source = new WireSpeculation(near, { ...OPTIONS, tokenizerSha256 });
  const tokens = [];
  for await (const { tokenId } of source.generateTokens({ promptIds: PROMPT, maxTokens: 20 })) tokens.push(tokenId);
  return { ...source.counts, tokens };
}
console.log(JSON.stringify([await ask("5ha"), await ask("other").catch(({ code, details }) => ({ code, details }))]));
"""


@pytest.mark.skipif(shutil.which("node") is None, reason="there is no node")
def test_the_client_in_node_gets_the_far_models_tokens() -> None:
    async def work() -> None:
        config = ApiConfig(keys=read_keys(None, {"NEARFAR_API_KEYS": f"web={KEY}"}))
        async with served(config=config) as server:
            options = {"baseURL": f"http://127.0.0.1:{server.port}/v1", "model": "fake", "apiKey": KEY}
            values = {"SPECULATION": SPECULATION.as_uri(), "OPTIONS": options, "PROMPT": PROMPT}
            script = SCRIPT
            for name, value in values.items():
                script = script.replace(name, json.dumps(value))
            # Node 20 has a WebSocket behind this option, later ones without.
            command = ("node", "--experimental-websocket", "--no-warnings", "--input-type=module", "-e", script)
            process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
            output, _ = await process.communicate()
            answer, refused = json.loads(output)
            assert answer["tokens"] == answer_of(PROMPT, 20, 64)[0]
            assert answer["rounds"] < len(answer["tokens"])
            assert 0 < answer["accepted"] < answer["drafted"]
            assert (refused["code"], refused["details"]["code"]) == ("request_error", "tokenizer_differs")

    run(work())
