// BullMQ as the other side of a test.
//
//   node bullmq.js MODULE PORT QUEUE add N       adds N plain jobs, prints their ids
//   node bullmq.js MODULE PORT QUEUE kinds       adds one job of each kind
//   node bullmq.js MODULE PORT QUEUE work [ms [options]]   runs jobs until its stdin closes; prints "done <id>"; options of the worker as JSON;
//                                                jobs named "fails" fail
//   node bullmq.js MODULE PORT QUEUE listen      prints what QueueEvents hears
//   node bullmq.js MODULE PORT QUEUE pause | resume
//   node bullmq.js MODULE PORT QUEUE run CODE    runs CODE, which has `queue` and `flow`, a FlowProducer
"use strict";

const [module_, port, name, what, argument, options] = process.argv.slice(2);
const { Queue, Worker, QueueEvents, FlowProducer } = require(module_);
const connection = { host: "127.0.0.1", port: Number(port), maxRetriesPerRequest: null };
const closed = () => new Promise((resolve) => process.stdin.resume().on("end", resolve));

const actions = {
  async add() {
    const queue = new Queue(name, { connection });
    for (let n = 0; n < Number(argument); n++) console.log((await queue.add("plain", { n })).id);
    await queue.close();
  },

  async kinds() {
    const queue = new Queue(name, { connection });
    await queue.add("plain", { n: 1, text: "ä" });
    await queue.add("delayed", [1, 2], { delay: 3600000 });
    await queue.add("prioritised", null, { priority: 7 });
    await queue.add("own id", {}, { jobId: "order-17" });
    await queue.add("last in", {}, { lifo: true });
    await queue.add("retried", {}, { attempts: 5, backoff: { type: "exponential", delay: 250 } });
    await queue.add("kept", {}, { removeOnComplete: 10, removeOnFail: 20 });
    await queue.add("once", {}, { deduplication: { id: "only" } });
    await queue.add("once", {}, { deduplication: { id: "only" } });
    await queue.add("a while", {}, { deduplication: { id: "while", ttl: 600000 } });
    await queue.add("few lines", {}, { keepLogs: 5 });
    await queue.add("some luck", {}, { attempts: 2, backoff: { type: "fixed", delay: 250, jitter: 0.5 } });
    await queue.add("a day", {}, { removeOnComplete: { age: 86400 }, removeOnFail: { age: 3600, count: 20 } });
    await queue.add("the last", {}, { deduplication: { id: "last", keepLastIfActive: true } });
    await queue.add("replaced", {}, { deduplication: { id: "newest", ttl: 600000, extend: true, replace: true }, delay: 3600000 });
    const flow = new FlowProducer({ connection });
    await flow.add({ name: "parent", queueName: name, data: { p: 1 }, children: [
      { name: "child", queueName: name, data: { c: 1 }, opts: { failParentOnFailure: true } },
      { name: "child that continues", queueName: name, data: {}, opts: { continueParentOnFailure: true } },
      { name: "child that is ignored", queueName: name, data: {}, opts: { ignoreDependencyOnFailure: true } },
      { name: "child that is forgotten", queueName: name, data: {}, opts: { removeDependencyOnFailure: true } },
    ] });
    await flow.close();
    await queue.close();
  },

  async work() {
    const pause = Number(argument || 0);
    const worker = new Worker(name, async (job) => {
      if (pause) await new Promise((resolve) => setTimeout(resolve, pause));
      if (job.name === "fails") throw new Error("no luck");
      return { by: "node", n: job.data && job.data.n };
    }, { connection, concurrency: 4, lockDuration: 1500, stalledInterval: 700, maxStalledCount: 1000, ...JSON.parse(options || "{}") });
    worker.on("completed", (job) => console.log("done " + job.id));
    worker.on("error", () => {});
    await worker.waitUntilReady();
    console.log("ready");
    await closed();
    await worker.close();
  },

  async listen() {
    const events = new QueueEvents(name, { connection });
    await events.waitUntilReady();
    for (const kind of ["added", "waiting", "active", "progress", "completed", "failed", "delayed", "stalled", "paused", "resumed", "drained"]) {
      events.on(kind, (about) => console.log(JSON.stringify({ kind, ...about })));
    }
    console.log("ready");
    await closed();
    await events.close();
  },

  async run() {
    const queue = new Queue(name, { connection });
    const flow = new FlowProducer({ connection });
    const Code = Object.getPrototypeOf(async () => {}).constructor;
    await new Code("queue", "flow", argument)(queue, flow);
    await flow.close();
    await queue.close();
  },

  async pause() {
    const queue = new Queue(name, { connection });
    await queue.pause();
    await queue.close();
  },

  async resume() {
    const queue = new Queue(name, { connection });
    await queue.resume();
    await queue.close();
  },
};

actions[what]().then(() => process.exit(0), (error) => {
  console.error(error);
  process.exit(1);
});
