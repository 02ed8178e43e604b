// A chat on one screen: the model is downloaded once, answers are streamed, and the app may go to the background and
// return.
//
// In an Expo project, run: npx expo install expo-file-system onnxruntime-react-native @nearfar/react-native, then
// `npx expo prebuild`, because Expo Go has no ONNX Runtime. BUNDLE is the address of a folder that
// `nearfar compile MODEL --target onnx -o bundle` wrote.

import { expoFiles, followApp, load } from "@nearfar/react-native";
import type { Engine, Session } from "@nearfar/react-native";
import * as FileSystem from "expo-file-system";
import * as ort from "onnxruntime-react-native";
import { useEffect, useRef, useState } from "react";
import {
  AppState,
  Button,
  KeyboardAvoidingView,
  Platform,
  SafeAreaView,
  ScrollView,
  StyleSheet,
  Text,
  TextInput,
} from "react-native";

const BUNDLE = "https://example.org/bundle/";
const SESSION = "chat";

interface Turn {
  readonly question: string;
  readonly answer: string;
}

export default function App() {
  const [state, setState] = useState("Starting");
  const [turns, setTurns] = useState<readonly Turn[]>([]);
  const [question, setQuestion] = useState("");
  const session = useRef<Session | null>(null);
  const answering = useRef<AbortController | null>(null);

  useEffect(() => {
    const loading = new AbortController();
    let engine: Engine | null = null;
    let unfollow = () => {};
    const start = async () => {
      const files = expoFiles(FileSystem);
      engine = await load(BUNDLE, {
        files,
        ort,
        signal: loading.signal,
        onProgress: ({ phase, loadedBytes, totalBytes }) =>
          setState(phase === "download" ? `Downloading ${Math.round((100 * loadedBytes) / totalBytes)} %` : phase),
      });
      const restored = engine.createSession();
      // The last conversation, if there was one.
      await restored.restore(SESSION).catch(() => undefined);
      session.current = restored;
      unfollow = followApp(engine, AppState, {
        sessions: () => [[SESSION, restored]],
        onError: (error) => setState(String(error)),
      });
      setState("");
    };
    start().catch((error) => {
      if (!loading.signal.aborted) setState(String(error));
    });
    return () => {
      loading.abort();
      unfollow();
      engine?.destroy();
    };
  }, []);

  const ask = async () => {
    if (session.current === null || answering.current !== null) return;
    const sent = question;
    setQuestion("");
    setTurns((before) => [...before, { question: sent, answer: "" }]);
    answering.current = new AbortController();
    try {
      for await (const { text } of session.current.generate(sent, {
        maxTokens: 300,
        signal: answering.current.signal,
      })) {
        setTurns((before) => [
          ...before.slice(0, -1),
          { question: sent, answer: (before.at(-1)?.answer ?? "") + text },
        ]);
      }
    } catch (error) {
      setState(String(error));
    } finally {
      answering.current = null;
    }
  };

  return (
    <SafeAreaView style={styles.page}>
      <KeyboardAvoidingView style={styles.page} behavior={Platform.OS === "ios" ? "padding" : undefined}>
        <ScrollView contentContainerStyle={styles.turns}>
          {turns.map(({ question, answer }, index) => (
            <Text key={index} selectable>
              <Text style={styles.question}>{`${question}\n`}</Text>
              {answer}
            </Text>
          ))}
        </ScrollView>
        <Text style={styles.state}>{state}</Text>
        <TextInput
          style={styles.input}
          value={question}
          onChangeText={setQuestion}
          onSubmitEditing={ask}
          placeholder="Ask something"
        />
        <Button title="Ask" onPress={ask} disabled={question === ""} />
        <Button title="Stop" onPress={() => answering.current?.abort()} />
      </KeyboardAvoidingView>
    </SafeAreaView>
  );
}

const styles = StyleSheet.create({
  page: { flex: 1 },
  turns: { padding: 16, gap: 16 },
  question: { fontWeight: "600" },
  state: { paddingHorizontal: 16, color: "#666" },
  input: { margin: 16, padding: 12, borderWidth: 1, borderColor: "#ccc", borderRadius: 8 },
});
