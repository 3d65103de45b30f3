// Requests to the server, with the token if it asks for one.

const KEY = "prvr-token";
const LONGEST_TIMER = 2 ** 31 - 1; // milliseconds; browsers take more for 0
let asking = null;
let renewal = 0;

export class Problem extends Error {}

/** JSON of an address; asks the user for the token when the server wants one. */
export async function get(path, signal) {
  const response = await send(path, { signal });
  return response.json();
}

/** JSON of an address to which something is sent. */
export async function post(path, body, signal) {
  const response = await send(path, { method: "POST", body, signal });
  return response.json();
}

/** The bytes of an address as a Blob. */
export async function blob(path, signal) {
  const response = await send(path, { signal });
  return response.blob();
}

/** Saves what an address answers, under the name that the server gives it. */
export async function save(path, options = {}) {
  const response = await send(path, options);
  const link = document.createElement("a");
  const [, kind, name] = /filename(\*?)=(?:UTF-8'')?"?([^"]+)/i.exec(response.headers.get("Content-Disposition"));
  link.download = kind ? decodeURIComponent(name) : name;
  link.href = URL.createObjectURL(await response.blob());
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);
}

const REFUSALS = { 403: "cannot be read", 404: "changed or was removed; search again", 409: "changed after it was encoded", 410: "was moved or deleted" };

/** Why the server does not send the file of a video; "" if it does. */
export async function refusal(video) {
  const response = await fetch(fileUrl(video), { method: "HEAD", headers: headers() });
  return REFUSALS[response.status] ?? "";
}

export function clipUrl(video, start, end) {
  return `api/videos/${video.key}/clip?start=${start.toFixed(3)}&end=${end.toFixed(3)}`;
}

export function fileUrl(video) {
  return `api/videos/${video.key}/file`;
}

/** The lines of the subtitles of a video, in order of time. */
export function linesOf(video) {
  return get(`api/videos/${video.key}/lines`);
}

export function thumbnailUrl(video, time) {
  return `api/videos/${video.key}/thumbnail?t=${time.toFixed(2)}`;
}

export function previewUrl(video, start, end, kind) {
  const down = (seconds) => (Math.floor(1000 * seconds + 1e-6) / 1000).toFixed(3); // the server may have a shorter limit
  return `api/videos/${video.key}/preview?start=${down(start)}&end=${down(end)}&kind=${kind}`;
}

async function send(path, options) {
  for (;;) {
    let response;
    try {
      response = await fetch(path, { ...options, headers: { ...options.headers, ...headers() } });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Problem("The server does not respond. Is it still running?");
    }
    if (response.ok) return response;
    if (response.status !== 401) throw new Problem(await reason(response));
    await askForToken();
  }
}

function headers() {
  const token = sessionStorage.getItem(KEY);
  return token ? { Authorization: `Bearer ${token}` } : {};
}

async function reason(response) {
  let detail = "";
  try {
    const body = await response.json();
    detail = typeof body.detail === "string" ? body.detail : body.detail.map((one) => one.msg).join("; ");
  } catch {
    // not of our server
  }
  const wait = response.headers.get("Retry-After");
  return `${detail || `The server answered ${response.status}.`}${wait ? ` Try again in ${wait} s.` : ""}`;
}

/** Players cannot send a header: a cookie stands for the token, and is renewed in time. */
export async function openSession() {
  if (!sessionStorage.getItem(KEY)) return true;
  const response = await fetch("api/session", { method: "POST", headers: headers() });
  if (!response.ok) return false;
  const { seconds } = await response.json();
  clearTimeout(renewal);
  renewal = setTimeout(openSession, Math.min(500 * seconds, LONGEST_TIMER));
  return true;
}

function askForToken() {
  asking ??= new Promise((done) => {
    const dialog = document.getElementById("token");
    const form = document.getElementById("token-form");
    const value = document.getElementById("token-value");
    document.getElementById("token-wrong").hidden = !sessionStorage.getItem(KEY);
    sessionStorage.removeItem(KEY);
    form.onsubmit = async (event) => {
      event.preventDefault();
      sessionStorage.setItem(KEY, value.value.trim());
      if (!(await openSession())) {
        document.getElementById("token-wrong").hidden = false;
        value.select();
        return;
      }
      value.value = "";
      dialog.close();
      asking = null;
      done();
    };
    dialog.oncancel = (event) => event.preventDefault();
    dialog.showModal();
    value.focus();
  });
  return asking;
}
