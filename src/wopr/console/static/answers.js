// Forms that answer what waits, kept true: a wait that ends says so, a new one gets its form.
const holder = document.querySelector("[data-answers]");

async function part(address) {
  const headers = { "x-part": "1", accept: "text/html" };
  const answer = await fetch(address, { headers, redirect: "error", cache: "no-store" });
  if (!answer.ok) throw new Error(String(answer.status));
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  return page.querySelector("article.wait");
}

/** Whether somebody is writing there: what they wrote is not taken from them. */
function isBusy(place) {
  return [...place.querySelectorAll("textarea, input:not([type=hidden])")].some((field) => field.value !== field.defaultValue);
}

/** Show a wait in a place. What somebody is writing stays, below the news of it. */
export async function openAnswer(address, place) {
  let found;
  try {
    found = await part(address);
  } catch {
    return;
  }
  if (!found) return;
  const isNews = place.querySelector("[data-wait]")?.dataset.wait === address && isBusy(place);
  if (isNews) place.prepend(found);
  else place.replaceChildren(found);
  if (!isNews) place.scrollTop = 0;
}

/** Have a form for everything that the run waits for now. */
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

if (holder) {
  for (const wait of [...holder.querySelectorAll("[data-wait]")]) {
    const place = document.createElement("div");
    place.dataset.place = wait.dataset.wait;
    wait.replaceWith(place);
    place.append(wait);
  }
  document.addEventListener("run:news", follow);
}
