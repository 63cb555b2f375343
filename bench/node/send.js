// Sends messages with npm's web-push and prints what was answered.
//
// Reads one {subscription, vapid: {subject, publicKey, privateKey} | null, text: string | null, options} from each line
// of stdin, and writes a line with {status, headers, body} for it, whatever the status. Exits with 1 when no answer came.

"use strict";

const readline = require("node:readline");
const webpush = require("web-push");

async function send({ subscription, vapid, text, options }) {
  const details = vapid === null ? {} : { vapidDetails: vapid };
  try {
    const answer = await webpush.sendNotification(subscription, text, { ...details, ...options });
    return { status: answer.statusCode, headers: answer.headers, body: answer.body };
  } catch (error) {
    if (!(error instanceof webpush.WebPushError)) {
      throw error;
    }
    return { status: error.statusCode, headers: error.headers, body: error.body };
  }
}

async function main() {
  for await (const line of readline.createInterface({ input: process.stdin })) {
    process.stdout.write(JSON.stringify(await send(JSON.parse(line))) + "\n");
  }
}

main().catch((error) => {
  console.error(error);
  process.exitCode = 1;
});
