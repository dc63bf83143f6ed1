// Dragging a card to another column asks for the move; the card itself goes only when the server says so.
import Sortable from "../../vendor/sortable/sortable.esm.js";
import { openAsk } from "./ask.js";

const mayGo = (card, role) => card.dataset.canMoveTo.split(" ").includes(role);

const markTargets = (card) => {
  for (const track of document.querySelectorAll(".track")) {
    if (track.dataset.role === card.dataset.role) continue;
    track.classList.add(mayGo(card, track.dataset.role) ? "is-target" : "is-refused");
  }
};
const clearTargets = () => {
  for (const track of document.querySelectorAll(".track")) track.classList.remove("is-target", "is-refused");
};

export const allowDragging = () => {
  for (const cards of document.querySelectorAll("[data-cards]")) {
    let before = null;
    Sortable.create(cards, {
      group: "yard", sort: false, draggable: ".server", handle: ".server-grip", animation: 120,
      filter: ".server[data-movable='false']", preventOnFilter: false,
      onStart: ({ item }) => { before = item.nextElementSibling; markTargets(item); },
      onMove: ({ dragged, to }) => to === cards || mayGo(dragged, to.dataset.cards),
      onEnd: ({ item, from, to }) => {
        clearTargets();
        if (to === from) return;
        from.insertBefore(item, before);
        openAsk(`/servers/${item.dataset.server}/move/?role=${to.dataset.cards}`);
      },
    });
  }
};
