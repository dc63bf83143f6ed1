// The socket of one deployment: a snapshot, then numbered frames. Whatever breaks the numbering brings a new snapshot.
//
// Events: "snapshot" and "frame" with the message as detail; "link" with "connecting", "live", "lost", or with what
// ended it for good: "login" (log in again) and "gone" (no such deployment).
const FIRST_WAIT_MS = 300;
const LONGEST_WAIT_MS = 10000;
const SILENT_AFTER_MS = 7000; // the console says something every two seconds while it is well
const NO_ANSWER_AFTER_MS = 20000; // before the first snapshot: a busy console may take its time
const ENDED = { 4401: "login", 4404: "gone" };

export class Stream extends EventTarget {
  #url;
  #socket = null;
  #attempt = 0;
  #numbering = null;
  #seq = 0;
  #timer = 0;
  #watch = 0;
  #ended = false;

  constructor(path) {
    super();
    this.#url = `${location.protocol === "https:" ? "wss" : "ws"}://${location.host}${path}`;
    window.addEventListener("online", () => this.retry());
    document.addEventListener("visibilitychange", () => { if (!document.hidden) this.retry(); });
  }

  open() {
    clearTimeout(this.#timer);
    this.#drop();
    this.#say(this.#attempt ? "lost" : "connecting");
    const socket = (this.#socket = new WebSocket(this.#url));
    socket.addEventListener("message", ({ data }) => { if (socket === this.#socket) this.#receive(JSON.parse(data)); });
    socket.addEventListener("close", ({ code }) => { if (socket === this.#socket) this.#closed(code); });
    this.#expect(NO_ANSWER_AFTER_MS);
  }

  // Try at once instead of waiting for the next turn; does nothing while the link is up.
  retry() {
    if (this.#ended) return;
    if (this.#socket?.readyState === WebSocket.OPEN || this.#socket?.readyState === WebSocket.CONNECTING) return;
    this.open();
  }

  #receive(message) {
    this.#expect();
    if (message.type === "snapshot") {
      [this.#numbering, this.#seq, this.#attempt] = [message.stream, message.seq, 0];
      this.#say("live");
      return this.#tell("snapshot", message);
    }
    if (message.type !== "events" || this.#numbering === null) return;
    if (message.stream !== this.#numbering || message.seq !== this.#seq + 1 || message.dropped > 0) return this.#again();
    this.#seq = message.seq;
    this.#tell("frame", message);
  }

  // The numbering broke while the link is fine. Frames that come before the new snapshot are part of it.
  #again() {
    this.#numbering = null;
    this.#socket?.send(JSON.stringify({ type: "snapshot" }));
  }

  #closed(code) {
    if (!(code in ENDED)) return this.#lost();
    clearTimeout(this.#watch);
    this.#socket = null;
    this.#ended = true;
    this.#say(ENDED[code]);
  }

  #lost() {
    clearTimeout(this.#watch);
    this.#numbering = null;
    this.#socket = null;
    this.#say("lost");
    const wait = Math.min(FIRST_WAIT_MS * 2 ** this.#attempt, LONGEST_WAIT_MS);
    this.#attempt += 1;
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.open(), wait * (0.75 + Math.random() / 2));
  }

  // A link that says nothing at all is dead even if the socket has not noticed yet.
  #expect(limitMs = SILENT_AFTER_MS) {
    clearTimeout(this.#watch);
    this.#watch = setTimeout(() => { this.#drop(); this.#lost(); }, limitMs);
  }

  #drop() {
    const socket = this.#socket;
    this.#socket = null;
    socket?.close();
  }

  #say(link) { this.#tell("link", link); }
  #tell(name, detail) { this.dispatchEvent(new CustomEvent(name, { detail })); }
}
