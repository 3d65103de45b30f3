// The page: a query, its results, and the keys. Names come as text and stay text: nothing is put in as HTML.

import { get, openSession, Problem, thumbnailUrl } from "./api.js";
import { closePlayer, isOpen, playAt, playMoment, setPreviews } from "./player.js";
import { makeStrip, nameParts, range, span } from "./strip.js";

const element = (id) => document.getElementById(id);
const input = element("query");
const results = element("results");
const status = element("status");
const problem = element("problem");
const SHOWN = 20; // results, if the server gives as many
let told = null; // what the server says of itself, once it was asked
let running = null;
let last = null; // what played last: focus goes back to it

function make(tag, name, text) {
  const made = document.createElement(tag);
  if (name) made.className = name;
  if (text !== undefined) made.textContent = text;
  return made;
}

/** What the server says of itself: what is searched, and what may be asked. */
function learn() {
  told ??= get("/api/info").catch((error) => {
    told = null; // asked again by the next search
    throw error;
  });
  return told;
}

async function search(query) {
  running?.abort();
  running = new AbortController();
  const mine = running;
  element("welcome").hidden = true;
  problem.hidden = true;
  status.textContent = "Searching …";
  results.setAttribute("aria-busy", "true");
  results.classList.add("waiting");
  const began = performance.now();
  try {
    const k = Math.min(SHOWN, (await learn()).results);
    const answer = await get(`/api/search?q=${encodeURIComponent(query)}&k=${k}`, mine.signal);
    closePlayer();
    show(answer, performance.now() - began);
  } catch (error) {
    if (error.name === "AbortError") return;
    results.replaceChildren();
    status.textContent = "";
    problem.textContent = error instanceof Problem ? error.message : `Something went wrong in this page: ${error.message}`;
    problem.hidden = false;
  } finally {
    if (mine === running) {
      results.removeAttribute("aria-busy");
      results.classList.remove("waiting");
    }
  }
}

function show(answer, milliseconds) {
  document.title = `${answer.query} – prvr`;
  const scale = range(answer.hits);
  const cards = answer.hits.map((hit) => card(hit, scale));
  const fitting = answer.hits.reduce((count, hit, at) => (hit.weaker ? count : at + 1), 0); // the others are weaker
  if (fitting < cards.length) cards.splice(fitting, 0, make("li", "weaker", "Weaker matches"));
  results.replaceChildren(...cards);
  const videos = answer.videos.toLocaleString();
  if (!answer.hits.length) {
    status.textContent = answer.videos ? "No results." : "The index has no videos yet. Add some with prvr index add.";
    return;
  }
  const first = answer.hits.length === answer.videos ? "All" : `Best ${answer.hits.length} of`;
  const verdict = fitting ? "" : "Nothing fits well. ";
  status.textContent = `${verdict}${first} ${videos} videos · ${(milliseconds / 1000).toFixed(2)} s`;
  scrollTo({ top: 0 });
}

function card(hit, scale) {
  const item = make("li", "card");
  const play = (moment, from) => {
    mark(item, from);
    playMoment(hit, scale, moment);
  };
  const best = hit.moments[0] ?? { start: hit.start, end: hit.end };

  const open = make("button", "open");
  open.type = "button";
  open.setAttribute("aria-label", `${hit.rank}. ${hit.video.name}, play ${span(best)}`);
  open.addEventListener("click", () => play(best, open));

  const frame = make("span", "frame");
  const picture = make("img");
  picture.alt = "";
  picture.loading = "lazy";
  picture.decoding = "async";
  picture.addEventListener("error", () => frame.classList.add("none"));
  picture.src = thumbnailUrl(hit.video, (best.start + best.end) / 2);
  frame.append(picture, make("span", "badge", span(best)));

  open.append(frame);

  const line = make("div", "line");
  const name = make("h2", "name");
  name.append(...nameParts(hit.video.name));
  const score = make("span", "score", hit.score === null ? "–" : hit.score.toFixed(3));
  score.title = "score of the video for this query";
  line.append(make("span", "rank", String(hit.rank)), name, score);
  if (hit.confidence !== null) {
    const sure = make("span", "score", `${Math.floor(100 * hit.confidence + 1e-9)} %`);
    sure.title = "confidence: the share of unrelated sentences that score lower everywhere in this index";
    line.append(sure);
  }
  line.addEventListener("click", () => play(best, open));

  const more = make("div", "more");
  if (hit.moments.length > 1) more.append(make("span", "quiet", "also"));
  for (const moment of hit.moments.slice(1)) {
    const chip = make("button", "chip", span(moment));
    chip.type = "button";
    chip.setAttribute("aria-label", `Play ${span(moment)} of ${hit.video.name}`);
    chip.addEventListener("click", () => play(moment, chip));
    more.append(chip);
  }
  const strip = makeStrip(hit, scale, (seconds) => {
    mark(item, strip);
    playAt(hit, scale, seconds);
  });
  item.append(open, line, strip, more);
  return item;
}

function mark(item, from) {
  last = from;
  for (const other of results.querySelectorAll("[aria-current]")) other.removeAttribute("aria-current");
  item.setAttribute("aria-current", "true");
}

function leavePlayer() {
  closePlayer();
  for (const other of results.querySelectorAll("[aria-current]")) other.removeAttribute("aria-current");
  (last?.isConnected ? last : input).focus();
}

/** The query stands behind the # of the address: Back and reload work, and it is in no log. */
function asked() {
  return new URLSearchParams(location.hash.slice(1)).get("q") ?? "";
}

function fromAddress() {
  input.value = asked();
  if (asked()) search(asked());
}

element("search").addEventListener("submit", (event) => {
  event.preventDefault();
  const query = input.value.trim();
  if (!query) return;
  const hash = `#${new URLSearchParams({ q: query })}`;
  if (location.hash === hash) search(query);
  else location.hash = hash;
});
addEventListener("hashchange", fromAddress);
element("player").addEventListener("closed", leavePlayer);

document.addEventListener("keydown", (event) => {
  const typing = event.target.matches("input");
  if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || element("token").open) return;
  if (event.key === "/" && !typing) {
    event.preventDefault();
    input.focus();
    input.select();
  } else if (event.key === "Escape" && isOpen()) {
    event.preventDefault();
    leavePlayer();
  } else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
    if (event.target.matches("video")) return;
    const all = [...results.querySelectorAll(".open")];
    const item = event.target.closest(".card");
    const at = item ? all.indexOf(item.querySelector(".open")) : -1;
    const next = at + (event.key === "ArrowDown" ? 1 : -1);
    if (!all.length || (at < 0 && event.key === "ArrowUp")) return;
    event.preventDefault();
    (next < 0 ? input : all[Math.min(next, all.length - 1)]).focus();
  }
});

async function start() {
  if (asked()) input.value = asked();
  try {
    const info = await learn();
    setPreviews(info.previews, info.preview_seconds);
    input.maxLength = info.query_characters;
    const hours = info.hours >= 1 ? `${info.hours.toFixed(1)} hours` : `${Math.round(60 * info.hours)} minutes`;
    element("about").textContent = `${info.videos.toLocaleString()} videos, ${hours}. Model: ${info.model}.`;
    element("note").textContent =
      "Zero-shot: the encoder alone ranks these videos. No model was trained for them.";
    element("note").hidden = !info.zero_shot;
    await openSession();
    if (asked()) search(asked()); // the field is left alone: somebody may be typing already
  } catch (error) {
    problem.textContent = error.message;
    problem.hidden = false;
  }
}

input.focus();
start();
