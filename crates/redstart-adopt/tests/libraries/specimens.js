// A healthy instance of each library of npm, made by the library itself.
//
//   node specimens.js PORT
//
// Locks are held for ten minutes, so that recognition finds them.
"use strict";

const IORedis = require("ioredis");
const port = Number(process.argv[2]);
const connection = { host: "127.0.0.1", port };

async function bullmq(module, name) {
  const { Queue, Worker } = require(module);
  const queue = new Queue(name, { connection });
  await queue.add("welcome", { to: "a@example.org" });
  await queue.add("later", { to: "b@example.org" }, { delay: 3600000 });
  await queue.add("urgent", { to: "c@example.org" }, { priority: 3 });
  let done = 0;
  const worker = new Worker(name, async () => "sent", { connection: { ...connection, maxRetriesPerRequest: null } });
  const finished = new Promise((resolve) => worker.on("completed", () => ++done === 2 && resolve()));
  await finished;
  await worker.close();
  await queue.add("waits", { to: "d@example.org" });
  await queue.close();
}

async function bull(name) {
  const Queue = require("bull");
  const queue = new Queue(name, { redis: connection });
  await queue.add("welcome", { to: "a@example.org" });
  await queue.add("later", { to: "b@example.org" }, { delay: 3600000 });
  queue.process("welcome", async () => "sent");
  await new Promise((resolve) => queue.on("completed", resolve));
  await queue.close();
  const again = new Queue(name, { redis: connection });
  await again.add("waits", { to: "d@example.org" });
  await again.close();
}

async function redlock(client) {
  const Redlock = require("redlock");
  const lock = new Redlock([client]);
  await lock.lock("stock:lock:77", 600000);
}

async function flexible(client) {
  const { RateLimiterRedis } = require("rate-limiter-flexible");
  const limiter = new RateLimiterRedis({ storeClient: client, keyPrefix: "login", points: 5, duration: 600 });
  await limiter.consume("203.0.113.7");
  await limiter.consume("203.0.113.7");
  await limiter.consume("203.0.113.8", 2);
  const unnamed = new RateLimiterRedis({ storeClient: client, points: 5, duration: 600 });
  await unnamed.consume("203.0.113.7");
  await unnamed.consume("203.0.113.8");
}

async function express(client) {
  const { RedisStore } = require("rate-limit-redis");
  const store = new RedisStore({ sendCommand: (...args) => client.call(...args), prefix: "rl:" });
  await store.init?.({ windowMs: 600000 });
  await store.increment("198.51.100.4");
  await store.increment("198.51.100.5");
}

async function sessions() {
  const { createClient } = require("redis");
  const { RedisStore } = require("connect-redis");
  const client = createClient({ url: `redis://127.0.0.1:${port}` });
  await client.connect();
  const store = new RedisStore({ client });
  const cookie = {
    originalMaxAge: 3600000,
    expires: new Date(Date.now() + 3600000).toISOString(),
    httpOnly: true,
    path: "/",
  };
  for (const id of ["u8Zk3PqWmVtR0yXbN5cE2aLhJ7sDgF1o", "Qw9ErTyUiOpAsDfGhJkLzXcVbNm01234"]) {
    await new Promise((resolve, reject) =>
      store.set(id, { cookie, user: 7 }, (error) => (error ? reject(error) : resolve())));
  }
  await client.quit();
}

async function main() {
  const client = new IORedis(connection);
  await bullmq("bullmq5", "mail-five");
  await bullmq("bullmq6", "mail-six");
  await bull("mail-four");
  await redlock(client);
  await flexible(client);
  await express(client);
  await sessions();
  await client.quit();
}

main().then(() => process.exit(0), (error) => {
  console.error(error);
  process.exit(1);
});
