// The socket is the one fake: it lets the test speak for the server.
import assert from "node:assert/strict";
import test from "node:test";

const sockets = [];

class FakeSocket extends EventTarget {
  static CONNECTING = 0;
  static OPEN = 1;

  constructor(url) {
    super();
    Object.assign(this, { url, readyState: FakeSocket.OPEN, sent: [] });
    sockets.push(this);
  }

  send(text) { this.sent.push(JSON.parse(text)); }
  close() { this.readyState = 3; }
  says(message) { this.dispatchEvent(Object.assign(new Event("message"), { data: JSON.stringify(message) })); }
  ends(code) {
    this.readyState = 3;
    this.dispatchEvent(Object.assign(new Event("close"), { code }));
  }
}

Object.assign(globalThis, {
  WebSocket: FakeSocket, window: new EventTarget(), document: new EventTarget(),
  location: { protocol: "http:", host: "localhost" },
});
const { Stream } = await import("../../../static/js/lib/stream.js");

const snapshot = (seq, stream = "a") => ({ type: "snapshot", stream, seq });
const frame = (seq, more = {}) => ({ type: "events", stream: "a", seq, dropped: 0, events: [], ...more });

const opened = (t) => {
  t.mock.timers.enable({ apis: ["setTimeout"] });
  sockets.length = 0;
  const stream = new Stream("/ws/deployments/chat/");
  const heard = [];
  stream.addEventListener("link", ({ detail }) => heard.push(detail));
  stream.addEventListener("snapshot", ({ detail }) => heard.push(`snapshot ${detail.seq}`));
  stream.addEventListener("frame", ({ detail }) => heard.push(`frame ${detail.seq}`));
  stream.open();
  return { stream, heard, socket: sockets[0] };
};

test("it is live once the snapshot is there, and frames follow it", (t) => {
  const { heard, socket } = opened(t);
  socket.says(snapshot(7));
  socket.says(frame(8));
  socket.says(frame(9));
  assert.equal(socket.url, "ws://localhost/ws/deployments/chat/");
  assert.deepEqual(heard, ["connecting", "live", "snapshot 7", "frame 8", "frame 9"]);
});

for (const [what, broken] of [
  ["a gap in the numbers", frame(10)],
  ["another numbering", frame(8, { stream: "b" })],
  ["events left out for a slow page", frame(8, { dropped: 3 })],
]) {
  test(`${what} brings a new snapshot, and nothing is drawn until it is there`, (t) => {
    const { heard, socket } = opened(t);
    socket.says(snapshot(7));
    socket.says(broken);
    socket.says(frame(11));
    assert.deepEqual(socket.sent, [{ type: "snapshot" }]);
    socket.says(snapshot(12));
    socket.says(frame(13));
    assert.deepEqual(heard, ["connecting", "live", "snapshot 7", "live", "snapshot 12", "frame 13"]);
  });
}

test("a lost link is said at once and tried again, later each time", (t) => {
  const { heard, socket } = opened(t);
  socket.says(snapshot(1));
  socket.ends(1006);
  assert.equal(heard.at(-1), "lost");
  t.mock.timers.tick(400);
  assert.equal(sockets.length, 2);
  sockets[1].ends(1006);
  t.mock.timers.tick(400);
  assert.equal(sockets.length, 2);
  t.mock.timers.tick(400);
  assert.equal(sockets.length, 3);
  sockets[2].says(snapshot(1, "b"));
  assert.equal(heard.at(-1), "snapshot 1");
});

test("a link that falls silent is lost even while the socket stays open", (t) => {
  const { heard, socket } = opened(t);
  socket.says(snapshot(1));
  t.mock.timers.tick(6000);
  assert.equal(heard.includes("lost"), false);
  t.mock.timers.tick(1500);
  assert.equal(heard.includes("lost"), true);
});

test("a console that takes long to answer is waited for, not asked again and again", (t) => {
  const { heard, socket } = opened(t);
  t.mock.timers.tick(15000);
  socket.says(snapshot(1));
  assert.deepEqual(heard, ["connecting", "live", "snapshot 1"]);
  assert.equal(sockets.length, 1);
});

test("a socket that was given up is not listened to any more", (t) => {
  const { heard, socket } = opened(t);
  socket.says(snapshot(1));
  socket.ends(1006);
  t.mock.timers.tick(400);
  sockets[1].says(snapshot(5));
  socket.says(frame(2));
  assert.equal(heard.at(-1), "snapshot 5");
});

for (const [code, word] of [[4401, "login"], [4404, "gone"]]) {
  test(`code ${code} ends it for good`, (t) => {
    const { heard, stream, socket } = opened(t);
    socket.says(snapshot(1));
    socket.ends(code);
    t.mock.timers.tick(60000);
    stream.retry();
    assert.equal(heard.at(-1), word);
    assert.equal(sockets.length, 1);
  });
}

test("trying now does nothing while the link is up", (t) => {
  const { stream, socket } = opened(t);
  socket.says(snapshot(1));
  stream.retry();
  assert.equal(sockets.length, 1);
});
