// Short messages in the corner; errors stay longer. Inside an open dialog, so that it does not hide them.
export const toast = (text, kind = "good") => {
  const line = document.createElement("div");
  line.className = "toast-line";
  line.dataset.kind = kind;
  line.textContent = text;
  const home = document.getElementById("toasts");
  (document.querySelector("dialog[open]") ?? document.body).append(home);
  home.append(line);
  setTimeout(() => line.remove(), kind === "good" ? 4000 : 10000);
};
