// Follows a run: the server sends the parts of the page that have changed.
const run = document.querySelector("[data-live-url]");
const state = document.querySelector("[data-live-state]");
const RETRY_MS = 2000;
let seen = Number(new URL(run.dataset.liveUrl, location.href).searchParams.get("after"));

function tell(text, mood) {
  state.textContent = text;
  state.className = `live ${mood}`;
}

/** Replace what a part holds, and keep what is open, scrolled or has the focus. */
function put(name, html) {
  const part = run.querySelector(`[data-live="${name}"]`);
  if (!part) return;
  const focused = part.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
  const scroll = part.querySelector(".scroll");
  const place = scroll && [scroll.scrollLeft, scroll.scrollTop];
  part.innerHTML = html;
  const again = part.querySelector(".scroll");
  if (place && again) [again.scrollLeft, again.scrollTop] = place;
  if (focused) {
    const link = [...part.querySelectorAll("a")].find((a) => a.getAttribute("href") === focused);
    link?.focus({ preventScroll: true });
  }
}

function putRow(id, html) {
  const list = run.querySelector("ol[data-tail]");
  const made = new DOMParser().parseFromString(html, "text/html").querySelector("li");
  const known = document.getElementById(id);
  if (known) known.replaceWith(made);
  else if (list?.dataset.tail) {
    made.classList.add("is-new");
    list.append(made);
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
