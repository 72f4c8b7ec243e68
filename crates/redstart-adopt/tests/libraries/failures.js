// Jobs of BullMQ that failed, that are tried again, and that run.
//
//   node failures.js MODULE PORT QUEUE
//
// Prints "ready" once all of them are there, and keeps them until its stdin closes.
"use strict";

const [module_, port, name] = process.argv.slice(2);
const { Queue, Worker } = require(module_);
const connection = { host: "127.0.0.1", port: Number(port), maxRetriesPerRequest: null };

async function main() {
  const queue = new Queue(name, { connection });
  await queue.add("fails", {});
  await queue.add("again", {}, { attempts: 5, backoff: { type: "fixed", delay: 600000 } });
  await queue.add("hangs", {});
  const worker = new Worker(name, async (job) => {
    if (job.name === "hangs") {
      await queue.add("urgent", {}, { priority: 3 });
      console.log("ready");
      await new Promise(() => {});
    }
    throw new Error("no luck");
  }, { connection });
  worker.on("error", () => {});
  await new Promise((resolve) => process.stdin.resume().on("end", resolve));
}

main().then(() => process.exit(0), (error) => {
  console.error(error);
  process.exit(1);
});
