//! A walk over the keys of all nodes, a part at a time.

use std::sync::Arc;

use redis::{Cmd, FromRedisValue};

use super::{Store, command, pool::Node, request::convert};
use crate::Result;

/// Keys that are asked for at once.
const PAGE: usize = 500;

/// Goes through all keys that match a pattern, a part at a time, and begins again after the last one. Made by [`Store::walk`].
///
/// A key that exists during a whole round is seen in it, unless a server is restarted or replaced meanwhile. Where a slot of a
/// Cluster has got another owner by the word of the nodes that are read, also during the last part, the round begins again; while a
/// slot is being moved, its keys may be missed, and so may those that a new node has got until the slot table names it.
/// A key may be seen more than once. On a Cluster one node is read after the other.
///
/// # Cancel safety
///
/// A part whose future is dropped is read again.
#[derive(Clone, Debug)]
pub struct Walk {
    store: Store,
    pattern: String,
    place: Place,
}

/// Where the next part begins.
#[derive(Clone, Default)]
struct Place {
    /// The masters of this round; none before its first part.
    nodes: Vec<Option<Arc<Node>>>,
    /// The slot table of this round: a key that moves to a node that was read before would be missed.
    version: u64,
    /// The slots of each node by its own word before it was read: the table may be of a node that hears of a move later.
    owned: Vec<Slots>,
    node: usize,
    cursor: u64,
}

impl std::fmt::Debug for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Place")
            .field("node", &self.node)
            .field("cursor", &self.cursor)
            .finish_non_exhaustive()
    }
}

/// The slots that a node says it has, without those that are about to come or to go; `None` if it does not say.
type Slots = Option<Vec<String>>;

/// A part of a [`Walk`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WalkPart {
    /// The keys, in no order that means anything.
    pub keys: Vec<Vec<u8>>,
    /// Whether a round begins with this part: it is the first one, the one before was the last of its round, or slots have moved.
    pub is_first: bool,
    /// Whether a round has ended with this part; the next part begins another one.
    pub is_last: bool,
}

impl Store {
    /// A walk over all keys that match a glob pattern, found by SCAN without blocking the server, on every node.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
    /// let store = redstart::Store::connect("memory://").await?;
    /// store.query::<()>(redis::cmd("SET").arg("greeting").arg("hello")).await?;
    /// let mut walk = store.walk("*");
    /// let part = walk.next(100).await?;
    /// assert_eq!(part.keys, [b"greeting"]);
    /// assert!(part.is_first && part.is_last);
    /// # Ok(()) }
    /// ```
    pub fn walk(&self, pattern: &str) -> Walk {
        Walk {
            store: self.clone(),
            pattern: pattern.to_owned(),
            place: Place::default(),
        }
    }

