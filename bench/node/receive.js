// One user agent with npm's ws.
//
// Connects to the URL that is the only argument. Sends each line of stdin as a message, and writes each message that it
// receives to stdout as a line. Ends with the connection, or with stdin; exits with 1 when the connection failed.

"use strict";

const readline = require("node:readline");
const WebSocket = require("ws");

const socket = new WebSocket(process.argv[2], ["push-notification"]);

socket.on("open", () => {
  // Not earlier: a line that comes before its listener is lost.
  const lines = readline.createInterface({ input: process.stdin });
  lines.on("line", (line) => socket.send(line));
  lines.on("close", () => socket.close(1000));
});
socket.on("message", (data) => process.stdout.write(`${data}\n`));
socket.on("close", () => process.stdin.destroy());
socket.on("error", (error) => {
  console.error(error);
  process.exitCode = 1;
});
