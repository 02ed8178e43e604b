"""Packages that people call servers with, unchanged and in their defaults, against a served model: the newest of each
that pip and npm install now. Each gets greedy text that is the model's, whole and streamed.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from installed_packages import node_with, python_with

pytestmark = pytest.mark.exhaustive

PYTHON_PACKAGES = (
    *("openai", "openai-agents", "pydantic-ai-slim[openai,anthropic]", "litellm", "langchain-openai"),
    *("langchain-anthropic", "langchain-ollama", "anthropic", "ollama", "llm", "llm-ollama"),
)
NODE_PACKAGES = ("ai", "@ai-sdk/openai", "@ai-sdk/anthropic", "ollama")
SECONDS = 240
QUESTION, ANSWER = "what is 27 + 58?", "27 + 58 = 85"

# By what it shows, a script that prints each text that it got, as a line of JSON. ADDRESS is the server's.
PYTHON = {
    "openai-agents": """
from agents import Agent, ModelSettings, Runner
agent = Agent(name="a", model="demo", model_settings=ModelSettings(temperature=0))
import asyncio
async def ask():
    show((await Runner.run(agent, QUESTION)).final_output)
    run = Runner.run_streamed(agent, QUESTION)
    parts = [event.data.delta async for event in run.stream_events()
             if event.type == "raw_response_event" and event.data.type == "response.output_text.delta"]
    show("".join(parts))
    show(run.final_output)
asyncio.run(ask())
""",
    "pydantic-ai, Responses": """
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIResponsesModel
agent = Agent(OpenAIResponsesModel("demo"), model_settings={"temperature": 0})
show(agent.run_sync(QUESTION).output)
import asyncio
async def stream():
    async with agent.run_stream(QUESTION) as run:
        show([text async for text in run.stream_text()][-1])
asyncio.run(stream())
""",
    "pydantic-ai, Anthropic's": """
from pydantic_ai import Agent
show(Agent("anthropic:demo", model_settings={"temperature": 0}).run_sync(QUESTION).output)
""",
    "litellm, Responses": """
import litellm
given = dict(model="openai/demo", input=QUESTION, temperature=0)
show(litellm.responses(**given).output[0].content[0].text)
events = litellm.responses(**given, stream=True)
show("".join(event.delta for event in events if event.type == "response.output_text.delta"))
""",
    "litellm, chats": """
import litellm
messages = [{"role": "user", "content": QUESTION}]
show(litellm.completion("openai/demo", messages, temperature=0).choices[0].message.content)
show(litellm.completion("anthropic/demo", messages, temperature=0).choices[0].message.content)
show(litellm.completion("ollama_chat/demo", messages, temperature=0).choices[0].message.content)
stream = litellm.completion("openai/demo", messages, temperature=0, stream=True)
show("".join(chunk.choices[0].delta.content or "" for chunk in stream))
""",
    "langchain": """
from langchain_anthropic import ChatAnthropic
from langchain_ollama import ChatOllama
from langchain_openai import ChatOpenAI
for model in (
    ChatOpenAI(model="demo", temperature=0),
    ChatOpenAI(model="demo", temperature=0, use_responses_api=True),
    ChatAnthropic(model_name="demo", temperature=0),
    ChatOllama(model="demo", temperature=0),
):
    show(model.invoke(QUESTION).text)
    show("".join(chunk.text for chunk in model.stream(QUESTION)))
""",
    "ollama": """
import ollama
messages = [{"role": "user", "content": QUESTION}]
show(ollama.chat("demo", messages, options={"temperature": 0}).message.content)
show("".join(part.message.content for part in ollama.chat("demo", messages, options={"temperature": 0}, stream=True)))
""",
    "llm-ollama": """
import subprocess, sys
command = [sys.executable, "-m", "llm", "-m", "ollama/demo", "-o", "temperature", "0", QUESTION]
show(subprocess.run([*command, "--no-stream"], check=True, stdout=subprocess.PIPE, text=True).stdout)
show(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
""",
}
NODE = {
    "ai": """
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { generateText, streamText } from "ai";
const openai = createOpenAI();
for (const model of [openai("demo"), openai.chat("demo"), createAnthropic()("demo")]) {
  const given = { model, prompt: QUESTION, temperature: 0 };
  show((await generateText(given)).text);
  let text = "";
  for await (const part of streamText(given).textStream) text += part;
  show(text);
}
""",
    "ollama": """
import { Ollama } from "ollama";
const client = new Ollama({ host: ADDRESS });
const given = { model: "demo", messages: [{ role: "user", content: QUESTION }], options: { temperature: 0 } };
show((await client.chat(given)).message.content);
let text = "";
for await (const part of await client.chat({ ...given, stream: true })) text += part.message.content;
show(text);
""",
}


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """The demo model on the CPU, served by the command."""
    # Not at the top: it imports a browser's driver.
    from demo_encoder.recall import served

    with served("demo", "--target", "cpu") as url:
        yield url


@pytest.fixture(scope="module")
def python() -> Path:
    """A Python with the packages. Their newest versions are installed once for this list."""
    return python_with(*PYTHON_PACKAGES)


@pytest.fixture(scope="module")
def node() -> Path:
    """The folder with the packages for Node.js."""
    return node_with(*NODE_PACKAGES)


def environment(address: str, home: Path) -> dict[str, str]:
    """As their documentation says: the address and a key, and nothing that is of this user."""
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "OPENAI_BASE_URL": f"{address}/v1",
        "OPENAI_API_BASE": f"{address}/v1",
        "OPENAI_API_KEY": "none",
        "OPENAI_AGENTS_DISABLE_TRACING": "1",
        "ANTHROPIC_BASE_URL": address,
        "ANTHROPIC_API_BASE": address,
        "ANTHROPIC_API_KEY": "none",
        "OLLAMA_HOST": address,
        "OLLAMA_API_BASE": address,
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }


def texts(command: list[str | Path], environment: Mapping[str, str], folder: Path) -> list[str]:
    done = subprocess.run(
        command, env=environment, cwd=folder, check=False, capture_output=True, text=True, timeout=SECONDS
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith('"')]


def check(found: list[str], script: str) -> None:
    assert len(found) >= script.count("show(")
    assert {text.strip() for text in found} == {ANSWER}


@pytest.mark.parametrize("name", PYTHON)
def test_packages_for_python_get_the_models_text(name: str, address: str, python: Path, tmp_path: Path) -> None:
    script = tmp_path / "client.py"
    script.write_text(
        f"import json\nQUESTION, ADDRESS = {QUESTION!r}, {address!r}\n"
        f"def show(text): print(json.dumps(text))\n{PYTHON[name]}"
    )
    check(texts([python, script], environment(address, tmp_path), tmp_path), PYTHON[name])


@pytest.mark.parametrize("name", NODE)
def test_packages_for_node_get_the_models_text(name: str, address: str, node: Path, tmp_path: Path) -> None:
    script = node / f"client-{name}.mjs"
    script.write_text(
        f"const [QUESTION, ADDRESS] = {json.dumps([QUESTION, address])};\n"
        f"const show = (text) => console.log(JSON.stringify(text));\n{NODE[name]}"
    )
    variables = environment(address, tmp_path) | {"ANTHROPIC_BASE_URL": f"{address}/v1"}
    check(texts(["node", script], variables, node), NODE[name])
