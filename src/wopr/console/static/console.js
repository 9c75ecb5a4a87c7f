// Scripts of every page: keyboard shortcuts, lists, dialogs, copying and relative times.
import { countWaits } from "./count.js";
import { openPart } from "./dialog.js";
import { rate } from "./rate.js";
import { refreshLists } from "./refresh.js";
import { toast } from "./toast.js";

const PREFIX_MS = 1200;
const EDITABLE = "input, textarea, select, [contenteditable]";
let prefix = "";
let prefixAt = 0;

/** The open dialog, or the whole page. */
const activeRoot = () => document.querySelector("dialog[open]") ?? document;

function press(key) {
  for (const element of activeRoot().querySelectorAll("[data-key]")) {
    if (element.dataset.key === key && element.checkVisibility()) {
      // An action that cannot be undone needs its key twice, or Enter.
      if (element.matches("[data-arm]") && document.activeElement !== element) element.focus();
      else element.click();
      return true;
    }
  }
  return false;
}

function rows() {
  return [...activeRoot().querySelectorAll("[data-list] tbody tr, ol[data-list] > li")];
}

function move(step) {
  const all = rows();
  if (!all.length) return false;
  const at = all.findIndex((row) => row.classList.contains("is-current"));
  const next = all[Math.min(Math.max(at + step, 0), all.length - 1)];
  all[at]?.classList.remove("is-current");
  next.classList.add("is-current");
  next.querySelector("a")?.focus({ preventScroll: true });
  next.scrollIntoView({ block: "nearest" });
  next.dispatchEvent(new CustomEvent("row:current", { bubbles: true }));
  return true;
}

const currentRow = () => rows().find((row) => row.classList.contains("is-current"));

/** Select or deselect the current row. */
function choose() {
  const box = activeRoot().querySelector(".is-current input[type=checkbox]");
  box?.click();
  return Boolean(box);
}

function search() {
  const field = activeRoot().querySelector("[data-search]");
  field?.focus();
  field?.select();
  return Boolean(field);
}

function handle(key) {
  if (key === "j") return move(1);
  if (key === "k") return move(-1);
  if (key === "/") return search();
  if (key === "x" && choose()) return true;
  if (Date.now() - prefixAt < PREFIX_MS && prefix) {
    const whole = `${prefix} ${key}`;
    prefix = "";
    return press(whole);
  }
  if (key === "g") {
    prefix = key;
    prefixAt = Date.now();
    return true;
  }
  return rate(currentRow(), key) || press(key);
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
  if (event.key === "Escape" && event.target.matches(`${EDITABLE}, .term`)) event.target.blur();
  if (event.target.matches(EDITABLE)) return;
  if (event.key.length === 1 && handle(event.key)) event.preventDefault();
});

document.addEventListener("click", (event) => {
  if (event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
  const link = event.target.closest("a[data-dialog], a[data-copy], a[data-close]");
  if (!link) return;
  if (link.matches("[data-close]")) {
    const dialog = link.closest("dialog");
    if (!dialog) return;
    event.preventDefault();
    dialog.close();
  } else {
    event.preventDefault();
    if (link.matches("[data-copy]")) copy(link);
    else openPart(link.href);
  }
});

// Focus the first field of an opened editor.
document.addEventListener("toggle", (event) => {
  if (event.target.matches("details.edit[open]")) event.target.querySelector("textarea, input, select")?.focus();
}, true);

document.addEventListener("submit", (event) => {
  const form = event.target;
  if (form.matches("form[data-dialog]") && form.closest("dialog")) {
    event.preventDefault();
    openPart(`${form.action}?${new URLSearchParams(new FormData(form))}`);
  }
});

async function copy(link) {
  try {
    const response = await fetch(link.href);
    if (!response.ok) throw new Error(String(response.status));
    await navigator.clipboard.writeText(await response.text());
    toast("Copied");
  } catch {
    location.assign(link.href);
  }
}

const UNITS = [[86400, "d"], [3600, "h"], [60, "m"], [1, "s"]];

function ago(instant) {
  const passed = Math.max(Math.floor((Date.now() - instant) / 1000), 0);
  const unit = UNITS.find(([seconds]) => passed >= seconds);
  return unit ? `${Math.floor(passed / unit[0])} ${unit[1]} ago` : "now";
}

function ahead(instant) {
  const left = Math.floor((instant - Date.now()) / 1000);
  const unit = UNITS.find(([seconds]) => left >= seconds);
  return unit ? `in ${Math.floor(left / unit[0])} ${unit[1]}` : "expired";
}

function updateTimes() {
  for (const time of document.querySelectorAll("time[data-until]")) {
    const text = ahead(Date.parse(time.dateTime));
    if (time.textContent !== text) time.textContent = text;
  }
  for (const time of document.querySelectorAll("time[data-ago]")) {
    const text = ago(Date.parse(time.dateTime));
    if (time.textContent !== text) time.textContent = text;
  }
}

setInterval(updateTimes, 5000);
refreshLists();
countWaits();
