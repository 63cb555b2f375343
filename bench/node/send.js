// Sends one message with npm's web-push and prints what was answered.
//
// Reads {subscription, vapid: {subject, publicKey, privateKey} | null, text: string | null, options} from stdin, writes
// {status, headers, body} to stdout, whatever the status. Exits with 1 when no answer came.

"use strict";

const fs = require("node:fs");
const webpush = require("web-push");

async function send({ subscription, vapid, text, options }) {
  if (vapid !== null) {
    webpush.setVapidDetails(vapid.subject, vapid.publicKey, vapid.privateKey);
  }
  try {
    const answer = await webpush.sendNotification(subscription, text, options);
    return { status: answer.statusCode, headers: answer.headers, body: answer.body };
  } catch (error) {
    if (!(error instanceof webpush.WebPushError)) {
      throw error;
    }
    return { status: error.statusCode, headers: error.headers, body: error.body };
  }
}

send(JSON.parse(fs.readFileSync(0, "utf8"))).then(
  (answer) => process.stdout.write(JSON.stringify(answer)),
  (error) => {
    console.error(error);
    process.exitCode = 1;
  },
);