    /// Sends a command to every master of a Cluster, or to the one server, and returns all answers. For commands that tell
    /// something of the server itself, as INFO.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
    /// let store = redstart::Store::connect("memory://").await?;
    /// let sizes: Vec<u64> = store.query_each(&redis::cmd("DBSIZE")).await?;
    /// assert_eq!(sizes, [0]);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`query`](Self::query), of the first node that fails; [`is_config`](crate::Error::is_config) for a store made from a
    /// `ClusterConnection` of redis-rs, which cannot ask each node; [in doubt](crate::Error::is_in_doubt) if the command writes and
    /// another node has answered.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, some nodes may have carried the command out.
    pub async fn query_each<T: FromRedisValue>(&self, cmd: &Cmd) -> Result<Vec<T>> {
        let replies = self.ask_each(cmd).await?;
        let replies = replies.into_iter().map(|(_, reply)| reply);
        let reads = command::only_reads(cmd);
        let mut answers = Vec::with_capacity(replies.len());
        let mut failure: Option<crate::Error> = None;
        for reply in replies {
            match reply.and_then(|reply| convert(reply, reads)) {
                Ok(answer) => answers.push(answer),
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        match failure {
            None => Ok(answers),
            // What others have answered was carried out there.
            Some(error) => {
                let in_doubt = error.is_in_doubt() || (!reads && !answers.is_empty());
                Err(error.doubt(in_doubt))
            }
        }
    }

    /// As [`query_each`](Self::query_each), with what each master answered for itself: its address, and its answer or why there
    /// is none. The address is empty for the one server of a store that is no Cluster.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
    /// let store = redstart::Store::connect("memory://").await?;
    /// for (address, size) in store.query_nodes::<u64>(&redis::cmd("DBSIZE")).await? {
    ///     assert_eq!((address.as_str(), size?), ("", 0));
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`is_config`](crate::Error::is_config) for a store made from a `ClusterConnection` of redis-rs, which cannot ask each node.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, some nodes may have carried the command out.
    pub async fn query_nodes<T: FromRedisValue>(
        &self,
        cmd: &Cmd,
    ) -> Result<Vec<(String, Result<T>)>> {
        let reads = command::only_reads(cmd);
        let replies = self.ask_each(cmd).await?.into_iter();
        let read = |reply: Result<redis::Value>| reply.and_then(|reply| convert(reply, reads));
        Ok(replies
            .map(|(address, reply)| (address, read(reply)))
            .collect())
    }

    async fn ask_each(&self, cmd: &Cmd) -> Result<Vec<(String, Result<redis::Value>)>> {
        let nodes = self.scanned_nodes().await?;
        let asked = nodes.iter().map(async |node| {
            let address = node.as_ref().map_or_else(String::new, |node| node.place());
            (address, self.ask_node(node.as_ref(), cmd).await)
        });
        Ok(futures_util::future::join_all(asked).await)
    }
}

impl Walk {
    /// The next part: about `at_most` keys, or fewer where few of the keys match.
    ///
    /// # Errors
    ///
    /// Those of [`Store::scan`]. The part can be asked for again.
    pub async fn next(&mut self, at_most: usize) -> Result<WalkPart> {
        let mut place = self.place.clone();
        let now = self.beginning().await?;
        if !now.is_of_round(&place) {
            place = now;
        }
        let is_first = place.node == 0 && place.cursor == 0;
        let mut keys = Vec::new();
        let count = at_most.clamp(10, PAGE);
        // A server's table may be half empty.
        for page in 0..(at_most / count).saturating_mul(2).max(1) {
            if page > 0 && keys.len() >= at_most {
                break;
            }
            let mut scan = redis::cmd("SCAN");
            scan.arg(place.cursor).arg("MATCH").arg(&self.pattern);
            scan.arg("COUNT").arg(count);
            let Some(node) = place.nodes.get(place.node) else {
                break;
            };
            if place.owned.len() == place.node {
                place.owned.push(self.owned_by(node).await);
            }
            let reply = self.store.ask_node(node.as_ref(), &scan).await?;
            let (next, found): (u64, Vec<Vec<u8>>) = redis::from_redis_value(reply)?;
            keys.extend(found);
            place.cursor = next;
            if next == 0 {
                place.node += 1;
                if place.node >= place.nodes.len() {
                    break;
                }
            }
        }
        let mut is_last = place.node >= place.nodes.len();
        if is_last {
            // A slot may have moved during this part, to a node that was read before.
            let now = self.beginning().await?;
            let owned = place.nodes.iter().map(|node| self.owned_by(node));
            let owned = futures_util::future::join_all(owned).await;
            if !now.is_of_round(&place) || owned != place.owned {
                (place, is_last) = (now, false);
            }
        }
        self.place = match is_last {
            true => Place::default(),
            false => place,
        };
        Ok(WalkPart {
            keys,
            is_first,
            is_last,
        })
    }

    /// Where a round begins now.
    async fn beginning(&self) -> Result<Place> {
        let (nodes, version) = self.store.numbered_nodes().await?;
        Ok(Place {
            nodes,
            version,
            ..Place::default()
        })
    }

    async fn owned_by(&self, node: &Option<Arc<Node>>) -> Slots {
        let own = self.store.own_slots(node.as_ref()).await?;
        let words = own.split(' ').filter(|word| !word.starts_with('['));
        Some(words.map(str::to_owned).collect())
    }
}

impl Place {
    /// It has the nodes of the round of the other, and no slot has moved since.
    fn is_of_round(&self, other: &Self) -> bool {
        self.version == other.version && same(&self.nodes, &other.nodes)
    }
}

fn same(one: &[Option<Arc<Node>>], other: &[Option<Arc<Node>>]) -> bool {
    one.len() == other.len()
        && one.iter().zip(other).all(|pair| match pair {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (None, None) => true,
            _ => false,
        })
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::{TcpListener, TcpStream},
    };

