// rate-limiter-flexible as the other side of a test.
//
//   node limiter.js PORT OPTIONS
//
// Reads lines of JSON, [method, ...arguments] of a RateLimiterRedis with these options, and answers each with its result: {allowed, consumed,
// remaining, ms}, or null. The method "many" consumes one point of a key so many times, all at once, and answers with how many were allowed.
"use strict";

const readline = require("readline");
const IORedis = require("ioredis");
const { RateLimiterRedis, RateLimiterRes } = require("rate-limiter-flexible");
const [port, options] = process.argv.slice(2);
const storeClient = new IORedis({ host: "127.0.0.1", port: Number(port) });
const limiter = new RateLimiterRedis({ storeClient, ...JSON.parse(options) });

const shape = (allowed, res) => res instanceof RateLimiterRes
  ? { allowed, consumed: res.consumedPoints, remaining: res.remainingPoints, ms: res.msBeforeNext }
  : res;

async function call(method, ...args) {
  try {
    return shape(true, await limiter[method](...args));
  } catch (res) {
    if (!(res instanceof RateLimiterRes)) throw res;
    return shape(false, res);
  }
}

async function answer([method, ...args]) {
  if (method !== "many") return call(method, ...args);
  const [key, times] = args;
  const all = await Promise.all(Array.from({ length: times }, () => call("consume", key)));
  return all.filter((one) => one.allowed).length;
}

async function main() {
  for await (const line of readline.createInterface({ input: process.stdin })) {
    console.log(JSON.stringify(await answer(JSON.parse(line))));
  }
}

main().then(() => process.exit(0), (error) => {
  console.error(error);
  process.exit(1);
});
