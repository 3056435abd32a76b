// The page: asks the server's own routes, with the key that the user typed, and shows what comes back.
import { drawHistogram, drawLines, drawTree, short } from "/page/charts.js";

const $ = id => document.getElementById(id);
const SLOTS = 60, EVERY_MS = 1000;
const history = { speed: [], cached: [], computed: [] };
const state = { mode: "chat", messages: [], running: null, before: null, model: "" };

// -- talking to the server ----------------------------------------------------------------------------------------

const key = $("key");
key.value = sessionStorage.getItem("lmprog-key") ?? "";
key.addEventListener("change", () => { sessionStorage.setItem("lmprog-key", key.value); poll(true); });

function headers() {
  return { "Content-Type": "application/json", ...(key.value ? { Authorization: `Bearer ${key.value}` } : {}) };
}

async function ask(path, body, signal) {
  const options = { headers: headers(), signal };
  const answer = await fetch(path, body === undefined ? options : { ...options, method: "POST", body: JSON.stringify(body) });
  if (answer.ok) return answer;
  const problem = await answer.json().catch(() => null);
  throw new Error(problem?.error?.message ?? problem?.reason ?? `The server answered ${answer.status}.`);
}

const json = async (path, body) => (await ask(path, body)).json();

async function* events(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    buffer += value;
    const pieces = buffer.split("\n\n");
    buffer = pieces.pop();
    for (const piece of pieces) {
      const data = piece.replace(/^data: /, "");
      if (data === "[DONE]") return;
      const event = JSON.parse(data);
      if (event.error) throw new Error(event.error.message);
      yield event;
    }
  }
}

// -- playground ---------------------------------------------------------------------------------------------------

function number(id) { return $(id).value === "" ? undefined : Number($(id).value); }

function request() {
  const schema = $("schema").value.trim();
  const body = {
    model: state.model, max_tokens: number("max-tokens"), temperature: number("temperature"), top_p: number("top-p"),
    seed: number("seed"), stream: true, stream_options: { include_usage: true },
  };
  if (schema) body.response_format = { type: "json_schema", json_schema: { schema: JSON.parse(schema) } };
  return body;
}

function asked() {
  const system = $("system").value.trim();
  return [...(system ? [{ role: "system", content: system }] : []), ...state.messages];
}

function turn(kind, text = "") {
  const element = document.createElement("div");
  element.className = `turn ${kind}`;
  const label = document.createElement("small");
  label.textContent = kind.split(" ")[0];
  const content = document.createElement("span");
  content.textContent = text;
  element.append(label, content);
  $("conversation").append(element);
  return element;
}

async function run() {
  const prompt = $("prompt").value;
  let body;
  try { body = request(); } catch (error) { turn("error", `The schema is not JSON: ${error.message}`); return; }
  const isChat = state.mode === "chat";
  if (isChat) state.messages.push({ role: "user", content: prompt });
  turn("user", prompt);
  const answer = turn("assistant live"), content = answer.querySelector("span");
  setRunning(new AbortController());
  try {
    const path = isChat ? "/v1/chat/completions" : "/v1/completions";
    const stream = await ask(path, isChat ? { ...body, messages: asked() } : { ...body, prompt }, state.running.signal);
    for await (const event of events(stream)) {
      const choice = event.choices[0];
      content.textContent += choice ? (isChat ? choice.delta.content ?? "" : choice.text) : "";
      if (event.usage) showUsage(event.usage);
    }
    if (isChat) { state.messages.push({ role: "assistant", content: content.textContent }); $("prompt").value = ""; }
  } catch (error) {
    if (isChat) state.messages.pop();
    if (error.name !== "AbortError") { turn("error", error.message); if (!content.textContent) answer.remove(); }
  }
  answer.classList.remove("live");
  setRunning(null);
  poll(true);
}

function setRunning(controller) {
  state.running = controller;
  $("run").disabled = controller !== null;
  $("stop").disabled = controller === null;
}

function showUsage(usage) {
  const cached = usage.prompt_tokens_details.cached_tokens, fresh = usage.prompt_tokens - cached, made = usage.completion_tokens;
  const forced = usage.completion_tokens_details.forced_tokens;
  for (const [id, count] of [["bar-cached", cached], ["bar-new", fresh], ["bar-made", made]]) $(id).style.flex = `${count} 0 0`;
  $("usage-text").textContent =
    `${usage.prompt_tokens} prompt tokens: ${cached} cached, ${fresh} computed. ${made} generated` + (forced ? `, ${forced} of them forced by the schema.` : ".");
  $("usage").hidden = false;
}

