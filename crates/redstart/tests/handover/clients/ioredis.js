// Counts up while the data moves, and follows it.
//
// Writes a line `<acknowledged> <moves>` after every count. Ends when its stdin does.
const Redis = require("ioredis");

const [address, key] = process.argv.slice(2);

function connect(address) {
  const [host, port] = address.split(":");
  // A write whose reply is lost is not sent again.
  return new Redis({ host, port: Number(port), maxRetriesPerRequest: 0, autoResendUnfulfilledCommands: false });
}

let stop = false;
process.stdin.on("data", () => {}).on("end", () => (stop = true));

async function main() {
  let redis = connect(address);
  let acknowledged = 0;
  let moves = 0;
  while (!stop) {
    try {
      await redis.incr(key);
    } catch (error) {
      const [word, place, ...rest] = error.message.split(" ");
      if (word !== "REDIRECT" || rest.length > 0) throw error;
      // Nothing was done there.
      redis.disconnect();
      redis = connect(place);
      moves += 1;
      continue;
    }
    acknowledged += 1;
    process.stdout.write(`${acknowledged} ${moves}\n`);
  }
  redis.disconnect();
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
