// Locks of npm's redlock, contended.
//
//   node locks.js MODULE PORT KEY TIMES
//
// MODULE is redlock4 or redlock5. Prints "ready", waits for a line, and takes the lock TIMES times. In it, nobody else may be inside, and it adds one to a
// counter in two steps and its name to a list. Prints how often somebody else was inside.
"use strict";

const [module_, port, key, times] = process.argv.slice(2);
const IORedis = require("ioredis");
const client = new IORedis({ host: "127.0.0.1", port: Number(port) });
const options = { retryCount: -1, retryDelay: 2, retryJitter: 2 };

function locker() {
  if (module_ === "redlock4") {
    const Redlock = require("redlock");
    const redlock = new Redlock([client], options);
    return async () => {
      const lock = await redlock.lock(key, 60000);
      return () => lock.unlock();
    };
  }
  const Redlock = require("redlock5").default;
  const redlock = new Redlock([client], options);
  return async () => {
    const lock = await redlock.acquire([key], 60000);
    return () => lock.release();
  };
}

async function main() {
  const take = locker();
  await client.ping();
  console.log("ready");
  await new Promise((resolve) => process.stdin.once("data", resolve));
  let met = 0;
  for (let n = 0; n < Number(times); n++) {
    const release = await take();
    const [[, inside], [, count]] = await client.pipeline().incr(`${key}:inside`).get(`${key}:count`).exec();
    if (inside !== 1) met++;
    await client.pipeline().set(`${key}:count`, Number(count) + 1).rpush(`${key}:order`, module_)
      .decr(`${key}:inside`).exec();
    await release();
  }
  console.log(met);
}

main().then(() => process.exit(0), (error) => {
  console.error(error);
  process.exit(1);
});
