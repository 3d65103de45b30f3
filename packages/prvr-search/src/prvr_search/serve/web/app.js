// The page: a query, its results, and the keys. Names come as text and stay text: nothing is put in as HTML.

import { get, openSession, post, Problem, refusal, save, thumbnailUrl } from "./api.js";
import { closePlayer, isOpen, playAt, playMoment, setPreviews } from "./player.js";
import { clock, lineHead, make, makeStrip, nameParts, range, span } from "./strip.js";

const element = (id) => document.getElementById(id);
const input = element("query");
const results = element("results");
const status = element("status");
const problem = element("problem");
const MOST = 20; // results at a time
const NAMES = 4; // videos at a time whose name contains the query
let serverInfo = null; // the answer of /api/info, or the request for it
let running = null;
let typing = 0; // the timer that applies options once nobody types in them
const PAUSE = 400; // milliseconds without typing
const TILES = 24; // videos at a time on the first screen
const EVERY = 3000; // milliseconds between two looks how many videos can be searched
const SELDOM = 20000; // the same while none is being added
let last = null; // what played last: focus goes back to it
let listed = null; // how many videos the server had when they were listed
let answered = null; // how many it had for the results that are shown
let asks = null; // gives more of them
let shown = null; // the answer
let searched = ""; // what the answer is for
const order = element("order").querySelector("select");
const OPTIONS = [...element("more").querySelectorAll("input")].map((field) => field.name);
const option = (name) => element("more").querySelector(`[name=${name}]`);
const SIDE = 1024; // pixels of a picture that is sent: no encoder reads more
const pictures = new Map(); // that were chosen since the page was opened, by number; the server keeps none

function complain(text) {
  problem.textContent = text;
  problem.hidden = false;
}

/** The index and the limits of the server. */
function learn() {
  serverInfo ??= get("api/info").catch((error) => {
    serverInfo = null; // requested again by the next search
    throw error;
  });
  return serverInfo;
}

/** Shows the best `count` results for a query; where `more`, those that are there stay. */
async function search(query, count = MOST, more = false) {
  searched = query.toString();
  running?.abort();
  running = new AbortController();
  const mine = running;
  welcome(false);
  if (!more) closePlayer(); // before the request: a video that is opened meanwhile stays open
  problem.hidden = true;
  status.textContent = "Searching …";
  results.setAttribute("aria-busy", "true");
  results.classList.add("waiting");
  if (!more) listNamed(query.get("picture") || query.get("like") ? "" : query.get("q") ?? "", mine.signal);
  try {
    const most = (await learn()).results;
    const params = parameters(query, Math.min(count, most));
    const picture = query.get("picture");
    if (picture && !pictures.has(picture)) throw new Problem("The picture is no longer available. Choose it again.");
    const answer = picture
      ? await post(`api/search/picture?${params}`, pictures.get(picture).body, mine.signal)
      : await get(`api/search?${params}`, mine.signal);
    show(answer, more);
    const isAll = answer.hits.length < Math.min(count, most) || count >= most;
    element("more-results").hidden = isAll;
    asks = () => search(query, count + MOST, true);
  } catch (error) {
    if (error.name === "AbortError") return;
    results.replaceChildren();
    showTools(false);
    element("more-results").hidden = true;
    status.textContent = "";
    complain(error instanceof Problem ? error.message : `Something went wrong in this page: ${error.message}`);
  } finally {
    if (mine === running) {
      results.removeAttribute("aria-busy");
      results.classList.remove("waiting");
    }
  }
}

/** The parameters of a request for the query of an address. */
function parameters(query, k) {
  const params = new URLSearchParams({ k });
  for (const name of ["q", "like", "start", "end", ...OPTIONS]) {
    const [value, type] = [query.get(name), OPTIONS.includes(name) ? option(name).type : "text"];
    const day = new Date(`${value}T00:00`); // midnight where the browser is
    if (value && type === "number") params.set(name, (option(name).dataset.unit ?? 60) * Number(value));
    else if (value && type !== "date") params.set(name, value);
    else if (value && !Number.isNaN(day.getTime())) params.set(name, day.toISOString());
  }
  return params;
}

