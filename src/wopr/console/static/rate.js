// Feedback by keyboard: select a row, then 1 to 5 stars, f to flag, c to correct.
import { openPart } from "./dialog.js";
import { toast } from "./toast.js";

const STARS = ["1", "2", "3", "4", "5"];

function mark(row, text) {
  const place = row.querySelector(".summary") ?? row.querySelector("a.id")?.parentElement;
  const shown = document.createElement("span");
  shown.className = "mark note";
  shown.textContent = text;
  if (row.matches("li")) place?.prepend(shown, " ");
  else place?.append(" ", shown);
}

async function send(address, row, fields, text) {
  const body = new URLSearchParams(fields);
  body.set("csrf", document.querySelector("input[name=csrf]").value);
  if (row.dataset.event) body.set("eventId", row.dataset.event);
  // An accepted form redirects to another page, which is not needed here.
  const response = await fetch(address, { method: "POST", body, redirect: "manual" }).catch(() => null);
  if (response?.type !== "opaqueredirect") {
    toast("The feedback was not stored. Reload the page and try again.");
    return;
  }
  mark(row, text);
  toast(`${text} stored`);
}

/** Send feedback on the current row, if the key is a shortcut for feedback. */
export function rate(row, key) {
  const address = row?.closest("[data-feedback]")?.dataset.feedback;
  if (!address) return false;
  if (STARS.includes(key)) send(address, row, { rating: key }, "★".repeat(Number(key)));
  else if (key === "f") send(address, row, { kind: "flag" }, "⚑ flag");
  else if (key === "c") correct(address, row);
  else return false;
  return true;
}

async function correct(address, row) {
  const about = row.dataset.event ? `?eventId=${encodeURIComponent(row.dataset.event)}` : "";
  await openPart(address + about);
  document.querySelector("dialog[open] input[name=text]")?.focus();
}
