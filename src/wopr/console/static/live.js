// Follows a run: the server sends the parts of the page and the items of its lists that have changed.
const run = document.querySelector("[data-live-url]");
const state = document.querySelector("[data-live-state]");
const RETRY_MS = 2000;
// Rows of events that the page keeps; earlier ones are a page back.
const MOST_ROWS = 500;
let seen = Number(new URL(run.dataset.liveUrl, location.href).searchParams.get("after"));

function tell(text, mood) {
  state.textContent = text;
  state.className = `live ${mood}`;
}

/** Replace what a part holds. */
function put(name, html) {
  const part = run.querySelector(`[data-live="${name}"]`);
  if (part) keepFocus(part, () => (part.innerHTML = html));
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
    for (const [key, markup] of Object.entries(html)) {
      const holder = box.cloneNode(false);
      holder.innerHTML = markup;
      const made = holder.firstElementChild;
      known.get(key)?.replaceWith(made);
      known.set(key, made);
    }
    if (!order) return;
    let last = null;
    for (const key of order) {
      const item = known.get(key);
      known.delete(key);
      if (!item) continue;
      if (item.parentNode !== box || (last && last.nextElementSibling !== item)) {
        if (last) last.after(item);
        else box.append(item);
      }
      last = item;
    }
    for (const gone of known.values()) gone.remove();
  });
}

function putRow(id, html) {
  const list = run.querySelector("ol[data-tail]");
  const made = new DOMParser().parseFromString(html, "text/html").querySelector("li");
  const known = document.getElementById(id);
  if (known) known.replaceWith(made);
  else if (list?.dataset.tail) {
    made.classList.add("is-new");
    list.append(made);
    if (list.childElementCount > MOST_ROWS) list.firstElementChild.remove();
    run.querySelector("[data-no-rows]")?.remove();
  }
}

function follow() {
  const address = new URL(run.dataset.liveUrl, location.href);
  address.searchParams.set("after", String(seen));
  const source = new EventSource(address);
  source.addEventListener("open", () => tell("live", "is-on"));
  source.addEventListener("parts", (event) => {
    for (const [name, html] of Object.entries(JSON.parse(event.data))) put(name, html);
    document.dispatchEvent(new CustomEvent("run:news"));
  });
  source.addEventListener("items", (event) => {
    for (const [name, change] of Object.entries(JSON.parse(event.data))) putItems(name, change);
  });
  source.addEventListener("skipped", () => {
    const list = run.querySelector("ol[data-tail]");
    if (list?.dataset.tail) list.replaceChildren();
  });
  source.addEventListener("rows", (event) => {
    for (const [id, html] of Object.entries(JSON.parse(event.data))) {
      putRow(id, html);
      seen = Math.max(seen, Number(id.slice(1)));
    }
  });
  source.addEventListener("over", () => {
    source.close();
    tell("ended", "");
  });
  source.addEventListener("ended", () => {
    source.close();
    location.reload();
  });
  source.addEventListener("error", () => {
    source.close();
    tell("connection lost, trying again", "is-off");
    setTimeout(again, RETRY_MS);
  });
}

/** A session that has ended needs the sign-in page; a host that is away needs patience. */
async function again() {
  const answer = await fetch("/keys", { headers: { accept: "text/plain" } }).catch(() => null);
  if (answer?.status === 401) location.reload();
  else follow();
}

follow();
