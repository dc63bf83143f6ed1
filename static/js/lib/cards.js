// Server cards: made from the template that the server rendered, filled from a ServerCard.
import { gpus, percent, seconds, whole } from "./format.js";

const ENGINE_WORDS = "Requests in its engine, as the engine last said. In flight is what the routers count now.";
const find = (card, name) => card.querySelector(`[data-f="${name}"]`);
const put = (card, name, text) => {
  const node = find(card, name);
  if (node && node.textContent !== text) node.textContent = text;
};

export const cardOf = (id) => document.getElementById(`server-${id}`);
const column = (role) => document.querySelector(`[data-cards="${role}"]`);

const make = (id) => {
  const card = document.getElementById("server-template").content.firstElementChild.cloneNode(true);
  card.id = `server-${id}`;
  card.dataset.server = id;
  for (const node of card.querySelectorAll("[href], [action], [hx-post]")) {
    for (const name of ["href", "action", "hx-post"]) {
      if (node.hasAttribute(name)) node.setAttribute(name, node.getAttribute(name).replace("/servers/0/", `/servers/${id}/`));
    }
  }
  htmx.process(card);
  return card;
};

const place = (card, role, name) => {
  const home = column(role);
  if (card.parentElement === home) return;
  const after = [...home.children].find((other) => find(other, "name").textContent > name);
  home.insertBefore(card, after ?? null);
};

// Why it failed stands in a line of its own below.
const stateWord = (server) => (server.state === "failed" && server.failure.message ? "Failed" : server.state_text);

export const fill = (server) => {
  const card = cardOf(server.id) ?? make(server.id);
  Object.assign(card.dataset, {
    role: server.role, state: server.state, since: server.state_since, movable: server.can_move_to.length > 0,
    canMoveTo: server.can_move_to.join(" "),
  });
  const state = find(card, "state_text");
  state.dataset.state = server.state;
  state.title = server.state_text;
  put(card, "state_text", stateWord(server));
  put(card, "name", server.name);
  put(card, "place", server.adopted ? `not ours to stop · ${server.url}` : `${server.host} · ${gpus(server.gpus)}`);
  fillLoad(server);
  fillNotes(card, server);
  fillActions(card, server);
  place(card, server.role, server.name);
};

// `load` is a ServerCard or a LoadEvent: what the latter leaves out stays as it is.
export const fillLoad = (load) => {
  const card = cardOf(load.id) ?? null;
  if (!card) return;
  for (const name of ["inflight", "handoffs", "running", "waiting"]) if (name in load) put(card, name, whole(load[name]));
  if ("engine_at" in load) card.dataset.engineAt = load.engine_at ?? "";
  if ("tokens_per_s" in load) put(card, "tokens_per_s", whole(load.tokens_per_s));
  if (!("kv_usage" in load)) return;
  put(card, "kv_usage", percent(load.kv_usage));
  const bar = find(card, "kv_bar");
  bar.style.width = `${Math.min(load.kv_usage ?? 0, 1) * 100}%`;
  bar.parentElement.dataset.full = String((load.kv_usage ?? 0) >= 0.9);
};

const fillNotes = (card, server) => {
  find(card, "notes").replaceChildren(...server.degradations.map(({ text }) => {
    const line = document.createElement("li");
    line.textContent = text;
    return line;
  }));
  const failed = Boolean(server.failure.message);
  find(card, "failure").hidden = !failed;
  find(card, "failure_log").hidden = server.adopted;
  put(card, "failure_message", server.failure.message ?? "");
  put(card, "failure_instruction", server.failure.instruction ?? "");
};

const fillActions = (card, server) => {
  for (const link of card.querySelectorAll("[data-move-to]")) link.hidden = !server.can_move_to.includes(link.dataset.moveTo);
  for (const [name, may] of [["start", server.may_start], ["stop", server.may_stop]]) {
    const button = card.querySelector(`[data-act="${name}"]`);
    if (button) button.hidden = !may;
  }
};

export const tellAges = (now) => {
  for (const node of document.querySelectorAll(".server [data-f='since']")) {
    node.textContent = seconds(now - Number(node.closest(".server").dataset.since));
  }
  for (const node of document.querySelectorAll(".server [data-told]")) {
    const at = node.closest(".server").dataset.engineAt;
    node.title = at ? `${ENGINE_WORDS} It said so ${seconds(now - Number(at))} ago.` : ENGINE_WORDS;
  }
};

export const countColumns = () => {
  for (const track of document.querySelectorAll(".track")) {
    const cards = [...track.querySelectorAll(".server")];
    const ready = cards.filter((card) => card.dataset.state === "ready").length;
    track.querySelector("[data-count]").textContent = cards.length ? `${ready} of ${cards.length} ready` : "";
  }
};
