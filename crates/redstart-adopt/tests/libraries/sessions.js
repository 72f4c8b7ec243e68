// express-session with connect-redis as the other side of a test.
//
//   node sessions.js PORT PREFIX
//
// Reads lines of JSON, [cookie, user]: visits its own HTTP server with that cookie (or null), which writes the user (unless it is null) into the session. Answers
// with {user, cookie}: who the session says it is, and the cookie that was set (or null).
"use strict";

const http = require("http");
const readline = require("readline");
const session = require("express-session");
const { createClient } = require("redis");
const { RedisStore } = require("connect-redis");
const [port, prefix] = process.argv.slice(2);

function visit(at, cookie, user) {
  const headers = cookie ? { cookie: `connect.sid=${cookie}` } : {};
  const path = user ? `/?user=${encodeURIComponent(user)}` : "/";
  return new Promise((resolve, reject) => {
    http.get({ host: "127.0.0.1", port: at, path, headers, agent: false }, (res) => {
      let body = "";
      res.on("data", (part) => (body += part));
      res.on("end", () => {
        const [set] = res.headers["set-cookie"] || [];
        resolve({ user: JSON.parse(body), cookie: set ? set.split(";")[0].split("=").slice(1).join("=") : null });
      });
    }).on("error", reject);
  });
}

async function main() {
  const client = createClient({ url: `redis://127.0.0.1:${port}` });
  await client.connect();
  const middleware = session({
    store: new RedisStore({ client, prefix }),
    secret: "keyboard cat",
    resave: false,
    saveUninitialized: false,
    cookie: { maxAge: 3600000 },
  });
  const server = http.createServer((req, res) => middleware(req, res, (error) => {
    if (error) throw error;
    const user = new URL(req.url, "http://localhost").searchParams.get("user");
    if (user) req.session.user = user;
    res.end(JSON.stringify(req.session.user || null));
  }));
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  for await (const line of readline.createInterface({ input: process.stdin })) {
    console.log(JSON.stringify(await visit(server.address().port, ...JSON.parse(line))));
  }
}

main().then(() => process.exit(0), (error) => {
  console.error(error);
  process.exit(1);
});
