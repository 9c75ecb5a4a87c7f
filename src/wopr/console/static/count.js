// Updates the number of open inbox items in the title and the top bar.
const EVERY_MS = 5000;

function show(waiting) {
  const title = document.title.replace(/^\(\d+\) /, "");
  document.title = waiting ? `(${waiting}) ${title}` : title;
  const entry = document.querySelector('.bar a[href="/inbox"]');
  let count = entry.querySelector(".count");
  if (!count) {
    count = document.createElement("b");
    count.className = "count";
    entry.append(" ", count);
  }
  count.textContent = waiting ? String(waiting) : "";
  count.hidden = !waiting;
}

async function update() {
  const response = await fetch("/inbox/count", { redirect: "error", cache: "no-store" });
  if (response.ok) show((await response.json()).waiting);
}

/** Update the number while the page is open. */
export function countWaits() {
  if (document.querySelector('.bar a[href="/inbox"]')) setInterval(() => update().catch(() => {}), EVERY_MS);
}