function show(answer, more) {
  document.title = `${answer.query} – prvr`;
  const before = more ? results.children.length : 0;
  shown = answer;
  sort();
  answered = answer.videos;
  element("again-search").hidden = true;
  showTools(answer.hits.length);
  const videos = answer.videos.toLocaleString();
  if (!answer.hits.length) {
    const filtered = OPTIONS.some((name) => !["without", "subtitles", "then", "within"].includes(name) && option(name).value);
    const none = filtered ? "No videos match the options." : "No results.";
    status.textContent = answer.videos ? none : "No video can be searched yet.";
    return;
  }
  const first = answer.hits.length === answer.videos ? "All" : `Best ${answer.hits.length} of`;
  const folded = answer.hits.reduce((count, hit) => count + hit.alike.length, 0);
  const grouped = folded ? `; ${folded} more grouped with similar results` : "";
  status.textContent = `${first} ${videos} videos${grouped}.`;
  if (!more) scrollTo({ top: 0 });
  else results.querySelector(`[data-rank="${before + 1}"] .open`)?.focus();
}

/** Shows the results in the order that is chosen; equal dates stay in order of their ranks. */
function sort() {
  const scale = range(shown);
  const sign = Number(order.value);
  const date = (hit) => Date.parse(hit.video.filmed) || 0;
  const hits = [...shown.hits].sort((one, other) => sign * (date(other) - date(one)) || one.rank - other.rank);
  results.replaceChildren(...hits.map((hit) => card(hit, scale)));
}

const SOURCES = { container: "as its file says", name: "by its name", file: "by the time of its file" };

/** When a video was filmed, where it was, and what says so. */
function filmed(video) {
  const date = make("time", "quiet", video.filmed.slice(0, 10) + (video.filmed_by === "container" ? "" : ` by ${video.filmed_by}`));
  date.dateTime = video.filmed;
  date.title = `filmed ${video.filmed.slice(0, 16).replace("T", " ")}, ${SOURCES[video.filmed_by]}`;
  return date;
}

function card(hit, scale) {
  const item = make("li", "card");
  item.dataset.rank = hit.rank;
  const play = (moment, from) => {
    mark(item, from);
    playMoment(hit, scale, moment);
  };
  const best = { start: hit.start, end: hit.end };

  const open = make("button", "open");
  open.setAttribute("aria-label", `${hit.rank}. ${hit.video.name}, play ${span(best)}`);
  open.addEventListener("click", () => play(best, open));

  open.append(frameOf(hit.video, (best.start + best.end) / 2, span(best)));

  const line = make("div", "line");
  const name = make("h2", "name");
  name.append(...nameParts(hit.video.name));
  const number = `score ${hit.score === null ? "–" : hit.score.toFixed(3)}`;
  const source = hit.lines[0]?.kind || "by subtitles";
  const score = make("span", "score", hit.lines.length ? source : number);
  score.title = hit.lines.length
    ? `a line that is ${hit.lines[0].kind || "in its subtitles"} has the words; ${number}`
    : "similarity of the video and the query; only scores of one query can be compared";
  line.append(make("span", "rank", String(hit.rank)), name, score);
  line.addEventListener("click", () => play(best, open));

  const more = make("div", "more");
  for (const moment of hit.moments) {
    const chip = make("button", "chip", span(moment));
    chip.setAttribute("aria-label", `Play ${span(moment)} of ${hit.video.name}`);
    chip.addEventListener("click", () => play(moment, chip));
    more.append(chip);
  }
  for (const line of hit.lines) {
    const spoken = make("button", "spoken quiet", `${lineHead(line)} “${line.text}”`);
    spoken.addEventListener("click", () => play(line, spoken));
    more.append(spoken);
  }
  if (hit.video.filmed) more.append(filmed(hit.video));
  const similar = make("button", "similar quiet", "More like this");
  similar.setAttribute("aria-label", `More like this: ${span(best)} of ${hit.video.name}`);
  similar.addEventListener("click", () => askLike(hit.video, best.start, best.end));
  more.append(similar);
  for (const [what, videos] of [
    ["Same content", hit.copies],
    ["Scores alike at the same moment", hit.alike],
  ]) {
    if (videos.length) more.append(make("span", "quiet copies", `${what}: ${videos.map((video) => video.name).join(", ")}`));
  }
  const strip = makeStrip(hit, scale, (seconds) => {
    mark(item, strip);
    playAt(hit, scale, seconds);
  });
  item.append(open, line, strip, more);
  return item;
}

