// Opens a page of the console in a dialog, without its frame.
let dialog;

function getDialog() {
  if (dialog) return dialog;
  dialog = document.createElement("dialog");
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog) dialog.close();
  });
  document.body.append(dialog);
  return dialog;
}

/** Show a page in a dialog; on any error, open the page itself. */
export async function openPart(address) {
  let html;
  try {
    const response = await fetch(address, { headers: { "x-part": "1", accept: "text/html" }, redirect: "error" });
    if (!response.ok) throw new Error(String(response.status));
    html = await response.text();
  } catch {
    location.assign(address);
    return;
  }
  const shown = getDialog();
  shown.innerHTML = html;
  const dismiss = document.createElement("button");
  dismiss.className = "dismiss";
  dismiss.type = "button";
  dismiss.textContent = "Esc";
  dismiss.setAttribute("aria-label", "Close");
  dismiss.addEventListener("click", () => shown.close());
  shown.append(dismiss);
  shown.setAttribute("aria-label", shown.querySelector(".part-title")?.textContent ?? "");
  if (!shown.open) shown.showModal();
  shown.scrollTop = 0;
  shown.querySelector("[autofocus]")?.focus();
}
