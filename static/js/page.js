// On every page: copying, the dialog that asks, and short messages. Everything is delegated.
import { toast } from "./lib/toast.js";
import { closeAsk, openAsk, waitInAsk } from "./lib/ask.js";

const isPoll = (event) => event.target.matches("[data-poll]");

const copyText = async (button) => {
  const source = document.getElementById(button.dataset.copy);
  const text = source.textContent;
  try {
    await navigator.clipboard.writeText(text);
  } catch { // the clipboard is closed to pages that came over plain http
    getSelection().selectAllChildren(source);
    if (!document.execCommand("copy")) return toast("Select the text and copy it by hand.", "warn");
  }
  const label = button.querySelector("[data-label]");
  if (!label) return toast("Copied.");
  label.textContent = "Copied";
  setTimeout(() => { label.textContent = "Copy"; }, 1500);
};

document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-copy], [data-close-ask], a[data-ask]");
  if (!button || event.ctrlKey || event.metaKey || event.shiftKey) return;
  if (button.dataset.copy) copyText(button);
  if ("closeAsk" in button.dataset) {
    if (!document.getElementById("ask").open) return; // the same form as a page of its own: a plain link back
    event.preventDefault();
    closeAsk();
  }
  if ("ask" in button.dataset) {
    event.preventDefault();
    openAsk(button.href);
  }
});

// One submit per form: a second click while the answer is on its way does nothing.
document.addEventListener("submit", (event) => {
  const form = event.target;
  if (form.dataset.sent === "true") return event.preventDefault();
  if (form.dataset.confirm && !confirm(form.dataset.confirm)) return event.preventDefault();
  if ("askForm" in form.dataset) waitInAsk();
  if (form.method !== "post" || form.hasAttribute("hx-post")) return;
  form.dataset.sent = "true";
  for (const button of form.querySelectorAll("button[type=submit]")) button.setAttribute("aria-disabled", "true");
});
window.addEventListener("pageshow", () => { // back from the next page: the form may be sent again
  for (const form of document.querySelectorAll("form[data-sent]")) {
    delete form.dataset.sent;
    for (const button of form.querySelectorAll("[aria-disabled]")) button.removeAttribute("aria-disabled");
  }
});

document.body.addEventListener("toast", (event) => {
  if (!isPoll(event)) toast(event.detail.text, event.detail.kind); // such a region says it itself
});
document.body.addEventListener("close-ask", closeAsk);
for (const kind of ["htmx:sendError", "htmx:timeout"]) {
  document.body.addEventListener(kind, (event) => {
    if (isPoll(event)) return; // the region says it itself
    toast("The console did not answer. Nothing is known of the outcome: look again.", "bad");
  });
}
document.body.addEventListener("htmx:responseError", (event) => {
  if (!isPoll(event) && !event.detail.xhr.getResponseHeader("HX-Trigger")) toast(`The console answered ${event.detail.xhr.status}.`, "bad");
});

// Regions that ask for themselves anew: they rest while the tab is hidden, and say when the console is silent.
document.body.addEventListener("htmx:beforeRequest", (event) => {
  if (document.hidden && isPoll(event)) event.preventDefault();
});
document.body.addEventListener("htmx:beforeSwap", (event) => {
  if (isPoll(event) && event.detail.xhr.status >= 400) event.detail.shouldSwap = false;
});
document.body.addEventListener("htmx:afterRequest", (event) => {
  if (!isPoll(event)) return;
  // htmx calls a refusal successful where the page's settings let it be shown, as forms need it.
  const successful = event.detail.successful && event.detail.xhr.status < 400;
  event.target.classList.toggle("is-stale", !successful);
  const note = document.querySelector(`[data-stale-note="${event.target.id}"]`);
  if (note) note.hidden = successful;
});

// A filtered list's address holds what was chosen and nothing else.
document.body.addEventListener("htmx:configRequest", (event) => {
  if (!event.target.matches("form[role=search]")) return;
  for (const [name, value] of [...event.detail.formData]) if (!value) event.detail.formData.delete(name);
});