async function explain() {
  const prompt = $("prompt").value, box = $("explained");
  const messages = [...asked(), ...(prompt ? [{ role: "user", content: prompt }] : [])];
  box.hidden = false;
  try {
    const found = await json("/cache/explain", state.mode === "chat" ? { messages } : { text: prompt });
    const line = document.createElement("p");
    line.textContent = `${found.matched} of ${found.total} tokens are cached` +
      (found.reason === "all cached" ? ", all that can be." : `; the rest: ${found.reason}.`);
    const tokens = document.createElement("div");
    tokens.className = "tokens";
    found.tokens.forEach((text, index) => {
      const token = document.createElement("span");
      token.className = index < found.matched ? "hit" : "miss";
      token.textContent = text;
      tokens.append(token);
    });
    box.replaceChildren(line, tokens);
  } catch (error) { box.textContent = error.message; }
}

function setMode(mode) {
  state.mode = mode;
  $("mode-chat").setAttribute("aria-pressed", String(mode === "chat"));
  $("mode-text").setAttribute("aria-pressed", String(mode === "text"));
  $("system-box").hidden = $("clear").hidden = mode !== "chat";
}

$("run").addEventListener("click", run);
$("stop").addEventListener("click", () => state.running?.abort());
$("explain").addEventListener("click", explain);
$("clear").addEventListener("click", () => { state.messages = []; $("conversation").replaceChildren(); $("usage").hidden = true; });
$("mode-chat").addEventListener("click", () => setMode("chat"));
$("mode-text").addEventListener("click", () => setMode("text"));
$("flush").addEventListener("click", async () => { await json("/flush_cache", {}); poll(true); });
$("prompt").addEventListener("keydown", event => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && !state.running) run();
});

// -- what goes on -------------------------------------------------------------------------------------------------

function push(list, value) { list.push(value); if (list.length > SLOTS) list.shift(); }

function showNumbers(now) {
  const cache = now.radix_cache, at = performance.now();
  $("t-running").textContent = now.running;
  $("t-waiting").textContent = now.waiting;
  $("t-hits").textContent = `${Math.round(cache.cache_hit_rate * 100)}%`;
  $("t-pool").textContent = `${Math.round((cache.used_slots / cache.total_slots) * 100)}%`;
  const before = state.before;
  state.before = { now, at };
  if (!before || at - before.at < EVERY_MS / 2) return;
  const rate = (value, old) => Math.max(0, ((value - old) * 1000) / (at - before.at));
  const old = before.now.radix_cache, hits = rate(cache.hit_tokens, old.hit_tokens);
  push(history.speed, rate(now.generated_tokens, before.now.generated_tokens));
  push(history.cached, hits);
  push(history.computed, Math.max(0, rate(cache.queried_tokens, old.queried_tokens) - hits));
  $("t-speed").textContent = short(Math.round(history.speed.at(-1)));
  drawLines($("c-speed"), [history.speed], SLOTS);
  drawLines($("c-prompt"), [history.cached, history.computed], SLOTS);
}

/** Buckets of one histogram of the Prometheus text, made non-cumulative. */
function buckets(text, name) {
  const found = [...text.matchAll(new RegExp(`^lmprog:${name}_bucket\\{.*?le="([^"]+)".*?\\} (\\S+)$`, "gm"))];
  let below = 0;
  const counts = found.map(([, bound, count]) => { const own = Number(count) - below; below = Number(count); return [Number(bound), own]; });
  return counts.filter(([bound]) => Number.isFinite(bound));
}

function showLatency(text) {
  drawHistogram($("h-ttft"), buckets(text, "time_to_first_token_seconds"));
  drawHistogram($("h-itl"), buckets(text, "inter_token_latency_seconds"));
  drawHistogram($("h-e2e"), buckets(text, "e2e_request_latency_seconds"));
}

async function poll(once = false) {
  try {
    if (!document.hidden) await refresh();
    $("notice").hidden = true;
  } catch (error) {
    $("notice").textContent = error.message;
    $("notice").hidden = false;
  }
  if (!once) setTimeout(poll, EVERY_MS);
}

async function refresh() {
  const health = await fetch("/health").then(answer => answer.json()).catch(() => ({ status: "gone", reason: "The server is gone." }));
  $("health").textContent = health.status === "ok" ? "healthy" : health.reason;
  $("health").className = `pill ${health.status === "ok" ? "ok" : "bad"}`;
  if (health.status === "gone") return;
  if (!state.model) {
    state.model = (await json("/v1/models")).data[0].id;
    $("model").textContent = state.model;
  }
  const [now, tree, metrics] = await Promise.all([json("/stats"), json("/cache/tree"), ask("/metrics").then(a => a.text())]);
  showNumbers(now);
  const shown = drawTree($("tree"), tree);
  $("tree-count").textContent = `${shown} nodes, ${tree.slots - tree.free} of ${tree.slots} slots`;
  showLatency(metrics);
}

poll();
