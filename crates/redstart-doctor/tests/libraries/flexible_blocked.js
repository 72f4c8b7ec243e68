// A limiter of rate-limiter-flexible with some counters, one of which is blocked for so many seconds; 0 is for ever.
//
//   node flexible_blocked.js PORT SECONDS

const Redis = require("ioredis");
const { RateLimiterRedis } = require("rate-limiter-flexible");

async function main() {
  const [port, seconds] = process.argv.slice(2).map(Number);
  const client = new Redis({ port, host: "127.0.0.1" });
  const limiter = new RateLimiterRedis({ storeClient: client, keyPrefix: "rlflx:login", points: 5, duration: 600 });
  for (let n = 0; n < 20; n++) await limiter.consume(String(n));
  await limiter.block("7", seconds);
  await client.quit();
}

main().then(() => process.exit(0), (error) => {
  console.error(error);
  process.exit(1);
});
