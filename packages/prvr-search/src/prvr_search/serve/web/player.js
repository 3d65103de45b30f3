// Plays a video at a moment: the file itself, or a preview where the browser cannot play it.

import { blob, clipUrl, fileUrl, linesOf, previewUrl, refusal, save } from "./api.js";
import { lineHead, make, makeStrip, nameParts, span } from "./strip.js";

const element = (id) => document.getElementById(id);
const panel = element("player");
const video = element("video");
const note = element("playing-note");
const LEAD = 2; // seconds of a preview before and after the moment
const FROM_FIRST_FRAME = navigator.userAgent.includes("Firefox/"); // others count from the time stamp 0
const SLACK = 0.1; // seconds by which the duration of a file may be wrong
const FREE = 20; // seconds of a preview at a time that was clicked
const SAVED = 10; // seconds of a clip without a moment

let now = null; // what plays: { hit, moment, offset, url, strip }; offset: seconds of the video at time 0 of the browser
let until = null; // where it stops, in seconds of the video
let loading = null;
let previews = [];
let longest = 60; // seconds of a preview

/** What the server can make, and how long it may be. */
export function setPreviews(kinds, seconds) {
  longest = seconds;
  previews = kinds.filter((kind) => video.canPlayType(kind === "mp4" ? 'video/mp4; codecs="avc1.42E01E"' : "video/webm"));
}

/** Plays a moment of a hit; its end stops it. */
export function playMoment(hit, scale, moment) {
  open(hit, scale, moment, moment.start, moment.end);
}

/** Plays a hit from a time, without an end. */
export function playAt(hit, scale, seconds) {
  open(hit, scale, null, seconds, null);
}

export function isOpen() {
  return !panel.hidden;
}

export function closePlayer() {
  stop();
  panel.hidden = true;
  document.body.classList.remove("playing");
}

function open(hit, scale, moment, start, end) {
  const same = now?.hit === hit && !panel.hidden && !now.url;
  panel.hidden = false;
  document.body.classList.add("playing");
  until = end;
  if (!same) {
    stop();
    const strip = makeStrip(hit, scale, (seconds) => playAt(hit, scale, seconds));
    now = { hit, moment, offset: FROM_FIRST_FRAME ? 0 : -hit.video.start_time, url: "", strip };
    element("playing-name").replaceChildren(...nameParts(hit.video.name));
    element("playing-strip").replaceChildren(strip);
    showLines(now, scale);
  }
  now.moment = moment;
  element("playing-moment").textContent = moment ? span(moment) : "";
  panel.dispatchEvent(new CustomEvent("opened", { detail: { video: hit.video, start, end } }));
  element("again").disabled = element("loop").disabled = element("on").disabled = !moment;
  if (same) seek(start);
  else if (mayPlay(hit.video)) playFile(start);
  else playPreview(start, end);
}

/** Shows what is said below the player; a click on a line plays from there. */
async function showLines(state, scale) {
  const list = element("lines");
  list.hidden = true;
  const lines = await linesOf(state.hit.video).catch(() => []);
  if (state !== now) return;
  list.hidden = !lines.length;
  const items = lines.map((line) => {
    const item = make("li");
    const matches = state.hit.lines.some((one) => one.start === line.start && one.text === line.text);
    const button = make("button", matches ? "match" : "", `${lineHead(line)} ${line.text}`);
    button.addEventListener("click", () => playAt(state.hit, scale, line.start));
    item.append(button);
    return item;
  });
  list.replaceChildren(...items);
  const match = list.querySelector(".match");
  if (match) list.scrollTop = match.offsetTop - list.offsetTop;
}

function mayPlay(file) {
  return file.type.startsWith("video/") && video.canPlayType(file.type) !== "";
}

function playFile(start) {
  tell("");
  const state = now;
  video.onloadedmetadata = () => {
    // of a file whose picture they do not know, browsers play the sound alone
    if (!video.videoWidth) return playPreview(start, until);
    seek(start);
  };
  video.onerror = () => state === now && playPreview(start, until);
  video.src = fileUrl(now.hit.video);
  video.load();
}

/** Why a file does not play, if that is not because of the browser; "" if it may be. */
function damage(file) {
  const broken = file.warnings[0] ?? (video.error?.code === MediaError.MEDIA_ERR_DECODE ? "it cannot be decoded" : "");
  return broken && `this file is damaged (${broken})`;
}

