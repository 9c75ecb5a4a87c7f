// Live updates of a run's page: the server sends the changed parts and the changed items of lists.
const run = document.querySelector("[data-live-url]");
const state = document.querySelector("[data-live-state]");
const RETRY_MS = 2000;
// The largest number of event rows on the page, and the number on a page of earlier events.
const MAX_ROWS = 500;
const PAGE_ROWS = 250;
// New rows are highlighted, unless there are more than this.
const MAX_MARKED = 20;
const MARKED_MS = 1200;
// The pause after a drawing, as a multiple of its duration: the run may need this processor.
const PAUSE_FACTOR = 9;
let seen = Number(new URL(run.dataset.liveUrl, location.href).searchParams.get("after"));
let source = null;
// Received changes that are not drawn yet.
let pending = noChanges();
let timer = 0;
let drawnAt = 0;
let cost = 0;

function noChanges() {
  return { parts: {}, items: {}, rows: {}, isBehind: false };
}

function showState(text, name) {
  state.textContent = text;
  state.className = `live ${name}`;
}

/** Replace the content of a part. */
function putPart(name, html) {
  const part = run.querySelector(`[data-live="${name}"]`);
  if (!part) return;
  const made = part.cloneNode(false);
  made.innerHTML = html;
  if (!made.isEqualNode(part)) keepFocus(part, () => part.replaceChildren(...made.childNodes));
}

/** Change the page and restore the focus to the link that had it. */
function keepFocus(place, change) {
  const focused = place.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
  change();
  if (!focused || place.contains(document.activeElement)) return;
  const link = [...place.querySelectorAll("a")].find((a) => a.getAttribute("href") === focused);
  link?.focus({ preventScroll: true });
}

/** Replace the changed items of a list. Without `order` the order stays. */
function putItems(name, { html, order }) {
  const box = run.querySelector(`[data-items="${CSS.escape(name)}"]`);
  if (!box) return;
  const known = new Map([...box.children].filter((each) => each.dataset.item).map((each) => [each.dataset.item, each]));
  keepFocus(box, () => {
    // All items are parsed in a copy of their box, because the items of a graph are SVG.
    const holder = box.cloneNode(false);
    holder.innerHTML = Object.values(html).join("");
    for (const made of [...holder.children]) {
      const old = known.get(made.dataset.item);
      if (old?.isEqualNode(made)) continue;
      old?.replaceWith(made);
      known.set(made.dataset.item, made);
    }
    if (!order) return;
    // Removed items go first, so that the remaining items need not move.
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

/** Replace existing rows, and append new rows if the page shows the newest rows. */
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
  const surplus = [...list.children].slice(0, Math.max(list.childElementCount - MAX_ROWS, 0));
  for (const row of surplus) row.remove();
  if (surplus.length || isBehind) offerEarlier(Number(list.firstElementChild.id.slice(1)));
}

/** Highlight new rows for a moment, unless there are many. */
function mark(rows) {
  if (rows.length > MAX_MARKED) return;
  for (const row of rows) row.classList.add("is-new");
  setTimeout(() => rows.forEach((row) => row.classList.remove("is-new")), MARKED_MS);
}

/** Show the link to the rows before the first row. */
function offerEarlier(first) {
  const place = run.querySelector("[data-earlier]");
  const link = place.querySelector("a");
  const address = new URL(link.href);
  address.searchParams.set("from", String(Math.max(first - PAGE_ROWS, 0)));
  link.href = address;
  place.hidden = false;
}

/** Draw the pending changes, and measure how long the browser takes to show them. */
function draw() {
  clearTimeout(timer);
  timer = 0;
  const { parts, items, rows, isBehind } = pending;
  pending = noChanges();
  const began = performance.now();
  for (const [name, html] of Object.entries(parts)) putPart(name, html);
  for (const [name, change] of Object.entries(items)) putItems(name, change);
  putRows(rows, isBehind);
  if (Object.keys(parts).length) document.dispatchEvent(new CustomEvent("run:update"));
  drawnAt = performance.now();
  cost = drawnAt - began;
  requestAnimationFrame(() => {
    const frame = performance.now();
    // The browser lays out and paints this frame before the next task.
    setTimeout(() => {
      drawnAt = performance.now();
      cost += drawnAt - frame;
    });
  });
}

function drawSoon() {
  if (!timer) timer = setTimeout(draw, drawnAt + PAUSE_FACTOR * cost - performance.now());
}

function takeItems(name, { html, order }) {
  const before = pending.items[name];
  pending.items[name] = { html: { ...before?.html, ...html }, order: order ?? before?.order };
}

/** Call a function with the document of each event of this type, and draw soon. */
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
  source.addEventListener("open", () => showState("live", "is-on"));
  on("parts", (parts) => Object.assign(pending.parts, parts));
  on("items", (items) => Object.entries(items).forEach(([name, change]) => takeItems(name, change)));
  on("skipped", () => Object.assign(pending, { rows: {}, isBehind: true }));
  on("rows", (rows) => {
    Object.assign(pending.rows, rows);
    seen = Math.max(seen, ...Object.keys(rows).map((id) => Number(id.slice(1))));
  });
  source.addEventListener("over", () => {
    disconnect();
    document.removeEventListener("visibilitychange", watch);
    draw();
    showState("ended", "");
  });
  source.addEventListener("ended", () => {
    disconnect();
    location.reload();
  });
  source.addEventListener("error", () => {
    disconnect();
    showState("connection lost, reconnecting", "is-off");
    setTimeout(reconnect, RETRY_MS);
  });
}

function disconnect() {
  source?.close();
  source = null;
}

/** Reload the page if the session has ended, so that the sign-in page opens; else connect again. */
async function reconnect() {
  const response = await fetch("/keys", { headers: { accept: "text/plain" } }).catch(() => null);
  if (response?.status === 401) location.reload();
  else watch();
}

/** Follow the run while the page is visible. A hidden page must not take processor time from the run. */
function watch() {
  if (document.visibilityState === "hidden") disconnect();
  else if (!source) follow();
}

document.addEventListener("visibilitychange", watch);
watch();
