// A chat with React: the engine loads while the component is mounted, and answers are streamed into the list.

import { useChat, useEngine } from "@nearfar/web/react";
import { StrictMode, useState } from "react";
import { createRoot } from "react-dom/client";

import { element } from "../page.js";

function Chat() {
  const { engine, status: loading, progress, error: loadError } = useEngine("./bundle/");
  const { messages, status, error, send, stop, regenerate } = useChat({ engine, params: { temperature: 0 } });
  const [question, setQuestion] = useState("what is 27 + 58?");
  if (loading === "error") return <p role="alert">{String(loadError)}</p>;
  if (loading !== "ready") return <progress max={progress?.totalBytes} value={progress?.loadedBytes} />;
  const isAnswering = status === "submitted" || status === "streaming";
  return (
    <>
      <ol>
        {messages.map(({ id, role, content }) => (
          <li key={id} className={role}>
            {content}
          </li>
        ))}
      </ol>
      {status === "error" && <p role="alert">{String(error)}</p>}
      <form
        onSubmit={(event) => {
          event.preventDefault();
          void send(question);
        }}
      >
        <input
          aria-label="Your question"
          value={question}
          onChange={({ target }) => {
            setQuestion(target.value);
          }}
        />
        <button disabled={isAnswering}>Send</button>
      </form>
      <button onClick={stop} disabled={!isAnswering}>
        Stop
      </button>
      <button onClick={() => void regenerate()} disabled={isAnswering || messages.length === 0}>
        Again
      </button>
    </>
  );
}

createRoot(element("root")).render(
  <StrictMode>
    <Chat />
  </StrictMode>,
);
