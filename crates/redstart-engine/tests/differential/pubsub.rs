//! Publish and subscribe, and the invalidations of client-side caching.

use redstart_engine::{Outcome, Protocol, PushReceiver, Reply};

use crate::{Pair, Server, split};

/// Two clients whose out-of-band replies are compared, too.
struct Listening {
    pair: Pair,
    pushes: Vec<PushReceiver>,
    protocol: Protocol,
}

impl Listening {
    fn new(server: &Server, protocol: Protocol) -> Listening {
        let mut pair = Pair::new(server, protocol);
        let pushes = pair.sessions.iter_mut().map(|s| s.pushes()).collect();
        Listening {
            pair,
            pushes,
            protocol,
        }
    }

    /// Both send `line`; the server answers with `count` replies in all, on that connection.
    fn send(&mut self, client: usize, line: &str, count: usize) {
        let args = split(line);
        self.pair.wires[client].send(&args);
        let ours = match self.pair.sessions[client].execute(&args) {
            Outcome::Reply(reply) => reply,
            Outcome::Blocked(_) => panic!("blocked: {line}"),
        };
        let mut ours_all = Vec::new();
        let mut late = Vec::new();
        while let Some(push) = self.pushes[client].try_recv() {
            // Invalidations of one's own change follow the reply.
            if matches!(&push, Reply::Push(items) if items[0] == Reply::bulk("invalidate")) {
                late.push(push);
            } else {
                ours_all.push(push);
            }
        }
        ours_all.push(ours);
        ours_all.extend(late);
        for ours in ours_all.iter() {
            let theirs = self.pair.wires[client].read();
            let ours = self.normal(ours.clone());
            assert_eq!(ours, theirs, "{line} in {:?}", self.protocol);
        }
        assert_eq!(ours_all.len(), count, "{line}: {ours_all:?}");
    }

    /// The next message of a client on both sides.
    fn hears(&mut self, client: usize) {
        let theirs = self.pair.wires[client].read();
        let ours = self.pushes[client].try_recv();
        let ours = ours.unwrap_or_else(|| panic!("only the server says {theirs:?}"));
        assert_eq!(self.normal(ours), theirs);
    }

    fn hears_nothing(&mut self, client: usize) {
        assert_eq!(self.pushes[client].try_recv(), None);
    }

    /// In RESP2 a push is an array on the wire; no array and no value are the same in RESP3.
    fn normal(&self, reply: Reply) -> Reply {
        match (reply, self.protocol) {
            (Reply::Push(items), Protocol::Resp2) => Reply::Array(items),
            (Reply::NilArray, Protocol::Resp3) => Reply::Nil,
            (other, _) => other,
        }
    }
}

fn in_both(test: impl Fn(&mut Listening)) {
    let server = Server::start();
    for protocol in [Protocol::Resp2, Protocol::Resp3] {
        test(&mut Listening::new(&server, protocol));
    }
}

#[test]
fn subscriptions_are_confirmed_and_messages_delivered_alike() {
    in_both(|both| {
        both.send(0, "SUBSCRIBE a b a", 3);
        both.send(0, "PSUBSCRIBE n* n?", 2);
        both.send(0, "SSUBSCRIBE s", 1);
        both.send(1, "PUBLISH a hello", 1);
        both.hears(0);
        both.send(1, "PUBLISH none x", 1);
        both.hears(0);
        both.send(1, "SPUBLISH s x", 1);
        both.hears(0);
        both.send(1, "SPUBLISH a x", 1);
        both.send(1, "PUBLISH s x", 1);
        both.send(1, "PUBSUB NUMSUB a b c", 1);
        both.send(1, "PUBSUB NUMSUB", 1);
        both.send(1, "PUBSUB NUMPAT", 1);
        both.send(1, "PUBSUB CHANNELS b*", 1);
        both.send(1, "PUBSUB SHARDCHANNELS", 1);
        both.send(1, "PUBSUB SHARDNUMSUB s a", 1);
        both.send(1, "PUBSUB CHANNELS a b", 1);
        both.send(1, "PUBSUB NUMPAT x", 1);
        both.send(1, "PUBSUB NOSUCH", 1);
        both.send(0, "PING", 1);
        both.send(0, "PING x", 1);
        both.send(0, "UNSUBSCRIBE a z", 2);
        both.send(0, "PUNSUBSCRIBE n*", 1);
        both.send(0, "SUNSUBSCRIBE", 1);
        both.send(0, "SUNSUBSCRIBE", 1);
        both.send(0, "UNSUBSCRIBE", 1);
        both.send(0, "PUNSUBSCRIBE", 1);
        both.send(0, "UNSUBSCRIBE", 1);
        both.send(0, "UNSUBSCRIBE x", 1);
        both.send(0, "GET a", 1);
        both.hears_nothing(0);
    });
}

