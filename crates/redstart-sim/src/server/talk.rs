//! A client's connection to a server.

use std::{sync::Arc, task::Poll};

use bytes::Bytes;
use redstart::sim::Socket as _;
use redstart_engine::{Outcome, PushReceiver, Reply, Session, sim};

use super::{Server, command::is_control};
use crate::{
    network::{End, Host, Peer, Reach},
    resp::Parser,
};

/// How the network sees a server. Apart from it, so that a server has no handle of itself.
pub(super) struct Door(pub(super) Arc<Server>);

impl Host for Door {
    fn peer(&self) -> Peer {
        self.0.peer()
    }

    fn reach(&self) -> Reach {
        let inner = self.0.inner.lock();
        match inner.reach {
            Reach::Listening if inner.refuses => Reach::Refusing,
            reach => reach,
        }
    }

    fn accept(&self, end: End) {
        let server = self.0.clone();
        let inner = server.inner.lock();
        let (engine, process) = (inner.engine.clone(), inner.process.clone());
        drop(inner);
        let mut session = engine.session();
        let talk = Talk {
            pushes: session.pushes(),
            session,
            end,
            parser: Parser::default(),
            out: Vec::new(),
            asking: false,
            queueing: false,
            spoiled: false,
        };
        tokio::spawn(process.own(talk.run(server)));
    }
}

/// One client's connection.
pub(super) struct Talk {
    session: Session,
    pushes: PushReceiver,
    pub(super) end: End,
    parser: Parser,
    out: Vec<u8>,
    pub(super) asking: bool,
    /// Between MULTI and EXEC.
    queueing: bool,
    /// A queued command was refused.
    spoiled: bool,
}

impl Talk {
    async fn run(mut self, server: Arc<Server>) {
        let mut room = [0; 4096];
        loop {
            loop {
                let command = match self.parser.next() {
                    Ok(Some(command)) => command,
                    Ok(None) => break,
                    Err(_) => return,
                };
                let Some(reply) = self.execute(&server, command).await else {
                    return;
                };
                self.tell(reply);
            }
            if self.flush().await.is_err() {
                return;
            }
            match self.wait(&mut room).await {
                Some(0) => {}
                Some(count) => self.parser.feed(&room[..count]),
                None => return,
            }
        }
    }

    /// A command was refused by what stands in front.
    pub(super) fn refused(&mut self) {
        self.spoiled |= self.queueing;
    }

    async fn execute(&mut self, server: &Server, command: Vec<Bytes>) -> Option<Reply> {
        if server.trace.has_lines() {
            server.trace.aside(
                server.peer(),
                format_args!("{} sends {}", self.end.client(), shown(&command)),
            );
        }
        let name = command
            .first()
            .map(|name| name.to_ascii_uppercase())
            .unwrap_or_default();
        let reply = match server.front(&command, self) {
            Some(reply) => reply,
            None => match &*name {
                b"EXEC" if std::mem::take(&mut self.spoiled) => {
                    self.queueing = false;
                    drop(self.session.execute(&[Bytes::from_static(b"DISCARD")]));
                    Reply::Error(
                        "EXECABORT Transaction discarded because of previous errors.".into(),
                    )
                }
                _ => {
                    match &*name {
                        b"MULTI" => (self.queueing, self.spoiled) = (true, false),
                        b"EXEC" | b"DISCARD" => self.queueing = false,
                        _ => {}
                    }
                    match self.session.execute(&command) {
                        Outcome::Reply(reply) => {
                            if let Reply::Error(error) = &reply
                                && !is_control(&name)
                            {
                                server.note_error(error);
                                server.seen.refused(&name, error);
                            }
                            reply
                        }
                        Outcome::Blocked(blocked) => self.wait_blocked(blocked).await?,
                    }
                }
            },
        };
        let now = server.trace.now();
        server.seen.look(self.end.client(), &command, &reply, now);
        if server.trace.has_lines() {
            server.trace.aside(
                server.peer(),
                format_args!("answers {}", shown_reply(&reply)),
            );
        }
        if name == b"INFO"
            && server.is_cluster()
            && let Reply::Bulk(text) | Reply::Verbatim { text, .. } = &reply
        {
            let text = String::from_utf8_lossy(text)
                .replace("redis_mode:standalone", "redis_mode:cluster");
            return Some(Reply::bulk(text));
        }
        Some(reply)
    }

    fn tell(&mut self, reply: Reply) {
        let protocol = self.session.protocol();
        while let Some(push) = self.pushes.try_recv() {
            sim::encode(&push, protocol, &mut self.out);
        }
        sim::encode(&reply, protocol, &mut self.out);
    }

    /// Waits for the reply of a command that blocks; `None` if the client is gone.
    async fn wait_blocked(&mut self, mut blocked: redstart_engine::Blocked) -> Option<Reply> {
        self.flush().await.ok()?;
        let mut room = [0; 1024];
        std::future::poll_fn(|cx| {
            loop {
                if let Poll::Ready(reply) = std::pin::Pin::new(&mut blocked).poll(cx) {
                    return Poll::Ready(Some(reply));
                }
                match self.end.try_read(&mut room) {
                    Ok(0) => return Poll::Ready(None),
                    Ok(count) => self.parser.feed(&room[..count]),
                    Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                        if self.end.poll_read_ready(cx).is_pending() {
                            return Poll::Pending;
                        }
                    }
                    Err(_) => return Poll::Ready(None),
                }
            }
        })
        .await
    }

    async fn flush(&mut self) -> std::io::Result<()> {
        let mut done = 0;
        while done < self.out.len() {
            match self.end.try_write(&self.out[done..]) {
                Ok(count) => done += count,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    std::future::poll_fn(|cx| self.end.poll_write_ready(cx)).await?;
                }
                Err(error) => return Err(error),
            }
        }
        self.out.clear();
        Ok(())
    }

    /// Waits for bytes of the client or a message for it; `None` if it is gone.
    async fn wait(&mut self, room: &mut [u8]) -> Option<usize> {
        let protocol = self.session.protocol();
        std::future::poll_fn(|cx| {
            let mut heard = false;
            while let Poll::Ready(push) = self.pushes.poll_recv(cx) {
                let Some(push) = push else {
                    return Poll::Ready(None);
                };
                sim::encode(&push, protocol, &mut self.out);
                heard = true;
            }
            if heard {
                return Poll::Ready(Some(0));
            }
            loop {
                match self.end.try_read(room) {
                    Ok(0) => return Poll::Ready(None),
                    Ok(count) => return Poll::Ready(Some(count)),
                    Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                    Err(_) => return Poll::Ready(None),
                }
                if self.end.poll_read_ready(cx).is_pending() {
                    return Poll::Pending;
                }
            }
        })
        .await
    }
}

/// A command for people: scripts by the first digits of their digest.
fn shown(command: &[Bytes]) -> String {
    let words = command.iter().take(9).map(|word| {
        let text = String::from_utf8_lossy(word);
        let text = text.replace(['\r', '\n'], " ");
        match text.char_indices().nth(40) {
            Some((at, _)) => format!("{}…", &text[..at]),
            None => text,
        }
    });
    let mut text = words.collect::<Vec<_>>().join(" ");
    if command.len() > 9 {
        text.push_str(" …");
    }
    text
}

fn shown_reply(reply: &Reply) -> String {
    let text = format!("{reply:?}");
    match text.char_indices().nth(100) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text,
    }
}