/** A picture of a video at a time, with a label. */
function frameOf(video, time, label) {
  const frame = make("span", "frame");
  const picture = make("img");
  picture.alt = "";
  picture.loading = "lazy";
  picture.decoding = "async";
  picture.addEventListener("error", async () => {
    frame.classList.add("none");
    const why = await refusal(video).catch(() => "");
    if (why) frame.append(make("span", "why", why));
  });
  picture.src = thumbnailUrl(video, time);
  frame.append(picture, make("span", "badge", label));
  return frame;
}

/** A video as a hit that nobody searched for. */
function alone(video) {
  return { video, moments: [], lines: [], relevance: new Array(32).fill(null) };
}

/** A video of the first screen, which plays from its start. */
function tile(video) {
  const item = make("li");
  const open = make("button", "tile");
  const name = make("span", "name");
  name.append(...nameParts(video.name));
  open.append(frameOf(video, video.duration / 3, clock(video.duration)), name);
  open.addEventListener("click", () => {
    mark(item, open);
    playAt(alone(video), [0, 1], 0);
  });
  item.append(open);
  return item;
}

/** Shows a page of videos in a section, behind those that are there; its button asks for the next one. */
async function listPage(section, params, size, signal) {
  const list = section.querySelector("ol");
  const offset = list.children.length;
  const { total, videos } = await get(`api/videos?${new URLSearchParams({ ...params, offset, limit: size })}`, signal);
  list.append(...videos.map(tile));
  const further = section.querySelector("ol + button");
  further.hidden = list.children.length >= total || !videos.length;
  further.onclick = async () => {
    await listPage(section, params, TILES, signal);
    list.children[offset + videos.length]?.querySelector("button").focus();
  };
  return total;
}

async function listVideos(count) {
  if (listed === count) return;
  listed = count;
  element("videos").querySelector("ol").replaceChildren();
  await listPage(element("videos"), { newest: true }, TILES);
}

/** Shows the videos whose name contains a text. */
async function listNamed(name, signal) {
  const section = element("named");
  section.hidden = true;
  section.querySelector("ol").replaceChildren();
  if (!name.trim()) return;
  try {
    const total = await listPage(section, { name: name.trim() }, NAMES, signal);
    section.querySelector("h2").textContent = `${total.toLocaleString()} ${total === 1 ? "video has" : "videos have"} this in the name`;
    section.hidden = !total;
  } catch {
    // the search itself says what is wrong
  }
}

/** Shows or hides the first screen. */
function welcome(visible) {
  element("welcome").hidden = element("videos").hidden = !visible;
  if (visible) element("named").hidden = element("more-results").hidden = element("again-search").hidden = true;
}

/** The files that the server makes of what is shown. */
function listExports(kinds) {
  for (const kind of kinds) {
    const button = make("button", "chip", kind.toUpperCase());
    button.title = kind === "csv" ? "Save these results as a table" : "Save these moments as a timeline for editors";
    button.addEventListener("click", async () => {
      const hits = [...results.querySelectorAll(".card")].map((item) => shown.hits[item.dataset.rank - 1]);
      const rows = hits.map(({ video, start, end, lines, score }) => (
        { key: video.key, start, end: Math.max(end, start + 0.1), score: score ?? undefined, lines: lines.slice(0, 1) }));
      const body = JSON.stringify({ kind, query: shown.query.slice(0, 1000), hits: rows });
      try {
        await save("api/export", { method: "POST", body, headers: { "Content-Type": "application/json" } });
      } catch (error) {
        complain(error.message);
      }
    });
    element("exports").append(button);
  }
}

function unmark() {
  for (const other of document.querySelectorAll("li[aria-current]")) other.removeAttribute("aria-current");
}

function mark(item, from) {
  last = from;
  unmark();
  item.setAttribute("aria-current", "true");
  uncover();
}

/** Scrolls what plays out from under the player, which lies above the results on a narrow screen. */
function uncover() {
  const player = element("player");
  const item = document.querySelector("li[aria-current]");
  if (player.hidden || !item || !matchMedia("(max-width: 63.99rem)").matches) return;
  const room = item.getBoundingClientRect().top - player.getBoundingClientRect().bottom;
  if (room < 8) scrollBy(0, room - 8);
}

function leavePlayer() {
  closePlayer();
  unmark();
  go(withoutPlaying(addressQuery()));
  (last?.isConnected ? last : input).focus();
}

/** The query stands behind the # of the address: Back and reload work, and it is in no log. */
function addressQuery() {
  return new URLSearchParams(location.hash.slice(1));
}

/** What of an address is searched for; the rest is what plays, so that a link leads to a moment. */
function withoutPlaying(what) {
  for (const name of ["play", "from", "to"]) what.delete(name);
  return what;
}

