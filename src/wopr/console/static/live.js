// Follows a run: the server sends the parts of the page and the items of its lists that have changed.
const run = document.querySelector("[data-live-url]");
const state = document.querySelector("[data-live-state]");
const RETRY_MS = 2000;
// Rows of events that the page keeps, and that a page of earlier ones has.
const MOST_ROWS = 500;
const PAGE_ROWS = 250;
// New rows are marked for a moment, unless there are more than this.
const MOST_MARKED = 20;
const MARKED_MS = 1200;
// The page waits this many times the duration of a drawing before the next one: the run may need this processor.
const REST = 9;
let seen = Number(new URL(run.dataset.liveUrl, location.href).searchParams.get("after"));
let source = null;
// What came and is not drawn yet.
let news = nothing();
let timer = 0;
let drawnAt = 0;
let cost = 0;

function nothing() {
  return { parts: {}, items: {}, rows: {}, isBehind: false };
}

function tell(text, mood) {
  state.textContent = text;
  state.className = `live ${mood}`;
}

/** Replace what a part holds. */
function put(name, html) {
  const part = run.querySelector(`[data-live="${name}"]`);
  if (!part) return;
  const made = part.cloneNode(false);
  made.innerHTML = html;
  if (!made.isEqualNode(part)) keepFocus(part, () => part.replaceChildren(...made.childNodes));
}

/** Run a change of the page, and give the focus back to the link that had it. */
function keepFocus(place, change) {
  const focused = place.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
  change();
  if (!focused || place.contains(document.activeElement)) return;
  const link = [...place.querySelectorAll("a")].find((a) => a.getAttribute("href") === focused);
  link?.focus({ preventScroll: true });
}

/** Replace the items of a list that have changed; without an order the list keeps its own. */
function putItems(name, { html, order }) {
  const box = run.querySelector(`[data-items="${CSS.escape(name)}"]`);
  if (!box) return;
  const known = new Map([...box.children].filter((each) => each.dataset.item).map((each) => [each.dataset.item, each]));
  keepFocus(box, () => {
    // The items are parsed together, within a copy of their box: those of a graph are SVG.
    const holder = box.cloneNode(false);
    holder.innerHTML = Object.values(html).join("");
    for (const made of [...holder.children]) {
      const old = known.get(made.dataset.item);
      if (old?.isEqualNode(made)) continue;
      old?.replaceWith(made);
      known.set(made.dataset.item, made);
    }
    if (!order) return;
    // Those that are no longer there go first: then the others are in place, and are not moved.
    const kept = new Set(order);
    for (const [key, item] of known) if (!kept.has(key)) item.remove();
    let last = null;
    for (const item of order.map((key) => known.get(key)).filter(Boolean)) {
      if (item.parentNode !== box || (last && last.nextElementSibling !== item)) {
        if (last) last.after(item);
        else box.append(item);
      }
      last = item;
    }
  });
}

/** Replace rows that the page has, and add the others where the page shows the newest rows. */
function putRows(html, isBehind) {
  const list = run.querySelector("ol[data-tail]");
  if (!list) return;
  if (isBehind && list.dataset.tail) list.replaceChildren();
  const holder = document.createElement("ol");
  holder.innerHTML = Object.values(html).join("");
  const made = [...holder.children];
  const fresh = made.filter((row) => !document.getElementById(row.id));
  for (const row of made) document.getElementById(row.id)?.replaceWith(row);
  if (!fresh.length || !list.dataset.tail) return;
  run.querySelector("[data-no-rows]")?.remove();
  list.append(...fresh);
  mark(fresh);
  const surplus = [...list.children].slice(0, Math.max(list.childElementCount - MOST_ROWS, 0));
  for (const row of surplus) row.remove();
  if (surplus.length || isBehind) offerEarlier(Number(list.firstElementChild.id.slice(1)));
}

/** Show for a moment which rows are new, unless there are many of them. */
function mark(rows) {
  if (rows.length > MOST_MARKED) return;
  for (const row of rows) row.classList.add("is-new");
  setTimeout(() => rows.forEach((row) => row.classList.remove("is-new")), MARKED_MS);
}

/** Link to the rows before the first one. */
function offerEarlier(first) {
  const place = run.querySelector("[data-earlier]");
  const link = place.querySelector("a");
  const address = new URL(link.href);
  address.searchParams.set("from", String(Math.max(first - PAGE_ROWS, 0)));
  link.href = address;
  place.hidden = false;
}

/** Draw what came, and find out how long the browser takes until it is on the screen. */
function draw() {
  clearTimeout(timer);
  timer = 0;
  const { parts, items, rows, isBehind } = news;
  news = nothing();
  const began = performance.now();
  for (const [name, html] of Object.entries(parts)) put(name, html);
  for (const [name, change] of Object.entries(items)) putItems(name, change);
  putRows(rows, isBehind);
  if (Object.keys(parts).length) document.dispatchEvent(new CustomEvent("run:news"));
  drawnAt = performance.now();
  cost = drawnAt - began;
  requestAnimationFrame(() => {
    const frame = performance.now();
    // The layout and the painting of this frame come between here and the next task.
    setTimeout(() => {
      drawnAt = performance.now();
      cost += drawnAt - frame;
    });
  });
}

function drawSoon() {
  if (!timer) timer = setTimeout(draw, drawnAt + REST * cost - performance.now());
}

function takeItems(name, { html, order }) {
  const before = news.items[name];
  news.items[name] = { html: { ...before?.html, ...html }, order: order ?? before?.order };
}

/** Call a function with the document of each event of a kind, and draw soon. */
function on(kind, take) {
  source.addEventListener(kind, (event) => {
    take(JSON.parse(event.data));
    drawSoon();
  });
}

function follow() {
  const address = new URL(run.dataset.liveUrl, location.href);
  address.searchParams.set("after", String(seen));
  source = new EventSource(address);
  source.addEventListener("open", () => tell("live", "is-on"));
  on("parts", (parts) => Object.assign(news.parts, parts));
  on("items", (items) => Object.entries(items).forEach(([name, change]) => takeItems(name, change)));
  on("skipped", () => Object.assign(news, { rows: {}, isBehind: true }));
  on("rows", (rows) => {
    Object.assign(news.rows, rows);
    seen = Math.max(seen, ...Object.keys(rows).map((id) => Number(id.slice(1))));
  });
  source.addEventListener("over", () => {
    leave();
    document.removeEventListener("visibilitychange", watch);
    draw();
    tell("ended", "");
  });
  source.addEventListener("ended", () => {
    leave();
    location.reload();
  });
  source.addEventListener("error", () => {
    leave();
    tell("connection lost, trying again", "is-off");
    setTimeout(again, RETRY_MS);
  });
}

function leave() {
  source?.close();
  source = null;
}

/** A session that has ended needs the sign-in page; a host that is away needs patience. */
async function again() {
  const answer = await fetch("/keys", { headers: { accept: "text/plain" } }).catch(() => null);
  if (answer?.status === 401) location.reload();
  else watch();
}

/** Follow the run while the page can be seen: drawing a page that is hidden takes time from the run. */
function watch() {
  if (document.visibilityState === "hidden") leave();
  else if (!source) follow();
}

document.addEventListener("visibilitychange", watch);
watch();
