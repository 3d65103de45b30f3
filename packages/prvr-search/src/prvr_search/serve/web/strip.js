// The time line of a video: how well each part fits the query, and where the moments are.

const SVG = "http://www.w3.org/2000/svg";
const LEVELS = 8;
const HEIGHT = 32;
const WIDTH = 640;

/** 83.9 -> "1:23", 3723 -> "1:02:03": as `prvr search` prints it. */
export function clock(seconds) {
  const all = Math.max(0, Math.floor(seconds));
  const two = (n) => String(n).padStart(2, "0");
  const hours = Math.floor(all / 3600);
  const minutes = Math.floor(all / 60) % 60;
  return hours ? `${hours}:${two(minutes)}:${two(all % 60)}` : `${minutes}:${two(all % 60)}`;
}

/** When a line is shown, and whether it is said or written, if a recogniser gave it. */
export function lineHead(line) {
  return clock(line.start) + (line.kind && ` ${line.kind}:`);
}

/** From the second in which a moment starts to that by which it has ended, as `prvr search` prints it. */
export function span(moment) {
  const end = Math.max(Math.ceil(moment.end - 1e-6), Math.floor(moment.start) + 1);
  return `${clock(moment.start)} – ${clock(end)}`;
}

/** An element; names come as text and stay text. */
export function make(tag, name, text) {
  const node = document.createElement(tag);
  if (tag === "button") node.type = "button";
  if (name) node.className = name;
  if (text !== undefined) node.textContent = text;
  return node;
}

/** A name as the page shows it: the file, and its folder after it. */
export function nameParts(name) {
  const at = name.lastIndexOf("/") + 1;
  return at ? [name.slice(at), " ", make("span", "folder", name.slice(0, at - 1))] : [name];
}

/** What the bars of an answer are drawn by: the lowest and the highest value of all strips, so that those of different
 * results can be compared. */
export function range(answer) {
  const values = answer.hits.flatMap((hit) => hit.relevance).filter((value) => value !== null);
  const low = Math.min(...values);
  const high = Math.max(...values);
  return high > low ? [low, high] : [low - 1, low];
}

/**
 * A strip that can be clicked, and moved along with the arrow keys.
 * @param {object} hit of the API
 * @param {[number, number]} scale of `range`
 * @param {(seconds: number) => void} play called with the time that was chosen
 */
export function makeStrip(hit, scale, play) {
  const duration = Math.max(hit.video.duration, 0.01);
  const box = make("div", "strip");
  box.tabIndex = 0;
  box.setAttribute("role", "slider");
  box.setAttribute("aria-label", `Time line of ${hit.video.name}; Enter plays`);
  box.setAttribute("aria-valuemin", "0");
  box.setAttribute("aria-valuemax", duration.toFixed(1));
  const cursor = make("div", "cursor");
  const tip = make("span", "tip");
  cursor.append(tip);
  const ends = make("div", "ends");
  ends.append(...[0, duration].map((time) => make("span", "", clock(time))));
  const bars = make("div", "bars");
  bars.append(picture(hit, scale, duration), cursor);
  box.append(bars, ends);

  let at = hit.moments[0]?.start ?? 0;
  const point = (seconds) => {
    at = Math.min(duration, Math.max(0, seconds));
    cursor.style.left = `${(100 * at) / duration}%`;
    cursor.classList.toggle("right", at > 0.8 * duration);
    const value = hit.relevance[Math.min(hit.relevance.length - 1, Math.floor((hit.relevance.length * at) / duration))];
    tip.textContent = value === null || value === undefined ? clock(at) : `${clock(at)} · ${value.toFixed(2)}`;
    box.setAttribute("aria-valuenow", at.toFixed(1));
    box.setAttribute("aria-valuetext", clock(at));
  };
  const under = (event) => {
    const edge = bars.getBoundingClientRect();
    return (duration * (event.clientX - edge.left)) / edge.width;
  };
  point(at);
  bars.addEventListener("pointermove", (event) => point(under(event)));
  bars.addEventListener("click", (event) => {
    point(under(event));
    play(at);
  });
  box.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1, PageDown: -8, PageUp: 8 }[event.key];
    if (step) point(at + (step * duration) / hit.relevance.length);
    else if (event.key === "Home") point(0);
    else if (event.key === "End") point(duration);
    else if (event.key === "Enter" || event.key === " ") play(at);
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
  box.showTime = (seconds) => {
    box.classList.add("live");
    point(seconds);
  };
  return box;
}

function picture(hit, [low, high], duration) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("aria-hidden", "true");
  const step = WIDTH / hit.relevance.length;
  for (const moment of hit.moments) {
    const left = (WIDTH * moment.start) / duration;
    const width = (WIDTH * (moment.end - moment.start)) / duration;
    const name = moment === hit.moments[0] ? "best" : "moment";
    svg.append(rect(left, 0, Math.max(3, width), HEIGHT, name), rect(left, 0, Math.max(3, width), 3, `${name} edge`));
  }
  hit.relevance.forEach((value, part) => {
    const share = value === null ? 0 : (value - low) / (high - low);
    const height = 2 + (HEIGHT - 9) * share;
    const name = `heat h${Math.min(LEVELS - 1, Math.floor(LEVELS * share))}`;
    svg.append(rect(part * step + step * 0.1, HEIGHT - height, step * 0.8, height, name));
  });
  return svg;
}

function rect(x, y, width, height, name) {
  const node = document.createElementNS(SVG, "rect");
  for (const [key, value] of Object.entries({ x, y, width, height })) node.setAttribute(key, value.toFixed(2));
  node.setAttribute("class", name);
  return node;
}
