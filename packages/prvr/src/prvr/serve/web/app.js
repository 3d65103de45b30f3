// The page: a query, its results, and the keys. Names come as text and stay text: nothing is put in as HTML.

import { get, openSession, post, Problem, thumbnailUrl } from "./api.js";
import { closePlayer, isOpen, playAt, playMoment, setPreviews } from "./player.js";
import { clock, makeStrip, nameParts, range, span } from "./strip.js";

const element = (id) => document.getElementById(id);
const input = element("query");
const results = element("results");
const status = element("status");
const problem = element("problem");
const SHOWN = 20; // results, if the server gives as many
let told = null; // what the server says of itself, once it was asked
let running = null;
let last = null; // what played last: focus goes back to it
const OPTIONS = ["without", "in", "name", "after", "before", "longer", "shorter"];
const option = (name) => element("more").querySelector(`[name=${name}]`);
const SIDE = 1024; // pixels of a picture that is sent: no encoder reads more
const pictures = new Map(); // that were chosen since the page was opened, by number; the server keeps none

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

async function search(asked) {
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
    const sent = parameters(asked, Math.min(SHOWN, (await learn()).results));
    const picture = asked.get("picture");
    if (picture && !pictures.has(picture)) throw new Problem("The picture is no longer available. Choose it again.");
    const answer = picture
      ? await post(`/api/search/picture?${sent}`, pictures.get(picture).body, mine.signal)
      : await get(`/api/search?${sent}`, mine.signal);
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

/** What the server is asked, of what stands in the address. */
function parameters(asked, k) {
  const sent = new URLSearchParams({ k });
  for (const name of ["q", "without", "in", "name", "like", "start", "end"]) {
    if (asked.get(name)) sent.set(name, asked.get(name));
  }
  for (const name of ["longer", "shorter"]) {
    if (asked.get(name)) sent.set(name, 60 * Number(asked.get(name)));
  }
  for (const name of ["after", "before"]) {
    const day = new Date(`${asked.get(name)}T00:00`); // midnight where the browser is
    if (!Number.isNaN(day.getTime())) sent.set(name, day.toISOString());
  }
  return sent;
}

function show(answer, milliseconds) {
  document.title = `${answer.query} – prvr`;
  const scale = range(answer);
  const cards = answer.hits.map((hit) => card(hit, scale));
  const fitting = answer.hits.reduce((count, hit, at) => (hit.weaker ? count : at + 1), 0); // the others are weaker
  if (fitting < cards.length) cards.splice(fitting, 0, make("li", "weaker", "Weaker matches"));
  results.replaceChildren(...cards);
  const videos = answer.videos.toLocaleString();
  if (!answer.hits.length) {
    const filtered = OPTIONS.slice(1).some((name) => option(name).value);
    const none = filtered ? "No videos match the options." : "No results.";
    status.textContent = answer.videos ? none : "The index has no videos yet. Add some with prvr index add.";
    return;
  }
  const first = answer.hits.length === answer.videos ? "All" : `Best ${answer.hits.length} of`;
  const verdict = fitting ? "" : "No good match. ";
  status.textContent = `${verdict}${first} ${videos} videos · ${(milliseconds / 1000).toFixed(2)} s`;
  if (answer.level !== null) status.textContent += " · dashed line: what one in 20 unrelated sentences reaches";
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
  const similar = make("button", "chip", "More like this");
  similar.type = "button";
  similar.setAttribute("aria-label", `More like ${span(best)} of ${hit.video.name}`);
  similar.addEventListener("click", () => askLike(hit.video, best.start, best.end));
  more.append(similar);
  if (hit.copies.length) {
    more.append(make("span", "quiet copies", `Same content: ${hit.copies.map((copy) => copy.name).join(", ")}`));
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
  return new URLSearchParams(location.hash.slice(1));
}

function isAsked(what) {
  return ["q", "like", "picture"].some((name) => what.get(name));
}

/** Asks for what the fields say, with the picture or moment of the address unless others are given. */
function ask(changes = {}) {
  const what = new URLSearchParams();
  const before = asked();
  const kept = ["picture", "like", "start", "end", "film"].map((name) => [name, before.get(name)]);
  const options = OPTIONS.map((name) => [name, option(name).value.trim()]);
  for (const [name, value] of [["q", input.value.trim()], ...options, ...kept, ...Object.entries(changes)]) {
    if (value) what.set(name, value);
    else what.delete(name);
  }
  if (!isAsked(what)) return input.focus();
  if (location.hash === `#${what}`) search(what);
  else location.hash = `#${what}`;
}

const NOTHING = { q: "", picture: "", like: "", start: "", end: "", film: "" };

/** More like a moment of a video, whatever was searched for before. */
function askLike(video, start, end) {
  const times = { start: start.toFixed(2), end: end === undefined ? "" : end.toFixed(2) };
  ask({ ...NOTHING, like: video.key, film: video.name, ...times });
}

async function askPicture(file) {
  const number = String(pictures.size + 1);
  pictures.set(number, { body: await smaller(file), name: file.name });
  ask({ ...NOTHING, q: input.value.trim(), picture: number });
}

/** A picture as it is sent: small, and without what the camera wrote into it. What the browser cannot read stays. */
async function smaller(file) {
  try {
    const bitmap = await createImageBitmap(file);
    const scale = Math.min(1, SIDE / Math.max(bitmap.width, bitmap.height));
    const canvas = make("canvas");
    canvas.width = Math.max(1, Math.round(scale * bitmap.width));
    canvas.height = Math.max(1, Math.round(scale * bitmap.height));
    draw(canvas, bitmap);
    return (await new Promise((done) => canvas.toBlob(done, "image/jpeg", 0.92))) ?? file;
  } catch {
    return file;
  }
}

function draw(canvas, picture) {
  const context = canvas.getContext("2d");
  context.fillStyle = "#fff";
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.drawImage(picture, 0, 0, canvas.width, canvas.height);
}

/** The picture or moment that is asked for, beside the sentence. */
async function showAsked(what) {
  const shown = element("asked-picture");
  const picture = pictures.get(what.get("picture"));
  element("asked").hidden = !what.get("picture") && !what.get("like");
  const film = what.get("film") ?? "";
  element("asked-text").textContent = what.get("like")
    ? `like ${film.slice(film.lastIndexOf("/") + 1)} at ${clock(Number(what.get("start")))}; excludes that video`
    : `like ${picture?.name ?? "a picture"}`;
  shown.hidden = true;
  if (!picture) return;
  try {
    const bitmap = await createImageBitmap(picture.body);
    shown.width = Math.round((shown.height * bitmap.width) / bitmap.height);
    draw(shown, bitmap);
    shown.hidden = false;
  } catch {
    // of a kind that the browser cannot show
  }
}

function showOptions(open) {
  element("more").hidden = !open;
  element("options").setAttribute("aria-expanded", String(open));
}

function countOptions() {
  const count = OPTIONS.filter((name) => option(name).value.trim()).length;
  element("options").querySelector("span").textContent = count ? `Options (${count})` : "Options";
  element("options").classList.toggle("set", count > 0);
}

function fill() {
  const what = asked();
  input.value = what.get("q") ?? "";
  for (const name of OPTIONS) option(name).value = what.get(name) ?? "";
  countOptions();
  showAsked(what);
}

function fromAddress() {
  fill();
  if (isAsked(asked())) return void search(asked());
  running?.abort();
  closePlayer();
  results.replaceChildren();
  status.textContent = "";
  problem.hidden = true;
  element("welcome").hidden = false;
}

element("search").addEventListener("submit", (event) => {
  event.preventDefault();
  ask();
});
element("options").addEventListener("click", () => {
  showOptions(element("more").hidden);
  if (!element("more").hidden) option("without").focus();
});
element("more").addEventListener("input", countOptions);
element("clear").addEventListener("click", () => {
  for (const name of OPTIONS) option(name).value = "";
  countOptions();
  ask();
});
element("forget").addEventListener("click", () => {
  const q = input.value.trim();
  if (q) return ask({ ...NOTHING, q });
  location.hash = "";
  input.focus();
});
element("choose").addEventListener("click", () => element("picture").click());
element("picture").addEventListener("change", (event) => {
  if (event.target.files.length) askPicture(event.target.files[0]);
  event.target.value = ""; // the same one may be chosen again
});
const carriesFile = (event) => !element("choose").hidden && event.dataTransfer?.types.includes("Files");
addEventListener("dragover", (event) => {
  if (carriesFile(event)) event.preventDefault();
});
addEventListener("drop", (event) => {
  if (!carriesFile(event)) return;
  event.preventDefault();
  if (event.dataTransfer.files.length) askPicture(event.dataTransfer.files[0]);
});
addEventListener("paste", (event) => {
  const file = event.clipboardData?.files[0];
  if (file && !element("choose").hidden) {
    event.preventDefault();
    askPicture(file);
  }
});
addEventListener("hashchange", fromAddress);
element("player").addEventListener("similar", (event) => askLike(event.detail.video, event.detail.start));
element("player").addEventListener("closed", leavePlayer);

document.addEventListener("keydown", (event) => {
  const typing = event.target.matches("input");
  if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || element("token").open) return;
  if (event.target.closest("#more")) {
    if (event.key !== "Escape") return; // arrows change numbers and dates
    showOptions(false);
    element("options").focus();
    return;
  }
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
  const early = input.value; // somebody may be typing already
  if (location.hash.length > 1) fill();
  input.value ||= early;
  try {
    const info = await learn();
    setPreviews(info.previews, info.preview_seconds);
    input.maxLength = option("without").maxLength = info.query_characters;
    element("choose").hidden = element("by-picture").hidden = !info.pictures;
    const hours = info.hours >= 1 ? `${info.hours.toFixed(1)} hours` : `${Math.round(60 * info.hours)} minutes`;
    element("about").textContent = `${info.videos.toLocaleString()} videos, ${hours}. Model: ${info.model}.`;
    element("note").textContent =
      "Zero-shot: the encoder alone ranks these videos. No model was trained for these videos.";
    element("note").hidden = !info.zero_shot;
    await openSession();
    if (isAsked(asked())) search(asked()); // the field is left alone: somebody may be typing already
  } catch (error) {
    problem.textContent = error.message;
    problem.hidden = false;
  }
}

input.focus();
start();
