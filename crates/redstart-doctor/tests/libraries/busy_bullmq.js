// A busy and healthy queue: jobs are added as fast as they are done, and removed when they are.
//
//   node busy_bullmq.js MODULE PORT QUEUE    runs until its stdin closes; prints "busy" when jobs flow
"use strict";

const [module_, port, name] = process.argv.slice(2);
const { Queue, Worker } = require(module_);
const connection = { host: "127.0.0.1", port: Number(port), maxRetriesPerRequest: null };

async function main() {
  const queue = new Queue(name, { connection });
  let done = 0;
  let ends = false;
  const worker = new Worker(name, async (job) => {
    if (job.data.n % 7 === 0 && job.attemptsMade < 1) throw new Error("once more");
  }, { connection, concurrency: 4, removeOnComplete: { count: 50 } });
  worker.on("completed", () => { if (++done === 100) console.log("busy"); });
  worker.on("error", () => {});
  process.stdin.resume().on("end", () => { ends = true; });
  for (let n = 0; !ends; n += 20) {
    const jobs = [];
    for (let i = 0; i < 20; i++) {
      jobs.push({
        name: "job",
        data: { n: n + i },
        opts: { attempts: 3, backoff: 20, removeOnComplete: i % 2 === 0 ? true : undefined, delay: i % 5 === 0 ? 30 : 0 },
      });
    }
    await queue.addBulk(jobs);
    // Some jobs wait at any time, and not ever more of them.
    while (!ends && (await queue.getWaitingCount()) > 60) await new Promise((resolve) => setTimeout(resolve, 5));
  }
  await worker.close();
  await queue.close();
}

main().then(() => process.exit(0), (error) => {
  console.error(error);
  process.exit(1);
});