/** Changes the address to what is there already. */
function go(what) {
  if (addressQuery().toString() !== what.toString()) history.pushState(null, "", what.size ? `#${what}` : location.pathname);
}

/** Plays what the address names, or closes the player. */
async function playAddress() {
  const what = addressQuery();
  const [key, start, end] = ["play", "from", "to"].map((name) => what.get(name));
  if (!key) {
    closePlayer();
    return unmark();
  }
  try {
    const hit = shown?.hits.find((one) => one.video.key === key) ?? alone(await get(`api/videos/${encodeURIComponent(key)}`));
    if (addressQuery().toString() !== what.toString()) return;
    const item = results.querySelector(`[data-rank="${hit.rank}"]`);
    if (item) mark(item, item.querySelector(".open"));
    const scale = item ? range(shown) : [0, 1];
    if (end === null) playAt(hit, scale, Number(start) || 0);
    else playMoment(hit, scale, { start: Number(start) || 0, end: Number(end) });
  } catch (error) {
    complain(`The video of this link cannot be shown: ${error.message}`);
  }
}

function hasQuery(what) {
  return ["q", "like", "picture", "subtitles"].some((name) => what.get(name));
}

/** Searches for what the fields hold, with the picture or moment of the address unless `changes` has another. */
function ask(changes = {}, replaces = false) {
  const what = new URLSearchParams();
  const before = addressQuery();
  const context = ["picture", "like", "start", "end", "video"].map((name) => [name, before.get(name)]);
  const options = OPTIONS.map((name) => [name, option(name).value.trim()]);
  for (const [name, value] of [["q", input.value.trim()], ...options, ...context, ...Object.entries(changes)]) {
    if (value) what.set(name, value);
    else what.delete(name);
  }
  if (!hasQuery(what)) return input.focus();
  if (withoutPlaying(before).toString() === what.toString()) {
    go(what);
    search(what);
  } else if (replaces) location.replace(`#${what}`);
  else location.hash = `#${what}`;
}

const NOTHING = { q: "", picture: "", like: "", start: "", end: "", video: "" };