#[test]
fn a_subscribed_resp2_client_may_only_do_some_things() {
    in_both(|both| {
        both.send(0, "SUBSCRIBE a", 1);
        both.send(0, "GET a", 1);
        both.send(0, "CLIENT NOSUCH", 1);
        both.send(0, "CONFIG GET maxmemory-policy", 1);
        both.send(0, "NOSUCH", 1);
        both.send(0, "RESET", 1);
        both.send(0, "GET a", 1);
    });
}

#[test]
fn a_client_hears_itself_only_in_resp3() {
    let server = Server::start();
    let mut both = Listening::new(&server, Protocol::Resp3);
    both.send(0, "SUBSCRIBE a", 1);
    both.send(0, "PUBLISH a x", 2);
}

#[test]
fn invalidations_are_sent_alike() {
    let server = Server::start();
    let mut both = Listening::new(&server, Protocol::Resp3);
    both.send(0, "CLIENT TRACKING ON", 1);
    both.send(1, "SET k 1", 1);
    both.hears_nothing(0);
    both.send(0, "GET k", 1);
    both.send(0, "GET absent", 1);
    both.send(1, "SET k 2", 1);
    both.hears(0);
    // Told once: it has to read again to be told again.
    both.send(1, "SET k 3", 1);
    both.hears_nothing(0);
    both.send(1, "INCR absent", 1);
    both.hears(0);
    // Its own change, after the reply.
    both.send(0, "GET k", 1);
    both.send(0, "SET k 4", 2);
    both.send(0, "GET k", 1);
    both.send(0, "CLIENT TRACKING ON NOLOOP", 1);
    both.send(0, "SET k 4", 1);
    both.send(0, "GET k", 1);
    both.send(1, "FLUSHALL", 1);
    both.hears(0);
    both.send(0, "CLIENT TRACKING OFF", 1);
    both.send(0, "GET k", 1);
    both.send(1, "SET k 4", 1);
    both.hears_nothing(0);
}

#[test]
fn caching_can_be_opted_into_and_out_of() {
    let server = Server::start();
    let mut both = Listening::new(&server, Protocol::Resp3);
    both.send(0, "CLIENT TRACKING ON OPTIN", 1);
    both.send(0, "CLIENT CACHING NO", 1);
    both.send(0, "GET a", 1);
    both.send(0, "CLIENT CACHING YES", 1);
    both.send(0, "CLIENT TRACKINGINFO", 1);
    both.send(0, "CLIENT CACHING YES", 1);
    both.send(0, "GET b", 1);
    both.send(0, "GET c", 1);
    both.send(1, "SET a 1", 1);
    both.send(1, "SET c 1", 1);
    both.hears_nothing(0);
    both.send(1, "SET b 1", 1);
    both.hears(0);
    both.send(0, "CLIENT TRACKING ON OPTOUT", 1);
    both.send(0, "CLIENT TRACKING OFF", 1);
    both.send(0, "CLIENT TRACKING ON OPTOUT", 1);
    both.send(0, "CLIENT CACHING YES", 1);
    both.send(0, "CLIENT CACHING NO", 1);
    both.send(0, "GET a", 1);
    both.send(0, "GET b", 1);
    both.send(1, "SET a 1", 1);
    both.hears_nothing(0);
    both.send(1, "SET b 1", 1);
    both.hears(0);
}

