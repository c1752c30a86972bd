// The agent's API, by relative addresses: the page may stand behind `kubectl port-forward` or a prefix.

import { parametersOf } from "./place.js";

const TOKEN = "kstrobe-token";

/** Why there is no answer. */
export class ApiError extends Error {
  constructor(status, message, hint) {
    super(message);
    this.status = status;
    this.hint = hint;
  }
}

/** The token of `captures.token_file`; kept until the tab is closed. */
export const token = {
  get: () => sessionStorage.getItem(TOKEN),
  set: (text) => sessionStorage.setItem(TOKEN, text.trim()),
  forget: () => sessionStorage.removeItem(TOKEN),
};

/** An address within the API, from a path of it such as a mark's link. */
export function address(path) {
  return new URL(path.replace(/^\//, ""), document.baseURI.split("#")[0]).href;
}

/** How far the agent's clock is ahead of the browser's, in seconds. */
let ahead = 0;

/** The agent's time, in Unix seconds: its answers say it to the second. */
export const agentNow = () => Date.now() / 1000 + ahead;

async function ask(path, options = {}) {
  const headers = { ...options.headers };
  // Not `Authorization`: a proxy in front may have a use of its own for it.
  if (token.get()) headers["X-Kstrobe-Token"] = token.get();
  let answer;
  try {
    answer = await fetch(address(path), { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "The agent does not answer.", "Is it running, and is the port still forwarded?");
  }
  ahead = (Date.parse(answer.headers.get("date")) - Date.now()) / 1000 || 0;
  if (answer.ok) return answer;
  const text = (await answer.text()).trim();
  let message = text || `${answer.status} ${answer.statusText}`;
  let hint;
  try {
    ({ error: message, hint } = JSON.parse(text));
  } catch {
    // Not every refusal is JSON; the text is for people then.
  }
  throw new ApiError(answer.status, message, hint);
}

/** An answer's JSON. */
export async function get(path, signal) {
  return (await ask(path, { signal })).json();
}

/** An answer's text. */
export async function text(path, signal) {
  return (await ask(path, { signal })).text();
}

/** An answer's bytes. */
export async function blob(path) {
  return (await ask(path)).blob();
}

/** A request that changes something; its JSON, if there is any. */
export async function send(method, path, body) {
  const headers = body ? { "Content-Type": "application/json" } : {};
  const answer = await ask(path, { method, headers, body: body && JSON.stringify(body) });
  const answered = await answer.text();
  return answered ? JSON.parse(answered) : null;
}

/** The path of a query. */
export function withQuery(path, parameters) {
  return `${path}?${parametersOf(parameters)}`;
}

/** Lines of an answer that does not end, until the signal or the agent ends it. */
async function* lines(path, signal) {
  const answer = await ask(path, { signal });
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read().catch((error) => {
      if (error.name === "AbortError") throw error;
      throw new ApiError(0, "The connection to the agent was lost.");
    });
    if (done) return;
    const parts = (rest + value).split("\n");
    rest = parts.pop();
    yield* parts;
  }
}

/** Calls with each line's JSON; begins anew when the connection is lost. */
export async function follow(path, signal, each, stands) {
  await again(signal, stands, async (up) => {
    for await (const line of lines(path(), signal)) {
      up();
      if (line) each(JSON.parse(line));
    }
  });
}

/** Calls with each message of server-sent events. `EventSource` can send no token. */
export async function events(path, signal, each, stands) {
  await again(signal, stands, async (up) => {
    let name = "message";
    let data = "";
    for await (const line of lines(path, signal)) {
      up();
      if (line.startsWith("event:")) name = line.slice(6).trim();
      else if (line.startsWith("data:")) data += line.slice(5);
      else if (line === "" && data) {
        each(name, JSON.parse(data));
        [name, data] = ["message", ""];
      }
    }
  });
}

/** Does something that should not end, again and again, at most every two seconds. `stands` gets why it does not, or `null`. */
async function again(signal, stands, work) {
  while (!signal.aborted) {
    try {
      await work(() => stands?.(null));
      stands?.(asksAgain(new ApiError(0, "The agent ended the stream.")));
    } catch (error) {
      if (signal.aborted) return;
      stands?.(asksAgain(error));
    }
    await pause(2000, signal);
  }
}

/** A text of the API as a sentence: not each begins and ends like one. */
export const sentence = (text) => text[0].toUpperCase() + text.slice(1) + (/[.?]$/.test(text) ? "" : ".");

/** The same error, which adds that the page asks again. */
export function asksAgain(error) {
  error.hint = [error.hint, "This page asks again by itself."].filter(Boolean).map(sentence).join(" ");
  return error;
}

/** Waits so many milliseconds, or until the signal. */
export function pause(ms, signal) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    signal?.addEventListener("abort", () => (clearTimeout(timer), resolve()), { once: true });
  });
}
