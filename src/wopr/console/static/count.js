// Keeps the number of things that wait true, in the title and in the top bar.
const EVERY_MS = 5000;

function show(waiting) {
  const bare = document.title.replace(/^\(\d+\) /, "");
  document.title = waiting ? `(${waiting}) ${bare}` : bare;
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

async function look() {
  const answer = await fetch("/inbox/count", { redirect: "error", cache: "no-store" });
  if (answer.ok) show((await answer.json()).waiting);
}

/** Look for news of what waits for as long as the page is open. */
export function countWaits() {
  if (document.querySelector('.bar a[href="/inbox"]')) setInterval(() => look().catch(() => {}), EVERY_MS);
}