#[test]
fn prefixes_are_broadcast_alike() {
    let server = Server::start();
    let mut both = Listening::new(&server, Protocol::Resp3);
    both.send(0, "CLIENT TRACKING ON BCAST PREFIX a: PREFIX b:", 1);
    both.send(0, "CLIENT TRACKING ON BCAST PREFIX a:x", 1);
    both.send(0, "CLIENT TRACKING ON", 1);
    both.send(0, "CLIENT TRACKINGINFO", 1);
    both.send(1, "SET a:1 1", 1);
    both.hears(0);
    both.send(1, "SET c:1 1", 1);
    both.hears_nothing(0);
    both.send(1, "MULTI", 1);
    both.send(1, "SET b:2 1", 1);
    both.send(1, "SET b:1 1", 1);
    both.send(1, "EXEC", 1);
    both.hears(0);
    both.send(0, "SET a:1 2", 2);
    both.send(0, "CLIENT TRACKING OFF", 1);
    both.send(0, "CLIENT TRACKING ON BCAST NOLOOP", 1);
    both.send(0, "SET a:1 2", 1);
    both.send(1, "SET z 2", 1);
    both.hears(0);
    both.send(1, "FLUSHALL", 1);
    both.hears(0);
}

#[test]
fn keyspace_events_are_published_alike() {
    let server = Server::start();
    let mut both = Listening::new(&server, Protocol::Resp3);
    both.send(1, "CONFIG SET notify-keyspace-events AKEmn", 1);
    both.send(0, "PSUBSCRIBE __key*__:*", 1);
    for (line, events) in [
        ("SET a 1", 2),
        ("SET a 1 EX 100", 2),
        ("GET a", 0),
        ("GET none", 1),
        ("INCR a", 1),
        ("APPEND a x", 1),
        ("SETRANGE a 0 y", 1),
        ("EXPIRE a 50", 1),
        ("PERSIST a", 1),
        ("RENAME a b", 3),
        ("COPY b c", 2),
        ("DEL b nothing", 1),
        ("GETDEL c", 1),
        ("LPUSH l 1 2 3", 2),
        ("LINSERT l BEFORE 2 x", 1),
        ("LSET l 0 y", 1),
        ("LTRIM l 0 1", 1),
        ("RPOP l", 1),
        ("LMOVE l m LEFT RIGHT", 4),
        ("SADD s a b", 2),
        ("SREM s a", 1),
        ("SPOP s", 2),
        ("HSET h a 1 b 2", 2),
        ("HINCRBY h a 1", 1),
        ("HDEL h a b", 2),
        ("ZADD z 1 a 2 b", 2),
        ("ZINCRBY z 1 a", 1),
        ("ZPOPMIN z", 1),
        ("ZREM z b a", 2),
        ("XADD x 1-1 a b", 2),
        ("XADD x MAXLEN 1 2-1 a b", 2),
        ("XGROUP CREATE x g 0", 1),
        ("XREADGROUP GROUP g c STREAMS x >", 1),
        ("XGROUP CREATECONSUMER x g d", 1),
        ("XGROUP DELCONSUMER x g d", 1),
        ("XGROUP SETID x g 0", 1),
        ("XCLAIM x g e 0 2-1", 1),
        ("XGROUP DESTROY x g", 1),
        ("XDEL x 2-1", 1),
        ("XSETID x 9-9", 1),
        ("XTRIM x MAXLEN 0", 0),
        ("MOVE x 1", 3),
        ("SETEX v 100 x", 3),
        ("GETEX v PERSIST", 1),
        ("MSET p 1 q 2", 4),
    ] {
        both.send(1, line, 1);
        for _ in 0..events * 2 {
            both.hears(0);
        }
        if let Some(more) = both.pushes[0].try_recv() {
            panic!("{line} has more to say: {more:?}");
        }
    }
    // The server has nothing more to say, either.
    both.send(0, "PING", 1);
}
