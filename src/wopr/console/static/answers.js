// Updates the forms of interrupts: closes answered ones and adds new ones.
const CHECK_MS = 3000;
const holder = document.querySelector("[data-answers]");
const single = document.querySelector("[data-answer-page]");

async function fetchInterrupt(address) {
  const headers = { "x-part": "1", accept: "text/html" };
  const response = await fetch(address, { headers, redirect: "error", cache: "no-store" });
  if (!response.ok) throw new Error(String(response.status));
  const page = new DOMParser().parseFromString(await response.text(), "text/html");
  return page.querySelector("article.wait");
}

/** Whether a form has unsent input, which must not be lost. */
function isBusy(place) {
  return [...place.querySelectorAll("textarea, input:not([type=hidden])")].some((field) => field.value !== field.defaultValue);
}

/** Show an interrupt in a place. A form with unsent input stays below it, but cannot be sent. */
export async function openAnswer(address, place) {
  let found;
  try {
    found = await fetchInterrupt(address);
  } catch {
    return;
  }
  if (!found) return;
  const keepsForm = place.querySelector("[data-wait]")?.dataset.wait === address && isBusy(place);
  if (keepsForm) {
    for (const button of place.querySelectorAll("form.answer button")) button.disabled = true;
    place.prepend(found);
  } else place.replaceChildren(found);
  if (!keepsForm) place.scrollTop = 0;
}

/** Show a form for every open interrupt of the run. */
function follow() {
  const asked = [...document.querySelectorAll("[data-asks]")].map((each) => each.dataset.asks);
  for (const place of holder.querySelectorAll("[data-place]")) {
    if (!asked.includes(place.dataset.place)) {
      openAnswer(place.dataset.place, place);
      delete place.dataset.place;
    }
  }
  for (const address of asked) {
    if (holder.querySelector(`[data-place="${CSS.escape(address)}"]`)) continue;
    const place = document.createElement("div");
    place.dataset.place = address;
    holder.append(place);
    openAnswer(`${address}&next=${encodeURIComponent(holder.dataset.next)}`, place);
  }
}

/** Check whether the interrupt of this page is closed, and stop checking once it is. */
async function check(address, timer) {
  const found = await fetchInterrupt(address).catch(() => null);
  if (!found?.matches(".is-closed")) return;
  clearInterval(timer);
  openAnswer(address, single);
}

if (single) {
  const address = single.querySelector("[data-wait]").dataset.wait;
  const timer = setInterval(() => check(address, timer), CHECK_MS);
}
if (holder) {
  for (const wait of [...holder.querySelectorAll("[data-wait]")]) {
    const place = document.createElement("div");
    place.dataset.place = wait.dataset.wait;
    wait.replaceWith(place);
    place.append(wait);
  }
  document.addEventListener("run:update", follow);
}
