// Short messages that disappear.
const SHOWN_MS = 1800;

/** Show a text for a moment. */
export function toast(text) {
  const shown = document.createElement("p");
  shown.className = "toast";
  shown.role = "status";
  shown.textContent = text;
  document.body.append(shown);
  setTimeout(() => shown.remove(), SHOWN_MS);
}