/** More like a moment of a video, whatever was searched for before. */
function askLike(video, start, end) {
  const times = { start: start.toFixed(2), end: end === undefined ? "" : end.toFixed(2) };
  ask({ ...NOTHING, like: video.key, video: video.name, ...times });
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

/** Shows the picture or moment of the query next to the sentence. */
async function showAsked(what) {
  const canvas = element("asked-picture");
  const picture = pictures.get(what.get("picture"));
  element("asked").hidden = !what.get("picture") && !what.get("like");
  element("asked-text").textContent = what.get("like")
    ? `like ${nameParts(what.get("video") ?? "")[0]} at ${clock(Number(what.get("start")))}; excludes that video`
    : `like ${picture?.name ?? "a picture"}`;
  canvas.hidden = true;
  if (!picture) return;
  try {
    const bitmap = await createImageBitmap(picture.body);
    canvas.width = Math.round((canvas.height * bitmap.width) / bitmap.height);
    draw(canvas, bitmap);
    canvas.hidden = false;
  } catch {
    // of a kind that the browser cannot show
  }
}

function showOptions(open) {
  element("more").hidden = !open;
  element("options").setAttribute("aria-expanded", String(open));
}

/** Counts the options of the results, which are in the address. */
function countOptions() {
  const count = OPTIONS.filter((name) => addressQuery().get(name)).length;
  element("options").querySelector("span").textContent = count ? `Options (${count})` : "Options";
  element("options").classList.toggle("set", count > 0);
}

function fill() {
  const what = addressQuery();
  input.value = what.get("q") ?? "";
  for (const name of OPTIONS) {
    if (option(name) !== document.activeElement) option(name).value = what.get(name) ?? "";
  }
  countOptions();
  showAsked(what);
}

async function fromAddress() {
  fill();
  const what = withoutPlaying(addressQuery());
  if (what.toString() !== searched) {
    if (hasQuery(what)) await search(what);
    else leaveSearch();
  }
  await playAddress();
}

/** Shows the first screen. */
function leaveSearch() {
  searched = "";
  shown = null;
  running?.abort();
  results.replaceChildren();
  status.textContent = "";
  problem.hidden = true;
  showTools(false);
  welcome(true);
}

element("search").addEventListener("submit", (event) => {
  event.preventDefault();
  ask();
});
element("options").addEventListener("click", () => {
  showOptions(element("more").hidden);
  if (!element("more").hidden) option("without").focus();
});
const applyOptions = () => {
  clearTimeout(typing);
  if (hasQuery(addressQuery())) ask({}, true);
};
element("more").addEventListener("change", applyOptions);
element("more").addEventListener("input", () => {
  clearTimeout(typing);
  typing = setTimeout(applyOptions, PAUSE);
});
element("clear").addEventListener("click", () => {
  for (const name of OPTIONS) option(name).value = "";
  applyOptions();
});
order.addEventListener("change", () => {
  sessionStorage.setItem("prvr-order", order.value);
  sort();
});
element("view").addEventListener("click", () => showGrid(!results.classList.contains("grid")));
new ResizeObserver(uncover).observe(element("player"));
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
element("more-results").addEventListener("click", () => asks());
element("again-search").addEventListener("click", () => search(withoutPlaying(addressQuery())));
addEventListener("hashchange", fromAddress);
element("player").addEventListener("similar", (event) => askLike(event.detail.video, event.detail.start));
element("player").addEventListener("closed", leavePlayer);
element("player").addEventListener("opened", ({ detail: { video, start, end } }) => {
  const what = withoutPlaying(addressQuery());
  what.set("play", video.key);
  what.set("from", String(Number(start.toFixed(2))));
  if (end !== null) what.set("to", String(Number(end.toFixed(2))));
  go(what);
});

document.addEventListener("keydown", (event) => {
  const selected = input.selectionEnd - input.selectionStart === input.value.length; // also if there is nothing
  const types = event.target.matches("input") && !(event.target === input && selected);
  if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || element("token").open) return;
  if (event.target.closest("#more")) {
    if (event.key !== "Escape") return; // arrows change numbers and dates
    showOptions(false);
    element("options").focus();
    return;
  }
  if (event.key === "/" && !types) {
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

/** Shows or hides what is done with all results. */
function showTools(visible) {
  for (const id of ["view", "order", "exports"]) element(id).hidden = !visible;
}

function showGrid(grid) {
  results.classList.toggle("grid", grid);
  element("view").setAttribute("aria-pressed", String(grid));
  localStorage.setItem("prvr-grid", grid ? "1" : "");
}

/** Shows the index of the server, and looks again for as long as videos are being added. */
async function showInfo(info) {
  const hours = info.hours >= 1 ? `${info.hours.toFixed(1)} hours` : `${Math.round(60 * info.hours)} minutes`;
  const ranking = info.zero_shot ? " The encoder alone ranks the videos; no model was trained for them." : "";
  element("about").textContent = `${info.videos.toLocaleString()} videos, ${hours}. Model: ${info.model}.${ranking}`;
  for (const line of document.querySelectorAll(".try")) {
    line.hidden = (line.dataset.encoder === "toy") !== (info.encoder === "toy");
  }
  const { done, total, error } = info.progress;
  const others = error ?? "the others are being added.";
  element("progress").textContent = `${done.toLocaleString()} of ${total.toLocaleString()} videos can be searched; ${others}`;
  element("progress").hidden = done >= total && !error;
  setTimeout(lookAgain, element("progress").hidden ? SELDOM : EVERY);
  element("again-search").hidden = !results.children.length || info.videos === answered;
  await listVideos(info.videos);
}

async function lookAgain() {
  serverInfo = null;
  try {
    await showInfo(await learn());
  } catch {
    setTimeout(lookAgain, EVERY);
  }
}

async function start() {
  const early = input.value; // somebody may be typing already
  if (location.hash.length > 1) fill();
  input.value ||= early;
  try {
    const info = await learn();
    setPreviews(info.previews, info.preview_seconds);
    input.maxLength = option("without").maxLength = option("subtitles").maxLength = info.query_characters;
    element("choose").hidden = element("by-picture").hidden = !info.pictures;
    await openSession();
    listExports(info.exports);
    // Somebody may be typing already, so the field is left alone, or may have searched already.
    const what = withoutPlaying(addressQuery());
    if (!hasQuery(what)) welcome(true);
    else if (!running) await search(what);
    if (addressQuery().has("play")) playAddress();
    await showInfo(info);
  } catch (error) {
    complain(error.message);
  }
}

showGrid(localStorage.getItem("prvr-grid") === "1");
order.value = sessionStorage.getItem("prvr-order") ?? "";
input.focus();
start();
