// The inbox: the line that is walked to is opened beside the list, and lines are chosen together.
import { openAnswer } from "./answers.js";

const PATIENCE_MS = 120;
const pane = document.querySelector("[data-pane]");
const list = document.getElementById("list");
const batch = document.querySelector("[data-batch]");
let waiting = 0;

const link = (row) => row?.querySelector("a[data-open]");
const current = () => list.querySelector("tr.is-current");

function open(row) {
  clearTimeout(waiting);
  waiting = setTimeout(() => openAnswer(link(row).href, pane), PATIENCE_MS);
}

function mark(row) {
  for (const other of list.querySelectorAll("tr.is-current")) other.classList.remove("is-current");
  row.classList.add("is-current");
}

list?.addEventListener("row:current", (event) => {
  if (pane.checkVisibility()) open(event.target);
});

list?.addEventListener("click", (event) => {
  const opened = event.target.closest("a[data-open]");
  if (!opened || event.ctrlKey || event.metaKey || event.shiftKey || !pane.checkVisibility()) return;
  event.preventDefault();
  mark(opened.closest("tr"));
  open(current());
});

/** Say how many lines are chosen; the buttons are for them. */
function count() {
  const picked = list.querySelectorAll("input:checked").length;
  batch.querySelector("[data-picked]").textContent = picked ? `${picked} chosen` : "None chosen";
  batch.classList.toggle("is-idle", !picked);
  for (const button of batch.querySelectorAll("button, input")) button.disabled = !picked;
}

if (list && batch) {
  list.addEventListener("change", count);
  list.addEventListener("list:fresh", count);
  count();
}

// The wait that is open has ended meanwhile, or the first one has come.
list?.addEventListener("list:fresh", () => {
  const shown = pane.querySelector("[data-wait]")?.dataset.wait;
  const known = [...list.querySelectorAll("a[data-open]")].map((each) => each.getAttribute("href"));
  if (shown && !known.includes(shown)) openAnswer(shown, pane);
  const first = list.querySelector("tbody tr");
  if (shown === undefined && first) {
    mark(first);
    open(first);
  }
});
