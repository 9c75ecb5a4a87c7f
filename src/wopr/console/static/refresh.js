// Updates a list while its page is visible.
const EVERY_MS = 2000;

function current(list) {
  return list.querySelector(".is-current a")?.getAttribute("href");
}

/** Replace the content of a list. Focus, current row, open details, selected boxes and a shown explanation stay. */
function replaceRows(list, html) {
  const marked = current(list);
  const focused = list.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
  const term = [...list.querySelectorAll(".term")].indexOf(document.activeElement);
  const open = [...list.querySelectorAll("details[open]")].map((details) => details.closest("[id]").id);
  const page = new DOMParser().parseFromString(html, "text/html");
  const fresh = page.getElementById(list.id);
  if (!fresh) return;
  const named = (box) => `${box.name} ${box.value}`;
  const chosen = new Set([...list.querySelectorAll("input:checked")].map(named));
  for (const box of fresh.querySelectorAll("input[type=checkbox]")) box.checked = chosen.has(named(box));
  list.replaceChildren(...fresh.childNodes);
  const find = (href) => [...list.querySelectorAll("a")].find((a) => a.getAttribute("href") === href);
  for (const id of open) document.getElementById(id)?.querySelector("details")?.setAttribute("open", "");
  if (marked) find(marked)?.closest("tr, li")?.classList.add("is-current");
  if (focused) find(focused)?.focus({ preventScroll: true });
  list.querySelectorAll(".term")[term]?.focus({ preventScroll: true });
  list.dispatchEvent(new CustomEvent("list:fresh"));
}

async function update(list, state) {
  const headers = { "x-part": "1", accept: "text/html" };
  if (state.tag) headers["if-none-match"] = state.tag;
  const response = await fetch(location.href, { headers, redirect: "error", cache: "no-store" });
  if (response.status !== 200) return;
  state.tag = response.headers.get("etag");
  replaceRows(list, await response.text());
}

/** Update every list on the page that can change. */
export function refreshLists() {
  for (const list of document.querySelectorAll("[data-refresh]:not([data-refresh=''])")) {
    const state = { tag: null };
    setInterval(() => {
      if (document.visibilityState === "visible") update(list, state).catch(() => {});
    }, EVERY_MS);
  }
}
