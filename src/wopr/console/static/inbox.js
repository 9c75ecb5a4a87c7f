// The inbox: the current row opens next to the list, and several rows can be selected.
import { openAnswer } from "./answers.js";

const OPEN_DELAY_MS = 120;
const pane = document.querySelector("[data-pane]");
const list = document.getElementById("list");
const batch = document.querySelector("[data-batch]");
let timer = 0;

const link = (row) => row?.querySelector("a[data-open]");
const current = () => list.querySelector("tr.is-current");

function open(row) {
  clearTimeout(timer);
  timer = setTimeout(() => openAnswer(link(row).href, pane), OPEN_DELAY_MS);
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

/** Show the number of selected rows. */
function showCount() {
  const picked = list.querySelectorAll("input:checked").length;
  batch.querySelector("[data-picked]").textContent = picked ? `${picked} selected` : "None selected";
  batch.classList.toggle("is-idle", !picked);
  for (const button of batch.querySelectorAll("button, input")) button.disabled = !picked;
}

if (list && batch) {
  list.addEventListener("change", showCount);
  list.addEventListener("list:fresh", showCount);
  showCount();
}

// The open item was answered, or the first item arrived.
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