async function playPreview(start, end, reason = "") {
  const state = now;
  reason ||= damage(state.hit.video);
  video.onerror = () => state === now && tell("This browser cannot play the preview either.", true);
  video.removeAttribute("src"); // the sound of a file whose picture does not play
  video.onloadedmetadata = null;
  tell("Making a preview …");
  const lead = Math.min(LEAD, longest / 4);
  const from = Math.max(0, start - (end === null ? 0 : lead));
  const to = Math.min(from + longest, end === null ? start + FREE : end + lead, Math.max(now.hit.video.duration, from + 0.5));
  loading?.abort();
  loading = new AbortController();
  try {
    const { signal } = loading;
    const refused = await refusal(state.hit.video);
    if (state !== now) return;
    if (refused) return tell(`This file ${refused}.`);
    const { codec, name } = state.hit.video;
    const why = reason || `this browser cannot play this ${name.slice(name.lastIndexOf("."))} file (${codec})`;
    if (!previews.length) return tell(`${why[0].toUpperCase()}${why.slice(1)}, and the server cannot make a preview.`, true);
    const made = await blob(previewUrl(now.hit.video, from, to, previews[0]), signal);
    if (state !== now) return;
    release();
    now.url = URL.createObjectURL(made);
    now.offset = from;
    video.onloadedmetadata = () => seek(start);
    video.src = now.url;
    tell(`A preview: ${why}.`, true);
  } catch (error) {
    if (error.name !== "AbortError" && state === now) tell(error.message);
  }
}

function seek(seconds) {
  const time = Math.max(0, seconds - now.offset);
  // of an MP4 file with a late start, browsers do not count the start to the duration, and go no further
  if (!now.url && now.offset < 0 && time > video.duration + SLACK) {
    return playPreview(seconds, until, "this browser cannot seek to this moment");
  }
  video.currentTime = time;
  video.play().catch(() => {}); // a browser may want a click first: the controls are there
}

/** Shows a note below the picture; `otherwise` adds what to do. */
function tell(text, otherwise = false) {
  note.textContent = text;
  note.hidden = !text;
  if (!otherwise) return;
  const link = make("a", "", "Download the file");
  link.href = fileUrl(now.hit.video);
  [link.download] = nameParts(now.hit.video.name);
  note.append(" ", link, " to open it in a player.");
}

function release() {
  if (now?.url) URL.revokeObjectURL(now.url);
}

function stop() {
  loading?.abort();
  release();
  video.onerror = video.onloadedmetadata = null;
  video.pause();
  video.removeAttribute("src");
  video.load();
  now = null;
}

function watch() {
  if (now && !video.seeking && video.readyState >= 1) {
    const time = video.currentTime + now.offset;
    now.strip.showTime(time);
    if (until !== null && now.moment && !video.paused && time >= until - 0.03) {
      if (element("loop").getAttribute("aria-pressed") === "true") seek(now.moment.start);
      else {
        video.pause();
        until = null; // from here on it plays as usual
      }
    }
  }
  requestAnimationFrame(watch);
}
requestAnimationFrame(watch);

element("close").addEventListener("click", () => panel.dispatchEvent(new Event("closed")));
element("again").addEventListener("click", () => {
  until = now.moment.end;
  seek(now.moment.start);
});
element("loop").addEventListener("click", (event) => {
  const on = event.currentTarget.getAttribute("aria-pressed") !== "true";
  event.currentTarget.setAttribute("aria-pressed", String(on));
  if (on && now?.moment) {
    until = now.moment.end;
    if (video.paused) seek(now.moment.start);
  }
});
element("similar").addEventListener("click", () => {
  const detail = { video: now.hit.video, start: Math.min(video.currentTime + now.offset, now.hit.video.duration) };
  panel.dispatchEvent(new CustomEvent("similar", { detail }));
});
element("save").addEventListener("click", async (event) => {
  const state = now;
  const start = state.moment?.start ?? Math.max(0, video.currentTime + state.offset);
  const end = state.moment?.end ?? Math.min(start + SAVED, state.hit.video.duration);
  const button = event.currentTarget;
  button.disabled = true;
  try {
    await save(clipUrl(state.hit.video, start, Math.max(end, start + 0.1)));
  } catch (error) {
    if (state === now) tell(error.message);
  }
  button.disabled = false;
});
element("on").addEventListener("click", () => {
  until = null;
  element("loop").setAttribute("aria-pressed", "false");
  video.play().catch(() => {});
});
