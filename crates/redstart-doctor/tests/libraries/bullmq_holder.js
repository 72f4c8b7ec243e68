// A worker of BullMQ that takes one of three jobs and holds it as long as it lives, with a short lock that it renews.
//
//   node bullmq_holder.js MODULE PORT QUEUE    prints "active" when it has the job
"use strict";

const [module_, port, name] = process.argv.slice(2);
const { Queue, Worker } = require(module_);
const connection = { host: "127.0.0.1", port: Number(port), maxRetriesPerRequest: null };

async function main() {
  const queue = new Queue(name, { connection });
  const worker = new Worker(name, async () => {
    console.log("active");
    await new Promise(() => setInterval(() => {}, 60_000));
  }, { connection, concurrency: 1, lockDuration: 2000 });
  worker.on("error", () => {});
  for (let n = 0; n < 3; n++) await queue.add("job", { n });
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