    use super::*;

    /// Two nodes. The key of the second one moves to the first when that has been read, and the slot table that both tell is
    /// that of a node which never hears of it.
    #[derive(Default)]
    struct Nodes {
        ports: [u16; 2],
        has_moved: bool,
    }

    impl Nodes {
        fn answer(&mut self, node: usize, words: &[&str]) -> String {
            let bulk = |text: &str| format!("${}\r\n{text}\r\n", text.len());
            match words {
                ["CLUSTER", "SLOTS"] => {
                    let row = |from: u16, to: u16, port| {
                        format!("*3\r\n:{from}\r\n:{to}\r\n*2\r\n$0\r\n\r\n:{port}\r\n")
                    };
                    let [first, second] = self.ports;
                    format!("*2\r\n{}{}", row(0, 8191, first), row(8192, 16_383, second))
                }
                ["CLUSTER", "INFO"] => bulk("cluster_state:ok\r\ncluster_current_epoch:3"),
                ["CLUSTER", "NODES"] => {
                    let slots = match (node, self.has_moved) {
                        (0, false) => "0-8191",
                        (0, true) => "0-8192",
                        (_, false) => "8192-16383",
                        (_, true) => "8193-16383",
                    };
                    let other = "other 127.0.0.1:1@2 slave,fail first 0 0 1 connected\n";
                    let own = format!("me 127.0.0.1:1@2 myself,master - 0 0 1 connected {slots}\n");
                    bulk(&format!("{other}{own}"))
                }
                ["SCAN", ..] => {
                    let has = (node == 0) == self.has_moved;
                    self.has_moved |= node == 0;
                    let keys = if has { "*1\r\n$1\r\nk\r\n" } else { "*0\r\n" };
                    format!("*2\r\n$1\r\n0\r\n{keys}")
                }
                _ => "+OK\r\n".to_owned(),
            }
        }
    }

    async fn serve(nodes: Arc<Mutex<Nodes>>, node: usize, mut peer: TcpStream) {
        let mut buffer = [0; 4096];
        while let Ok(read @ 1..) = peer.read(&mut buffer).await {
            let text = String::from_utf8_lossy(&buffer[..read]).into_owned();
            // A request begins with the number of its words, and comes in one piece.
            let mut answers = String::new();
            for request in text.split('*').skip(1) {
                let words: Vec<&str> = request.split("\r\n").skip(2).step_by(2).collect();
                answers += &nodes.lock().answer(node, &words);
            }
            if peer.write_all(answers.as_bytes()).await.is_err() {
                return;
            }
        }
    }

    async fn cluster() -> Result<Store> {
        let nodes = Arc::new(Mutex::new(Nodes::default()));
        for node in 0..2 {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            nodes.lock().ports[node] = listener.local_addr().unwrap().port();
            let nodes = nodes.clone();
            tokio::spawn(async move {
                while let Ok((peer, _)) = listener.accept().await {
                    tokio::spawn(serve(nodes.clone(), node, peer));
                }
            });
        }
        let port = nodes.lock().ports[0];
        Store::connect(&format!("redis+cluster://127.0.0.1:{port}")).await
    }

    #[tokio::test]
    async fn a_round_does_not_end_while_the_slot_table_is_of_a_node_that_has_not_heard_of_a_move()
    -> Result<()> {
        let mut walk = cluster().await?.walk("k");
        let part = walk.next(10).await?;
        assert!(part.keys.is_empty(), "the key moved too early");
        assert!(part.is_first && !part.is_last);
        let part = walk.next(10).await?;
        assert_eq!(part.keys, [b"k"]);
        assert!(part.is_first && part.is_last);
        Ok(())
    }

    #[tokio::test]
    async fn a_scan_finds_a_key_that_moves_to_a_node_that_was_read() -> Result<()> {
        assert_eq!(cluster().await?.scan("k").await?, ["k"]);
        Ok(())
    }
}
