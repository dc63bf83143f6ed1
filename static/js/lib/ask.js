// The one dialog of a page. Its content is a region that the server renders; without script the same link is a page.
const dialog = () => document.getElementById("ask");

const say = (text) => {
  const line = document.createElement("p");
  line.className = "ask-loading";
  line.textContent = text;
  document.getElementById("ask-body").replaceChildren(line);
};

export const openAsk = async (url) => {
  say("Loading …");
  if (!dialog().open) dialog().showModal();
  try {
    await htmx.ajax("GET", url, { target: "#ask-body", swap: "innerHTML" });
  } catch {
    say("The console did not answer. Close this and try again.");
  }
};

// The answer of a form comes into the dialog; until then it says that it is on its way.
export const waitInAsk = () => {
  say("One moment …");
  if (!dialog().open) dialog().showModal();
};

export const closeAsk = () => {
  const home = document.getElementById("toasts");
  document.body.append(home);
  dialog().close();
};
